"""Settings: one tree of frozen dataclasses, from presets (TOML), files and `--set key=value`.

Every default stands here and nowhere else on the way to a run; they are Table hp-nist's, and for the
rivals those of the SVHN tables. A run's
`config.json` is this tree, resolved.
"""

import dataclasses
import difflib
import json
import math
import tomllib
import types
import typing
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from ..errors import UNREADABLE, UserError

Section = TypeVar("Section")


@dataclass(frozen=True)
class DataConfig:
    name: str = "mnist"  # a registered name or a path
    key: str | None = None  # which array of a .npz file
    limit: int | None = 50_000  # training examples used, the first ones
    size: int | None = None  # images are cropped and resized to size x size; None keeps theirs
    channels: int | None = None  # 1 (grey) or 3 (RGB); None takes what the data has
    mixed: bool = False  # images of a folder are meant to differ in size: no note says so


@dataclass(frozen=True)
class PriorConfig:
    kind: str = "univariate"  # or "mixture": P components for each of Q coordinates
    latents: int = 40  # P = n_z
    coordinates: int | None = None  # Q; None is 2P + 1, as in KART
    reference: str = "gaussian"
    domain: tuple[float, float] | None = None  # None is the reference's own
    basis: str = "rbf"
    grid_size: int = 20
    activation: str | None = "relu"  # the base branch; None leaves it out
    amplitude: float = 0.1  # epsilon
    base_mean: float = 1.0  # mu
    base_scale: float = 1.0  # sigma_b
    basis_scale: float = 1.0  # sigma_s
    cells: int = 32  # of the tables, while training; doubled when `tolerance` is exceeded
    tolerance: float = 1e-4  # on the CDF while training; sampling afterwards uses 2e-7
    score_tolerance: float = 0.1  # on the tabulated score, as a share of the tilt, for chains
    inverse_transform: str = "exact"  # or "paper"; for mixtures also "components"
    proportions: str = "uniform"  # of a mixture, or "learned"
    negative_phase: str = "quadrature"  # or "sampled"
    start: str | None = None  # a run, model or prior file to take the prior from; None is a new one
    frozen: bool = False  # whether training leaves the prior as it is


@dataclass(frozen=True)
class GeneratorConfig:
    kind: str = "kan"  # or "cnn"
    widths: tuple[int, ...] = (128, 64, 32)  # channels of a CNN's hidden layers
    depth: int = 2  # layers of functions of a KAN: Q -> 2Q + 1 -> data
    basis: str = "rbf"
    grid_size: int = 20
    activation: str | None = "relu"
    output: str = "sigmoid"
    noise: float = 0.1  # sigma_epsilon, inside the generator
    amplitude: float = 0.1
    base_mean: float = 1.0
    base_scale: float = 1.0
    basis_scale: float = 1.0


@dataclass(frozen=True)
class PosteriorConfig:
    kind: str = "importance"  # or the local moves of a chain: "ula", "mala", "sgld"
    samples: int = 100  # N_s, shared by the batch
    threshold: float = 0.5  # gamma, of the effective sample size
    resampler: str = "residual"
    steps: int = 40  # N_local, moves of a chain for each update
    step_size: float = 0.01  # eta
    share: float = 1.0  # of the pixels that SGLD sees at each step
    persistent: bool = False  # whether every example keeps its latents
    criterion: str = "likelihood"  # or "thermodynamic", over power posteriors
    temperatures: int = 10  # N_t
    schedule: str = "cosine"  # of the temperatures: also "power", "balanced", "fixed"
    p_start: float = 2.0
    p_end: float = 0.5
    cycles: int = 0
    ladder: tuple[float, ...] | None = None  # of the schedule "fixed": 0, ..., 1


@dataclass(frozen=True)
class ModelConfig:
    kind: str = "kaem"  # or "vae", "neural-ebm", "ddpm"
    start: str | None = None  # a run or model file to go on from; None is a new model


@dataclass(frozen=True)
class VAEConfig:
    beta: float = 0.01  # the weight of the KL
    widths: tuple[int, ...] = (16, 32, 64, 128)  # of the encoder's layers


@dataclass(frozen=True)
class NeuralEBMConfig:
    widths: tuple[int, ...] = (200, 200)  # of the energy network's hidden layers
    steps: int = 60  # Langevin steps that draw a sample of the prior
    step_size: float = 0.16
    noise_scale: float = 1.0


