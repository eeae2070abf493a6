"""A small training, to be run by one process or several: `python -m support.processes LEARNER ADDRESS N I`."""

import json
import sys

from kaem.processes import connect
from support.chains import THERMO, coloured, small
from support.encoders import ENCODED

STEPS = {"steps": 50, "log_every": 10, "checkpoint_every": 50, "sample_every": 50}


def curve(learner: str) -> list[float]:
    """Return the losses of fifty updates."""
    from kaem.settings import Settings, merge
    from kaem.training.loop import updates
    from kaem.training.plan import initial_state

    settings = {
        "importance": small({"kind": "importance", "samples": 32}, prior={"kind": "univariate"}),
        "persistent": small({"persistent": True}),
        "tempered": small(THERMO | {"persistent": True, "criterion": "tempered"}),
        "encoder": Settings.from_dict(merge(ENCODED, {"training": {"batch_size": 8}})),
    }[learner]
    settings = Settings.from_dict(merge(settings.to_dict(), {"training": STEPS}))
    x, plan = coloured(), settings.plan()
    state = initial_state(settings.model(x.shape[1:]), plan, len(x))
    found = [boundary.metrics for boundary in updates(state, x, plan)]
    return [metrics["loss"] for metrics in found if metrics is not None]


if __name__ == "__main__":
    name, address, processes, process = sys.argv[1:]
    if int(processes) > 1:
        connect(address, int(processes), int(process))
    print(json.dumps(curve(name)))
