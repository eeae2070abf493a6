"""How a model learns: what is maximised on a batch, and what is kept between updates."""

from ..lazy import submodules
from ._learner import AbstractLearner
from .denoising import Denoising
from .encoded import Encoded
from .evidence_bound import EvidenceBound
from .importance import ImportanceInfo, ImportanceSampling
from .langevin import Langevin
from .thermodynamic import Thermodynamic

LEARNERS: dict[str, type[AbstractLearner]] = {
    "importance": ImportanceSampling,
    "langevin": Langevin,
    "thermodynamic": Thermodynamic,
    "encoder": Encoded,
    "evidence-bound": EvidenceBound,
    "denoising": Denoising,
}

__all__ = [
    "LEARNERS",
    "AbstractLearner",
    "Denoising",
    "Encoded",
    "EvidenceBound",
    "ImportanceInfo",
    "ImportanceSampling",
    "Langevin",
    "Thermodynamic",
]

submodules(__name__)
