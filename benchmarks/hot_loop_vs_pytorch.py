"""The Langevin hot loop of the `svhn-paper` preset against PyTorch eager, taking turns in one run.

    .venv/bin/python benchmarks/hot_loop_vs_pytorch.py TORCH_PYTHON [REPEATS]

TORCH_PYTHON is the interpreter of an environment with torch 2.13.0 (CPU); it runs
`pytorch_worker.py` beside this script. Prints one JSON object.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(os.cpu_count()))  # as `kaem` does

from kaem.bench.training import gemm, hot_loops, preset
from kaem.measuring import interleaved


def main(python, repeats=9):
    script = Path(__file__).with_name("pytorch_worker.py")
    worker = subprocess.Popen(
        [python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    version = worker.stdout.readline().strip()

    def ask(what):
        def call():
            print(what, file=worker.stdin, flush=True)
            return float(worker.stdout.readline())

        return call

    loops, _ = hot_loops(preset("svhn-paper"))
    variants = {
        "kaem": loops["hot_loop"],
        "pytorch": ask("run"),
        "gemm_kaem": gemm(),
        "gemm_pytorch": ask("gemm"),
    }
    details = interleaved(variants, repeats)
    worker.stdin.close()
    median = {name: entry["median"] for name, entry in details.items()}
    best = {name: min(entry["times"]) for name, entry in details.items()}
    results = {
        "kaem_over_pytorch": median["kaem"] / median["pytorch"],
        "kaem_over_pytorch_best": best["kaem"] / best["pytorch"],
        "torch": version,
    }
    report = {"benchmark": "hot_loop_vs_pytorch", "results": results, "details": details}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