@dataclass(frozen=True)
class DDPMConfig:
    channels: tuple[int, ...] = (32, 64, 128, 256)
    time_dim: int = 128  # of the sinusoidal embedding, which is projected to four times as many
    timesteps: int = 1000
    beta_start: float = 1e-4
    beta_end: float = 2e-2
    sampler: str = "ancestral"  # or "ddim"
    sampling_steps: int | None = None  # None is all of them


@dataclass(frozen=True)
class OptimiserConfig:
    prior_rate: float = 1e-3
    generator_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    decay: str = "constant"  # or "cosine", to a twentieth of the rates at the last step


@dataclass(frozen=True)
class GridConfig:
    prior: bool = True
    generator: bool = True
    interval: int = 100  # updates between grid updates ...
    decay: float = 0.999  # ... whose frequency decays by this factor per update
    ratio: float = 0.05  # uniform part of the new grid
    samples: int = 1000  # of the prior, that grids are adapted to


@dataclass(frozen=True)
class TrainingConfig:
    steps: int = 5000
    batch_size: int = 100
    noise: float = 0.1  # sigma of the likelihood
    seed: int = 0
    log_every: int = 50
    checkpoint_every: int = 500
    sample_every: int = 500
    keep_checkpoints: int = 2


@dataclass(frozen=True)
class Config:
    """Everything that determines a run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    prior: PriorConfig = field(default_factory=PriorConfig)
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    posterior: PosteriorConfig = field(default_factory=PosteriorConfig)
    vae: VAEConfig = field(default_factory=VAEConfig)
    neural_ebm: NeuralEBMConfig = field(default_factory=NeuralEBMConfig)
    ddpm: DDPMConfig = field(default_factory=DDPMConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    grid: GridConfig = field(default_factory=GridConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        t, o, g = self.training, self.optimiser, self.grid
        positive = {
            "training.steps": t.steps,
            "training.batch_size": t.batch_size,
            "training.log_every": t.log_every,
            "training.checkpoint_every": t.checkpoint_every,
            "training.sample_every": t.sample_every,
            "training.keep_checkpoints": t.keep_checkpoints,
            "training.noise": t.noise,
            "prior.latents": self.prior.latents,
            "prior.tolerance": self.prior.tolerance,
            "prior.score_tolerance": self.prior.score_tolerance,
            "posterior.samples": self.posterior.samples,
            "posterior.steps": self.posterior.steps,
            "posterior.step_size": self.posterior.step_size,
            "posterior.temperatures": self.posterior.temperatures,
            "grid.interval": g.interval,
            "grid.samples": g.samples,
        }
        for name, value in positive.items():
            if value <= 0:
                raise UserError(f"{name} must be positive, got {value}.")
        for name, value in {
            "optimiser.prior_rate": o.prior_rate,
            "optimiser.generator_rate": o.generator_rate,
            "generator.noise": self.generator.noise,
            "training.seed": t.seed,
        }.items():
            if value < 0:
                raise UserError(f"{name} must not be negative, got {value}.")
        if t.seed >= 2**63:
            raise UserError(f"training.seed must be below 2^63, got {t.seed}.")
        if t.checkpoint_every % t.log_every:
            raise UserError(
                f"training.checkpoint_every must be a multiple of training.log_every, "
                f"got {t.checkpoint_every} and {t.log_every}."
            )
        if self.posterior.criterion == "thermodynamic" and self.posterior.kind == "importance":
            raise UserError(
                "the thermodynamic criterion needs chains: set posterior.kind to ula or mala."
            )
        if self.model.kind == "neural-ebm" and self.posterior.kind == "importance":
            raise UserError(
                "a neural energy model learns from chains: set posterior.kind to ula, mala or sgld "
                "(`--set posterior.kind=ula`)."
            )
        if self.model.kind == "neural-ebm" and self.posterior.criterion == "thermodynamic":
            raise UserError(
                "the thermodynamic criterion needs exact draws from the prior, which a neural energy "
                "model has not: leave posterior.criterion at likelihood."
            )
        if self.prior.start and self.model.start:
            raise UserError(
                "got both model.start and prior.start: a model to go on from has its own prior; leave "
                "one of them out."
            )
        if self.model.kind != "kaem" and (
            self.model.start or self.prior.start or self.prior.frozen
        ):
            raise UserError(
                f"a model of kind {self.model.kind!r} has no prior of one-dimensional densities, and is "
                "only trained anew: leave model.start, prior.start and prior.frozen (--finetune, "
                "--prior-from, --freeze-prior) out."
            )
        if self.prior.kind == "mixture" and self.prior.negative_phase == "sampled":
            raise UserError(
                "a mixture prior has an exact negative phase only: leave prior.negative_phase at "
                "quadrature, or use prior.kind = univariate for the ablation."
            )
        if not (0 < g.decay <= 1 and 0 < g.ratio <= 1):
            raise UserError(
                f"grid.decay and grid.ratio must be in (0, 1], got {g.decay} and {g.ratio}."
            )
        for name, choice, known in (
            ("optimiser.decay", o.decay, ("constant", "cosine")),
            ("prior.negative_phase", self.prior.negative_phase, ("quadrature", "sampled")),
            ("model.kind", self.model.kind, ("kaem", "vae", "neural-ebm", "ddpm")),
            ("prior.kind", self.prior.kind, ("univariate", "mixture")),
            ("posterior.kind", self.posterior.kind, ("importance", "ula", "mala", "sgld")),
            ("posterior.criterion", self.posterior.criterion, ("likelihood", "thermodynamic")),
            ("generator.kind", self.generator.kind, ("kan", "cnn")),
        ):
            if choice not in known:
                raise UserError(f"{name} must be one of {', '.join(known)}, got {choice!r}.")

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "Config":
        return _section(Config, values, "")


def _section(cls: type[Section], values: Any, where: str) -> Section:
    if not isinstance(values, dict):
        raise UserError(f"{where.rstrip('.')} must be a table of settings, got {values!r}.")
    hints = typing.get_type_hints(cls)
    for name in values:
        if name not in hints:
            near = difflib.get_close_matches(name, hints, 1)
            hint = f"did you mean {where}{near[0]}?" if near else f"known: {', '.join(hints)}."
            raise UserError(f"there is no setting {where}{name}; {hint}")
    made = {}
    for name, value in values.items():
        if dataclasses.is_dataclass(hints[name]):
            made[name] = _section(hints[name], value, f"{where}{name}.")
        else:
            made[name] = _coerce(value, hints[name], f"{where}{name}")
    return cls(**made)


def _coerce(value: Any, hint: Any, name: str) -> Any:
    """`value` as the annotated type, from TOML or JSON."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if type(None) in options and value in (None, "none"):  # TOML has no null
        return None
    for option in options:
        if option is bool and isinstance(value, bool):
            return value
        if option is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        if option is float and isinstance(value, int | float) and not isinstance(value, bool):
            if not math.isfinite(value):
                raise UserError(f"{name} must be a finite number, got {value}.")
            return float(value)
        if option is str and isinstance(value, str):
            return value
        if typing.get_origin(option) is tuple and isinstance(value, list | tuple):
            inner = typing.get_args(option)
            if inner[-1] is ...:
                inner = inner[:1] * len(value)
            if len(inner) == len(value):
                return tuple(_coerce(v, t, name) for v, t in zip(value, inner, strict=True))
    names = " or ".join(_TYPES.get(o, str(o)) for o in map(_plain, options))
    raise UserError(f"{name} must be {names}, got {value!r}.")


