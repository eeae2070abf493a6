"""The figures of a run, one file each: what it shows as data, how that is drawn, and its entry here.

The order is that of the report and of `kaem plot all`.
"""

from ...lazy import submodules
from ._figure import OPTIONS, PRIOR, Figure
from .densities import DENSITIES
from .evolution import EVOLUTION
from .influence import INFLUENCE
from .interpolation import INTERPOLATION
from .power_posteriors import POWER_POSTERIORS
from .reconstructions import RECONSTRUCTIONS
from .samples import SAMPLES
from .temperatures import TEMPERATURES
from .training import TRAINING
from .traversal import TRAVERSAL

FIGURES: dict[str, Figure] = {
    "samples": SAMPLES,
    "reconstructions": RECONSTRUCTIONS,
    "influence": INFLUENCE,
    "densities": DENSITIES,
    "traversal": TRAVERSAL,
    "interpolation": INTERPOLATION,
    "power-posteriors": POWER_POSTERIORS,
    "training": TRAINING,
    "temperatures": TEMPERATURES,
    "evolution": EVOLUTION,
}

__all__ = ["FIGURES", "OPTIONS", "PRIOR", "Figure"]

submodules(__name__)
