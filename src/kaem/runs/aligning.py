"""A finished run, aligned: its prior refitted to where the posterior is, in a new run folder."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import jax
import numpy as np

from ..errors import UserError
from ..files import write_atomically
from ..loading import read, read_config
from ..serialisation import save
from ..settings import Settings, merge, taken_over
from .folder import RunFolder
from .training import refuse_existing

_CHAINS = (
    2_000  # examples whose latents chains infer, unless one says otherwise; encoders infer all
)
_HELD_OUT = 10  # one latent in so many is not fitted, but judged by


@dataclass(frozen=True)
class Alignment:
    """A new run, and the mean log-prior of latents that were not fitted, in nats."""

    run: RunFolder
    examples: int
    log_prior_before: float | None  # None where latents are now sums of what they were
    log_prior_after: float


def align(
    run: RunFolder | str | PathLike[str],
    out: str | PathLike[str],
    *,
    examples: int | None = None,
    data: str | None = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> Alignment:
    """Refit the prior of a run to latents of its training data, and write the new model to `out`.

    Coordinates become those in which the latents are most nearly independent, ordered by influence, and
    the map to them a part of the generator: what is left is again a product of one-dimensional densities
    and a generator.

    **Arguments:** `examples` is how many are inferred: all by an encoder, 2,000 where chains have to;
    `data` is where the run's data are now; `say` hears of what is done.
    """
    run, path = RunFolder.open(run), Path(out)
    refuse_existing(path)
    if examples is not None and examples < 20:
        raise UserError(f"--examples must be at least 20, got {examples}.")
    model = read(run.model_file).readable("alignment").trainable()
    limit = examples if examples is not None else None if model.encoder else _CHAINS
    x = run.data(data, "train", limit, say)
    say(f"inferring latents of {len(x)} examples" + ("" if model.encoder else " by chains"))
    z = model.infer(x, jax.random.key(seed)).latents
    judged = np.arange(len(z)) % _HELD_OUT == 0
    say(f"fitting {z[~judged].shape[0]} latents of shape {z.shape[1:]}")
    moved = model.aligned(z[~judged])
    before = float(np.mean(model.prior.log_prob(z[judged]))) if z.ndim == 2 else None
    flat = z[judged] if z.ndim == 2 else z[judged].sum(axis=2)
    after = float(np.mean(moved.prior.log_prob(flat)))
    new = moved.folded().ordered()
    _write(run, RunFolder(path), new)
    return Alignment(RunFolder(path), len(x), before, after)


def _write(source: RunFolder, target: RunFolder, model: object) -> None:
    """Make the folder of the new run: what is recorded of the old one, its new prior, and the model."""
    record = source.record()
    values = Settings.from_dict(record["settings"], recorded=True).to_dict()
    changes = {"prior": taken_over(model.prior)}  # type: ignore[attr-defined]
    if model.encoder is None:  # type: ignore[attr-defined]
        changes["encoder"] = {"kind": "none"}
    else:
        changes["encoder"] = {"mixing": True}
    settings = Settings.from_dict(merge(values, changes)).to_dict()
    record |= {"settings": settings, "aligned": str(source.path.resolve())}
    config = read_config(source.model_file) | {"settings": settings}
    try:
        save(model, target.model_file, config)
        if source.history_file.is_file():
            write_atomically(target.history_file, source.history_file.read_bytes())
        write_atomically(target.config_file, json.dumps(record, indent=2).encode())
    except BaseException:
        shutil.rmtree(target.path, ignore_errors=True)  # half a run is none
        raise
