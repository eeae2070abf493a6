"""How chains mix on the posteriors of examples, and what the latents say, as a metric."""

from functools import partial
from typing import Any

import jax
import numpy as np

from . import figures
from .diagnostics import comparable, posterior_diagnostics
from .metric import Entry, Examples, Metric, finite

_MIXED = 1.05  # r_hat above which chains are not to be trusted


def _posterior(source: Examples) -> dict[str, Entry]:
    settings: dict[str, Any] = {"chains": 4, "steps": source.request.steps or 200, "bins": 16}
    key = jax.random.key(source.request.seed)
    found = posterior_diagnostics(source.model, source.x, key=key, **settings)
    source.figures["latents.png"] = partial(figures.latents, found)
    about: Entry = source.about | {"effort": settings}
    entries: dict[str, Entry] = {
        "chain_ess": {"value": float(np.median(found["ess"]))},
        "r_hat": {"value": float(np.max(found["r_hat"]))},
        "acceptance": {"value": float(np.mean(found["acceptance"]))},
        "active_latents": {"value": found["active_coordinates"]},
    }
    for name in ("information", "mismatch"):  # of all latents together
        error = float(np.sqrt(np.sum(np.square(found[f"{name}_error"]))))
        entries[name] = finite({"value": float(np.sum(found[name])), "error": error})
    if entries["r_hat"]["value"] > _MIXED:
        about["why"] = (
            f"chains have not mixed (r_hat {entries['r_hat']['value']:.2f}, above {_MIXED}): what they say "
            "about latents depends on where they started. Try more --steps."
        )
    return {name: entry | about for name, entry in entries.items()}


POSTERIOR = Metric(
    "how chains mix on posteriors, how many latents are active, and where the prior is off",
    "examples",
    _posterior,
    options=("steps",),
    check=lambda model, request: comparable(model),
    flag="--posterior",
)
