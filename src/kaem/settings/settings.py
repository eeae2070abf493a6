"""Everything that determines a run, resolved and checked, and the objects that it describes."""

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeVar

import jax

from ..baselines import DDPM  # noqa: F401  # with their room imported, rivals are among the models
from ..errors import UserError, brief
from ..generators import GENERATORS
from ..layers import ENCODERS
from ..learning import LEARNERS, AbstractLearner
from ..loading import read, read_prior
from ..models import MODELS, AbstractModel
from ..observation import LENSES
from ..priors import PRIORS
from ..training import Adam, Augmentation, Grid, Plan, Upkeep
from ..training.plan import PRECISIONS
from .migrate import migrated
from .schema import Field, chosen, fields, resolved

Section = TypeVar("Section")

PARTS: dict[str, dict[str, Any]] = {
    "prior": PRIORS,
    "encoder": ENCODERS,
    "generator": GENERATORS,
    "lens": LENSES,
    "learner": LEARNERS,
}
_PLAIN = ("data", "training", "optimiser", "augmentation")  # dataclasses, by their section
_NONE = "none"  # the kind of an encoder or a lens that a model goes without
_START = Field(str | None, None)
# What a section has beside the arguments of its constructor.
_MORE = {
    "model": {"start": _START},  # a run or model file to go on from; None is a new model
    "prior": {
        "start": _START,  # a run, model or prior file to take the prior from; None is a new one
        "frozen": Field(bool, False),  # whether training leaves the prior as it is
    },
}


@dataclass(frozen=True)
class Data:
    """Where examples come from, and what is done to them."""

    name: str = "mnist"  # a registered name or a path
    key: str | None = None  # which array of a .npz file, or column of Parquet
    limit: int | None = 50_000  # training examples used, the first ones
    size: int | None = None  # images are cropped and resized to size x size; None keeps theirs
    channels: int | None = None  # 1 (grey) or 3 (RGB); None takes what the data has
    mixed: bool = False  # images of a folder are meant to differ in size: no note says so
    memory: int | None = 256  # MiB; larger data stay on disk in training, None keeps all in memory

    def __post_init__(self) -> None:
        if self.memory is not None and self.memory < 0:
            raise ValueError(f"data.memory must not be negative, or none, got {self.memory}.")

    @property
    def memory_bytes(self) -> int | None:
        """Return `memory` in bytes."""
        return None if self.memory is None else self.memory * 2**20


@dataclass(frozen=True)
class Training:
    """How long a run is, and what it leaves behind on the way."""

    steps: int = 5000
    batch_size: int = 100
    seed: int = 0
    log_every: int = 50
    checkpoint_every: int = 500
    sample_every: int = 500
    keep_checkpoints: int = 2
    precision: str = "float32"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(
                f"training.precision must be {' or '.join(PRECISIONS)}, got {self.precision!r}."
            )
        for name, value in dataclasses.asdict(self).items():
            if name == "precision":
                continue
            if value < (name != "seed"):
                least = "not be negative" if name == "seed" else "be positive"
                raise ValueError(f"training.{name} must {least}, got {value}.")
            if name != "seed" and value >= 2**31:  # what counts updates
                raise ValueError(f"training.{name} must be below 2^31, got {value}.")
        if self.checkpoint_every % self.log_every:
            raise ValueError(
                "training.checkpoint_every must be a multiple of training.log_every, got "
                f"{self.checkpoint_every} and {self.log_every}."
            )