_TYPES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: "a list such as [1, 2]",
    type(None): "none",
}


def _plain(hint: Any) -> Any:
    return typing.get_origin(hint) or hint


def preset_names() -> list[str]:
    folder = resources.files("kaem.presets")
    return sorted(
        p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")
    )


def read_preset(name: str) -> dict[str, Any]:
    if name not in preset_names():
        near = difflib.get_close_matches(name, preset_names(), 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UserError(
            f"{name!r} is neither a preset nor an existing path.{hint} "
            f"Presets: {', '.join(preset_names())}."
        )
    return tomllib.loads((resources.files("kaem.presets") / f"{name}.toml").read_text("utf8"))


def read_file(path: Path) -> dict[str, Any]:
    """Settings from a `.toml` file or a run's `.json`."""
    try:
        text = path.read_text("utf8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except UNREADABLE as error:
        raise UserError(f"the configuration {path} cannot be read: {error}.") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} should hold a JSON object, got {type(values).__name__}.")
    return values


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        nested = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = merge(old, value) if nested else value  # type: ignore[arg-type]
    return merged


def override(values: dict[str, Any], assignment: str) -> dict[str, Any]:
    """Apply one `section.name=value`, the value in TOML or, failing that, as text."""
    name, equals, text = assignment.partition("=")
    path = name.strip().split(".")
    if not equals or not all(path):
        raise UserError(f"--set takes section.name=value, got {assignment!r}.")
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except UNREADABLE:
        value = text.strip()
    for part in reversed(path):
        value = {part: value}
    return merge(values, value)
