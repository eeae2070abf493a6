"""How good a model is: distances between sets of samples, log-likelihoods, diagnostics."""

from ..lazy import submodules
from .diagnostics import active_coordinates as active_coordinates
from .diagnostics import effective_sample_size as effective_sample_size
from .diagnostics import importance_ess as importance_ess
from .diagnostics import posterior_diagnostics as posterior_diagnostics
from .diagnostics import r_hat as r_hat
from .distances.frechet import Statistics as Statistics
from .distances.frechet import frechet_distance as frechet_distance
from .distances.frechet import statistics as statistics
from .distances.infinity import Extrapolation as Extrapolation
from .distances.infinity import fid_infinity as fid_infinity
from .distances.infinity import kid_infinity as kid_infinity
from .distances.kernel import Estimate as Estimate
from .distances.kernel import kid as kid
from .distances.kernel import mmd as mmd
from .distances.proxies import PrecisionRecall as PrecisionRecall
from .distances.proxies import ProxyFeatures as ProxyFeatures
from .distances.proxies import precision_recall as precision_recall
from .distances.proxies import proxy_distance as proxy_distance
from .evaluation import compare_sets as compare_sets
from .evaluation import evaluate as evaluate
from .inception import Extractor as Extractor
from .inception import extract as extract
from .likelihood import ESTIMATORS as ESTIMATORS
from .likelihood import LogLikelihood as LogLikelihood
from .likelihood import log_likelihood as log_likelihood
from .metric import Entry as Entry
from .metric import Examples as Examples
from .metric import Metric as Metric
from .metric import Request as Request
from .metric import Sets as Sets
from .registry import METRICS as METRICS

submodules(__name__)
