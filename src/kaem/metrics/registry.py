"""All metrics by name, in the order in which they are computed: adding one is one file and one line."""

from .distances.sets import FID, KID, PROXY
from .gap import GAP
from .likelihood.entries import likelihood_metrics
from .metric import Metric
from .mixing import POSTERIOR

METRICS: dict[str, Metric] = {
    "proxy": PROXY,
    "fid": FID,
    "kid": KID,
    **likelihood_metrics(),
    "posterior": POSTERIOR,
    "gap": GAP,
}
