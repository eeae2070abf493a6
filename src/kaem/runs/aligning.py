"""A finished run, aligned: its prior refitted to where the posterior is, in a new run folder."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike

import jax

from ..errors import UserError
from ..files import write_atomically
from ..loading import read, read_config
from ..priors.alignment import judged, mean_log_prob
from ..serialisation import save
from ..settings import Settings, merge, taken_over
from .folder import RunFolder, identity
from .locking import writing
from .training import refuse_existing

_CHAINS = (
    2_000  # examples whose latents chains infer, unless one says otherwise; encoders infer all
)


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
    run, target = RunFolder.open(run), RunFolder(out)
    refuse_existing(target.path)
    if examples is not None and examples < 20:
        raise UserError(f"--examples must be at least 20, got {examples}.")
    with writing(target):
        refuse_existing(target.path)
        return _aligned(run, target, examples, data, seed, say)


def _aligned(
    run: RunFolder,
    target: RunFolder,
    examples: int | None,
    data: str | None,
    seed: int,
    say: Callable[[str], None],
) -> Alignment:
    model = read(run.model_file).readable("alignment").trainable()
    limit = examples if examples is not None else None if model.encoder else _CHAINS
    x = run.data(data, "train", limit, say)
    say(f"inferring latents of {len(x)} examples" + ("" if model.encoder else " by chains"))
    z = model.infer(x, jax.random.key(seed)).latents
    kept, left_out = z[~judged(len(z))], z[judged(len(z))]
    say(f"fitting {len(kept)} latents of shape {z.shape[1:]}")
    try:
        moved = model.aligned(kept)
    except ValueError as error:  # too few, or all alike
        raise UserError(f"{run.path} cannot be aligned to {len(x)} examples: {error}") from error
    flat = left_out if z.ndim == 2 else left_out.sum(axis=2)
    before = mean_log_prob(model.prior, flat) if z.ndim == 2 else None
    after = mean_log_prob(moved.prior, flat)
    if before is not None and not after > before:
        raise UserError(
            f"nothing was written: aligned to {len(kept)} latents, {len(left_out)} others would be less "
            f"likely (log p {after:.2f}, as it is {before:.2f}). The prior is where the latents are, or "
            "they are too few to tell; give more with --examples or --data."
        )
    _write(run, target, moved.folded().ordered())
    return Alignment(target, len(x), before, after)


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
    own = {"settings": settings, "run": identity(settings, record["data"])}
    record |= own | {"aligned": str(source.path.resolve())}
    config = read_config(source.model_file) | own
    try:
        target.start_file.unlink(missing_ok=True)  # a kill may have left that of another run
        save(model, target.model_file, config)
        if source.history_file.is_file():
            write_atomically(target.history_file, source.history_file.read_bytes())
        write_atomically(target.config_file, json.dumps(record, indent=2).encode())
    except BaseException:
        shutil.rmtree(target.path, ignore_errors=True)  # half a run is none
        raise
