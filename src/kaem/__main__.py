"""`python -m kaem` is `kaem`."""

import sys

from .cli import main

sys.exit(main())
