"""Training from a folder of images that stays on disk against the same images in memory.

    .venv/bin/python benchmarks/larger_data.py FOLDER [--images 200000] [--updates 1000] [--turns 3]

Makes FOLDER, with images of 32 x 32 pixels from a seed, if it is not there. Then the model of the
`svhn` preset is trained from it, in turns, each time in a process of its own: with the images on disk
(`data.memory` as it is by default), with all of them in memory, and with the first 1,000 alone, whose
memory is that of the model. Beside the speed by the clock stands that by CPU time, which what else
the machine does changes less. Prints one JSON object.
"""

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

DATA = {"disk": [], "memory": ["data.memory=none"], "model": ["data.limit=1000"]}


def make(folder, count):
    """Write images of soft blobs on a slope of colours, with some noise, as PNG; 1,000 to a folder."""
    from PIL import Image

    y, x = np.mgrid[:32, :32] / 31
    for start in range(0, count, 1000):
        part = folder / f"{start // 1000:04}"
        part.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng([0, start])
        for i in range(start, min(start + 1000, count)):
            (u, v), ends = rng.random(2), rng.random((3, 3))
            blob = np.exp(-20 * ((x - u) ** 2 + (y - v) ** 2))[..., None]
            image = ends[0] * x[..., None] + ends[1] * (1 - x[..., None])
            image = (1 - blob) * image + blob * ends[2] + rng.normal(0, 0.02, image.shape)
            pixels = (255 * image.clip(0, 1)).astype(np.uint8)
            Image.fromarray(pixels).save(part / f"{i:07}.png", compress_level=1)


def memory(name):
    """Return what the system says of the memory of this process, in MiB."""
    return int(re.search(rf"{name}:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024


def train(folder, how, updates):
    """Train once, and print what it took."""
    import kaem
    from kaem.runs.session import Watcher
    from kaem.training import loop

    waits, windows, by_cpu, said = [], [], [], []

    class Timed(loop.Dispatch):
        def _read(self, start, stop):
            began = time.perf_counter()
            found = super()._read(start, stop)
            waits.append(time.perf_counter() - began)
            return found

    class Notes(Watcher):
        def begin(self, step, total):
            said.append(("loaded", time.perf_counter() - began))
            self.last = None

        def log(self, step, metrics, speed):
            now = time.perf_counter(), time.process_time()
            if self.last is not None:
                count, (clock, cpu) = step - self.last[0], self.last[1]
                windows.append(count / (now[0] - clock))
                by_cpu.append(count / (now[1] - cpu))
            self.last = step, now

        def say(self, message):
            print(message, file=sys.stderr)

    loop.Dispatch = Timed
    began = time.perf_counter()
    every = updates // 10
    lengths = {"log_every": every, "checkpoint_every": updates, "sample_every": updates}
    changes = [f"training.{name}={value}" for name, value in lengths.items()]
    # What is rare in a whole run would be most of a short one.
    changes += ["upkeep.alignments=0", "upkeep.focusings=0", "data.limit=none", *DATA[how]]
    with tempfile.TemporaryDirectory() as out:
        kaem.train(
            "svhn", Path(out) / "run", data=folder, steps=updates, set=changes, watcher=Notes()
        )
        digest = json.loads((Path(out) / "run" / "config.json").read_text())["data"]["sha256"]
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    report = {"updates_per_second": windows[1:], "updates_per_cpu_second": by_cpu[1:]}
    report |= {"waited": waits[2:], "sha256": digest}
    report |= {"before_training": dict(said)["loaded"], "peak": memory("VmHWM")}
    print(json.dumps(report | {"end": memory("VmRSS"), "largest_child": children}))


def one(folder, how, updates):
    command = [sys.executable, __file__, str(folder), "--updates", str(updates), "--train", how]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(child.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=200_000)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--train", choices=DATA, help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder, updates = options.folder.resolve(), options.updates
    if options.train:
        train(folder, options.train, updates)
        return
    if not folder.exists():
        make(folder, options.images)
    with tempfile.TemporaryDirectory() as cache:
        programs = Path(tempfile.gettempdir()) / "kaem-programs"  # compiled once for all turns
        os.environ |= {"XDG_CACHE_HOME": cache, "JAX_COMPILATION_CACHE_DIR": str(programs)}
        one(folder, "model", updates)  # compiles, which takes more memory than anything after it
        details = {how: [one(folder, how, updates)] for how in ("model", "disk", "memory")}
        decoded = sum(path.stat().st_size for path in Path(cache).rglob("decoded/*.npy"))
        for _ in range(options.turns - 1):
            for how in ("disk", "memory"):
                details[how].append(one(folder, how, updates))
    shutil.rmtree(programs, ignore_errors=True)

    def median(how, name):
        return float(np.median([np.median(turn[name]) for turn in details[how]]))

    speed = {how: median(how, "updates_per_second") for how in details}
    model = details["model"][0]["peak"]
    disk, inside = details["disk"], details["memory"]
    results = {
        "images": sum(1 for _ in folder.rglob("*.png")),
        "mb_of_files": sum(path.stat().st_size for path in folder.rglob("*.png")) / 1e6,
        "mb_decoded": decoded / 1e6,
        "disk_over_memory": speed["disk"] / speed["memory"],
        "disk_over_memory_by_cpu_time": median("disk", "updates_per_cpu_second")
        / median("memory", "updates_per_cpu_second"),
        "updates_per_second_disk": speed["disk"],
        "updates_per_second_memory": speed["memory"],
        "mib_above_the_model_disk": max(turn["peak"] for turn in disk) - model,
        "mib_above_the_model_disk_decoding": disk[0]["peak"] - model,
        "mib_above_the_model_memory": max(turn["peak"] for turn in inside) - model,
        "mib_of_a_decoding_process": disk[0]["largest_child"],
        "mib_of_the_model": model,
        "share_of_time_waiting_for_batches": float(
            np.median([sum(t["waited"]) / len(t["waited"]) for t in disk])
        )
        * speed["disk"]
        / (updates // 10),
        "seconds_before_training_first": disk[0]["before_training"],
        "seconds_before_training_again": float(np.median([t["before_training"] for t in disk[1:]])),
        "seconds_before_training_memory": median("memory", "before_training"),
        "same_data": len({turn["sha256"] for turn in disk + inside}) == 1,
        "cores": len(os.sched_getaffinity(0)),
    }
    print(
        json.dumps({"benchmark": "larger_data", "results": results, "details": details}, indent=2)
    )


if __name__ == "__main__":
    main()