@dataclass(frozen=True)
class Settings:
    """Everything that determines a run."""

    kinds: dict[str, str]  # of the model, its parts and its learner
    arguments: dict[str, dict[str, Any]]  # of their constructors, and what else their sections hold
    data: Data = field(default_factory=Data)
    training: Training = field(default_factory=Training)
    optimiser: Adam = field(default_factory=Adam)
    upkeep: Upkeep = field(default_factory=Upkeep)
    augmentation: Augmentation = field(default_factory=Augmentation)

    @staticmethod
    def from_dict(values: dict[str, Any], *, recorded: bool = False) -> "Settings":
        """Return the settings that sections of values describe, or say what is wrong with them.

        Those that version 0.1 wrote or knew by other names are understood; if they were `recorded` in
        a run, what no constructor takes any more is left out.
        """
        values = migrated(values, recorded)
        kind = values.get("model", {}).get("kind", "kaem")
        usual = chosen(MODELS, kind, "model").usual
        known = {"model", "data", "training", "optimiser", "upkeep", "grid", "augmentation", *usual}
        for name in values:
            if name not in known:
                if name in PARTS and recorded:
                    continue
                raise UserError(
                    f"there is no section {brief(name)} in the settings of a model of kind {kind!r}; known: "
                    f"{', '.join(sorted(known))}."
                )
        kinds, arguments = {"model": kind}, {}
        for section in ("model", *usual):
            given = dict(values.get(section, {}))
            kinds[section] = given.pop("kind", usual.get(section, kind))
            found = allowed(section, kinds[section], usual.get(section) == _NONE)
            if recorded:
                given = {name: value for name, value in given.items() if name in found}
            arguments[section] = resolved(found, given, section)
        upkeep, grid = section_of(Upkeep, "upkeep", values), section_of(Grid, "grid", values)
        settings = Settings(
            kinds,
            arguments,
            section_of(Data, "data", values),
            section_of(Training, "training", values),
            section_of(Adam, "optimiser", values),
            dataclasses.replace(upkeep, grid=grid),
            section_of(Augmentation, "augmentation", values),
        )
        settings._check_starts()
        settings._check_kinds()
        settings._check_lens()
        settings.learner()
        return settings

    def _check_starts(self) -> None:
        model, prior = self.arguments["model"], self.arguments.get("prior", {})
        if prior.get("start") and model["start"]:
            raise UserError(
                "got both model.start and prior.start: a model to go on from has its own prior; leave "
                "one of them out."
            )
        own = hasattr(self._wanted("prior"), "inverse_cdf")
        if not own and (model["start"] or prior.get("start") or prior.get("frozen")):
            raise UserError(
                f"a model of kind {self.kinds['model']!r} has no prior of one-dimensional densities, and is "
                "only trained anew: leave model.start, prior.start and prior.frozen (--finetune, "
                "--prior-from, --freeze-prior) out."
            )

    def _check_kinds(self) -> None:
        for section, registry in PARTS.items():
            wanted, kind = self._wanted(section), self.kinds.get(section, _NONE)
            if kind != _NONE and not issubclass(registry[kind], wanted):
                fitting = [name for name, cls in registry.items() if issubclass(cls, wanted)]
                raise UserError(
                    f"{section}.kind of a model of kind {self.kinds['model']!r} must be one of "
                    f"{', '.join(fitting)}, got {kind!r}."
                )

    def _check_lens(self) -> None:
        kinds, begun = self.kinds, self.arguments["model"]["start"]
        if kinds.get("lens", _NONE) != _NONE and kinds.get("encoder", _NONE) == _NONE and not begun:
            raise UserError(
                f"lens.kind is {kinds['lens']!r}, but a lens is adjusted by what an encoder makes of "
                "examples, and encoder.kind is 'none': choose an encoder (such as convolutional), or set "
                "lens.kind to none."
            )

    def _wanted(self, section: str) -> Any:
        """Return the class that the model says a part is of, or object."""
        found = MODELS[self.kinds["model"]].__dataclass_fields__.get(section)
        hint = found.type if found else Any
        return hint if isinstance(hint, type) and hint is not Any else object

    def to_dict(self) -> dict[str, Any]:
        """Return every setting, by section: enough to repeat a run."""
        parts = {name: {"kind": self.kinds[name]} | self.arguments[name] for name in self.kinds}
        upkeep = dataclasses.asdict(self.upkeep)
        plain = {n: dataclasses.asdict(getattr(self, n)) for n in _PLAIN}
        return parts | plain | {"grid": upkeep.pop("grid"), "upkeep": upkeep}

    # The objects that settings describe.

    def model(self, data_shape: tuple[int, ...]) -> Any:
        """Return the untrained model, for data of shape `data_shape`."""
        try:
            persistent = bool(self.arguments["learner"].get("persistent"))
            self.augmentation.check(data_shape, persistent=persistent)
            return self._started(data_shape) or self._new(data_shape)
        except UserError:
            raise
        except ValueError as error:
            raise UserError(f"the settings do not make a model: {error}") from error

    def _new(self, data_shape: tuple[int, ...]) -> AbstractModel:
        prior_key, generator_key = jax.random.split(jax.random.key(self.training.seed))
        context: dict[str, Any] = {"data_shape": data_shape}
        keys = {"prior": prior_key, "encoder": prior_key}
        for section in ("prior", "encoder", "lens", "generator"):
            if self.kinds.get(section, _NONE) != _NONE:
                context["key"] = keys.get(section, generator_key)
                arguments, kind = self.arguments[section], self.kinds[section]
                if arguments.get("start"):
                    context[section] = self._taken_over(arguments)
                else:
                    context[section] = _made(PARTS[section][kind], arguments, context)
                if section == "prior":
                    context["coordinates"] = context[section].shape[0]
                    context["latents"] = prod(context[section].shape)
        context["key"] = generator_key
        return _made(MODELS[self.kinds["model"]], self.arguments["model"], context)

    def _taken_over(self, arguments: dict[str, Any]) -> Any:
        """Return the prior that `prior.start` names, if it has the form of these settings."""
        prior = read_prior(arguments["start"])
        found = taken_over(prior)
        asked = arguments | {"kind": self.kinds["prior"]}
        for name in ("kind", "latents", "coordinates", "reference", "basis"):
            if asked[name] not in (None, found[name]):
                raise UserError(
                    f"prior.{name} is {asked[name]!r}, but the prior of {arguments['start']} has "
                    f"{found[name]!r}; a prior that is taken over keeps its form: set prior.{name} to "
                    "that, or leave it to `--prior-from`."
                )
        return prior

    def _started(self, data_shape: tuple[int, ...]) -> AbstractModel | None:
        """Return the model that `model.start` names, with the noise of these settings."""
        arguments = self.arguments["model"]
        if not arguments["start"]:
            return None
        model = read(arguments["start"])
        if type(model) is not MODELS["kaem"]:
            raise UserError(
                f"{arguments['start']} holds a {type(model).__name__}; what training can start from is a "
                "KAEM."
            )
        if model.data_shape != data_shape:
            raise UserError(
                f"{arguments['start']} makes data of shape {model.data_shape}, but the data has examples "
                f"of shape {data_shape}; give data of the same shape."
            )
        changed = {name: arguments[name] for name in ("noise", "generator_noise")}
        if self.kinds["learner"] != "encoder":  # nothing else would train it
            changed["encoder"] = None
        return dataclasses.replace(model, **changed)

    def learner(self) -> AbstractLearner:
        """Return how the model learns."""
        try:
            return _made(LEARNERS[self.kinds["learner"]], self.arguments["learner"], {})
        except ValueError as error:
            raise UserError(f"the settings do not make a learner: {error}") from error

    def plan(self) -> Plan:
        """Return how the model is trained."""
        t = self.training
        frozen = self.arguments.get("prior", {}).get("frozen", False)
        return Plan(
            learner=self.learner(),
            key=jax.random.key(t.seed),
            steps=t.steps,
            batch_size=t.batch_size,
            optimiser=self.optimiser,
            upkeep=self.upkeep,
            augmentation=self.augmentation,
            freeze=_prior if frozen else None,
            new=not self.starts_from_files,
            log_every=t.log_every,
            precision=t.precision,
            marks=(t.checkpoint_every, t.sample_every),
        )

    @property
    def starts_from_files(self) -> bool:
        """Return whether the model, or its prior, is not new."""
        return any(part.get("start") for part in self.arguments.values())


