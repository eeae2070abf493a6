"""Settings and presets as version 0.1 named them, in today's names."""

from typing import Any

from ..errors import UserError, brief

_RENAMED = {  # old section and name: new section and name
    ("training", "noise"): ("model", "noise"),
    ("generator", "noise"): ("model", "generator_noise"),
    ("prior", "negative_phase"): ("learner", "negative_phase"),
    ("prior", "tolerance"): ("upkeep", "tolerance"),
    ("prior", "score_tolerance"): ("upkeep", "score_tolerance"),
    ("vae", "beta"): ("learner", "beta"),
    ("vae", "widths"): ("encoder", "widths"),
}
_SECTIONS = {"posterior": "learner", "neural_ebm": "prior", "ddpm": "model"}
_PRESETS = {  # of version 0.1, by name: what became of them
    "svhn-thermo": "is now svhn-paper-thermo",
    "cifar10-thermo": "is now cifar10-paper-thermo",
    "celeba-thermo": "is now celeba-paper-thermo",
    "mnist-uniform": "is now mnist-paper-uniform",
    "mnist-none": "is now mnist-paper-none",
    "fashion-mnist-uniform": "is now fashion-mnist-paper-uniform",
    "fashion-mnist-none": "is now fashion-mnist-paper-none",
    "svhn-fast": "is gone: `svhn` is what we recommend, `svhn-paper` what the paper did",
    "cifar10-fast": "is gone: `cifar10` is what we recommend, `cifar10-paper` what the paper did",
    "celeba-fast": "is gone: `celeba` is what we recommend, `celeba-paper` what the paper did",
}


def became(preset: str) -> str | None:
    """Return what became of a preset of version 0.1, as a sentence; None if it never was one."""
    if preset not in _PRESETS:
        return None
    return (
        f"{preset} {_PRESETS[preset]}. A run of it goes on as before, with "
        f"`kaem train {preset} --out RUN --resume`."
    )


def migrated(values: dict[str, Any], recorded: bool = False) -> dict[str, Any]:
    """Return settings in today's names; those that have them already are returned as they are.

    What was `recorded` in a run of version 0.1 holds every setting of every kind of model: what is not
    of the run's own kind is left out.
    """
    for name, section in values.items():
        if not isinstance(section, dict):
            raise UserError(f"{name[:80]} must be a table of settings, got {brief(section)}.")
    kind = values.get("model", {}).get("kind", "kaem")
    if recorded and "posterior" in values:
        others = {"vae": "vae", "neural_ebm": "neural-ebm", "ddpm": "ddpm"}
        values = {n: v for n, v in values.items() if others.get(n, kind) == kind}
        if kind in ("vae", "neural-ebm"):
            given = values.get("prior", {})
            latents = given.get("latents", 40)
            if not isinstance(latents, int):
                raise UserError(f"prior.latents must be a whole number, got {brief(latents)}.")
            count = given.get("coordinates") or 2 * latents + 1
            values = values | {"prior": {"coordinates": count}}
            values.pop("posterior" if kind == "vae" else "", None)
        if kind == "ddpm":
            values = {
                n: v for n, v in values.items() if n not in ("prior", "generator", "posterior")
            }
            training = values.get("training", {})
            values["training"] = {n: v for n, v in training.items() if n != "noise"}
    found: dict[str, dict[str, Any]] = {}
    for section, given in values.items():
        if section not in ("vae", "generator"):
            found.setdefault(_SECTIONS.get(section, section), {})
        for name, value in given.items():
            place, new = _RENAMED.get((section, name), (_SECTIONS.get(section, section), name))
            entries = found.setdefault(place, {})
            if new in entries:
                raise UserError(
                    f"{place}.{new} is given twice, once by the name it had in version 0.1, "
                    f"{section[:80]}.{name[:80]}; leave that one out."
                )
            entries[new] = value
    if "posterior" in values:
        found["learner"] = _learner(found["learner"])
    return found


def _learner(given: dict[str, Any]) -> dict[str, Any]:
    """Return a learner of what used to be a kind of chain and a criterion."""
    given = dict(given)
    kind, criterion = given.pop("kind", None), given.pop("criterion", None)
    if criterion == "thermodynamic":
        given |= {"kind": "thermodynamic", "criterion": "thermodynamic"}
        given |= {"sampler": kind} if kind else {}
    elif kind in ("ula", "mala", "sgld"):
        given |= {"kind": "langevin", "sampler": kind}
    elif kind:
        given["kind"] = kind
    return given
