"""Commands, and settings of a run that the command line trains in seconds."""

from kaem.cli import main

SETTINGS = [
    a
    for s in (
        "data.limit=300",
        "prior.latents=1",
        "learner.samples=32",
        "training.batch_size=32",
        "training.log_every=5",
        "training.checkpoint_every=10",
        "training.sample_every=10",
        "generator.depth=1",
        "prior.grid_size=5",
        "generator.grid_size=5",
    )
    for a in ("--set", s)
]
SETTINGS.append("--no-report")  # which tests of the report look at


def kaem(*arguments, code=0):
    """Run a command, which must end with this exit code."""
    assert main([str(argument) for argument in arguments]) == code, arguments