def section_of(cls: type[Section], name: str, values: dict[str, Any]) -> Section:
    """Return the section of this name as an instance of its class, or say what is wrong with it."""
    try:
        return cls(**resolved(fields(cls, name), values.get(name, {}), name))
    except UserError:
        raise
    except ValueError as error:
        raise UserError(str(error)) from error


def _prior(model: Any) -> Any:
    return model.prior


def allowed(section: str, kind: str, optional: bool = False) -> dict[str, Field]:
    """Return what a section may hold beside its kind, which is `none` where an `optional` part is left out."""
    registry: Mapping[str, Any] = MODELS if section == "model" else PARTS[section]
    if kind == _NONE and optional:
        return {}
    return fields(chosen(registry, kind, section), section) | _MORE.get(section, {})


def taken_over(prior: Any) -> dict[str, Any]:
    """Return the settings of a prior that comes from a file."""
    kind = next(name for name, cls in PRIORS.items() if type(prior) is cls)
    return {"kind": kind} | prior.settings()


def _made(constructor: Any, arguments: dict[str, Any], context: dict[str, Any]) -> Any:
    """Call a constructor with its settings, and with what else it asks for by name."""
    names = inspect.signature(constructor).parameters
    given = {name: value for name, value in context.items() if name in names}
    return constructor(**given | {n: v for n, v in arguments.items() if n in names})
