"""Inception features per second against ONNX Runtime and OpenVINO, taking turns in one run.

    .venv/bin/python benchmarks/inception_throughput.py WEIGHTS RUNTIME_PYTHON [REPEATS]

RUNTIME_PYTHON is the interpreter of an environment with onnx, onnxruntime and openvino; it runs
`inception_worker.py` beside this script, on the same network with the same folded weights, written
as a plain list of nodes. All have 64 images of 299 x 299, in batches of 8 and on all cores; ours also
resizes them, to the size they have. Prints one JSON object.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(os.cpu_count()))  # as `kaem` does

import jax
import numpy as np

from kaem.measuring import interleaved
from kaem.metrics.inception.features import Extractor
from kaem.metrics.inception.network import BLOCKS, SIZE, STEM

IMAGES, THREADS = 64, os.cpu_count()


def nodes():
    """The network as [operation, inputs, output, attributes], in ONNX's words."""
    found = []

    def add(operation, inputs, **attributes):
        output = f"{operation}_{len(found)}"
        found.append([operation, inputs, output, attributes])
        return output

    def convolve(x, convolution):
        (top, bottom), (left, right) = convolution.padding
        weights = [f"{convolution.name}.kernel", f"{convolution.name}.bias"]
        pads, strides = [top, left, bottom, right], [convolution.stride] * 2
        return add("Relu", [add("Conv", [x, *weights], pads=pads, strides=strides)])

    def pool(x, kind, stride):
        pads = [1 if stride == 1 else 0] * 4
        operation = {"max": "MaxPool", "average": "AveragePool"}[kind]
        return add(operation, [x], kernel_shape=[3, 3], pads=pads, strides=[stride] * 2)

    x = "images"
    for part in STEM:
        for convolution in part:
            x = convolve(x, convolution)
        x = pool(x, "max", 2)
    for block in BLOCKS:
        outputs = []
        for branch in block.branches:
            y = x
            for convolution in branch.chain:
                y = convolve(y, convolution)
            outputs += [convolve(y, end) for end in branch.fork] or [y]
        y = pool(x, block.pool, block.stride)
        outputs.append(convolve(y, block.pooled) if block.pooled else y)
        x = add("Concat", outputs, axis=1)
    add("GlobalAveragePool", [x])
    return found


def main(weights, python, repeats=5):
    extractor = Extractor(weights)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (IMAGES, SIZE, SIZE, 3), dtype=np.uint8)
    arrays = {"images": ((images.astype(np.float32) - 128) / 128).transpose(0, 3, 1, 2)}
    for name, folded in extractor.weights.items():
        arrays[f"{name}.kernel"] = np.asarray(folded.kernel).transpose(3, 2, 0, 1)
        arrays[f"{name}.bias"] = np.asarray(folded.bias)
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "network.npz", **arrays)
        (Path(folder) / "nodes.json").write_text(json.dumps(nodes()))
        script = Path(__file__).with_name("inception_worker.py")
        worker = subprocess.Popen(
            [python, str(script), folder, str(THREADS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        versions = json.loads(worker.stdout.readline())

        def ask(what):
            def call():
                print(what, file=worker.stdin, flush=True)
                return float(worker.stdout.readline())

            return call

        variants = {"kaem": lambda: extractor(images)}
        variants |= {name: ask(name) for name in versions}
        details = interleaved(variants, repeats, warmups=1)
        ours = extractor(images)
        differences = {}
        for name in versions:
            print(f"save {name}", file=worker.stdin, flush=True)
            worker.stdout.readline()
            theirs = np.load(Path(folder) / f"{name}.npy")
            differences[name] = float(np.max(np.abs(ours - theirs)))
        worker.stdin.close()
        worker.wait()
    median = {name: entry["median"] for name, entry in details.items()}
    best = {name: min(entry["times"]) for name, entry in details.items()}
    fastest = min(versions, key=median.get)
    results = {
        "kaem_over_fastest": median["kaem"] / median[fastest],
        "kaem_over_fastest_best": best["kaem"] / min(best[name] for name in versions),
        "fastest": fastest,
        "images_per_second": {name: IMAGES / seconds for name, seconds in median.items()},
        "largest_difference": differences,
        "threads": THREADS,
        "versions": {"jax": jax.__version__, **versions},
    }
    report = {"benchmark": "inception_throughput", "results": results, "details": details}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
