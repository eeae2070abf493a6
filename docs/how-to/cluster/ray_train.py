"""Two machines with four GPUs each, one process on each: python ray_train.py, in a Ray cluster."""

import os
import subprocess
import sys
import time

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

PROCESSES, GPUS, CPUS = 2, 4, 8
DATA = os.environ.get("DATA", "/shared/data/svhn.npz")
RUN = os.environ.get("RUN", "/shared/runs/svhn")
AGAIN = 75  # stopped in good order, or another process was lost
LOSSES = 10  # of tasks or machines, after which something is wrong


def command(address: str, process: int) -> list[str]:
    """Return what one process runs."""
    return [
        *("kaem", "train", "svhn", "--data", DATA, "--out", RUN, "--resume", "auto"),
        *("--set", "training.batch_size=200", "--distributed", address),
        *("--processes", str(PROCESSES), "--process-id", str(process)),
    ]


# Ray would start one task again by itself; one process alone cannot go on.
@ray.remote(max_retries=0, num_cpus=CPUS, num_gpus=GPUS)
def address() -> str:
    return f"{ray.util.get_node_ip_address()}:4000"


@ray.remote(max_retries=0, num_cpus=CPUS, num_gpus=GPUS)
def train(where: str, process: int) -> int:
    """Run one process to its end, and return its exit code."""
    running = subprocess.Popen(command(where, process))
    try:
        return running.wait()
    finally:
        running.terminate()  # if the task was cancelled
        running.wait()


def attempt() -> list[int]:
    """Run all processes once, each on a machine of its own; a lost one has the code -1."""
    group = placement_group([{"CPU": CPUS, "GPU": GPUS}] * PROCESSES, strategy="STRICT_SPREAD")
    places = [
        {
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=i
            )
        }
        for i in range(PROCESSES)
    ]
    codes = []
    try:
        ray.get(group.ready())
        first = ray.get(address.options(**places[0]).remote())
        tasks = [train.options(**place).remote(first, i) for i, place in enumerate(places)]
        for task in tasks:
            try:
                codes.append(ray.get(task))
            except RayError:
                codes.append(-1)
    except RayError:  # a machine was lost before all had begun
        codes.append(-1)
    finally:
        remove_placement_group(group)
    return codes


def main() -> int:
    ray.init()
    losses = 0
    while True:
        codes = attempt()
        mistakes = [code for code in codes if code in (1, 2)]
        if mistakes or not any(codes):
            return max(mistakes, default=0)
        losses += any(code != AGAIN for code in codes)
        if losses > LOSSES:
            return AGAIN
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
