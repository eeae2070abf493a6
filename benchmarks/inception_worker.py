"""The FID's InceptionV3 in ONNX Runtime and OpenVINO: a worker for `inception_throughput.py`.

Runs in an environment of its own. Reads the network's nodes, weights and images from a folder, and
lines from stdin: a runtime's name runs it once over the images, `save NAME` writes its features.
"""

import importlib.metadata
import json
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import openvino
from onnx import TensorProto, helper, numpy_helper

BATCH = 8

folder, threads = Path(sys.argv[1]), int(sys.argv[2])
arrays = dict(np.load(folder / "network.npz"))
images = arrays.pop("images")
made = json.loads((folder / "nodes.json").read_text())


def model():
    graph = helper.make_graph(
        [helper.make_node(op, inputs, [output], **rest) for op, inputs, output, rest in made],
        "inception",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [BATCH, *images.shape[1:]])],
        [helper.make_tensor_value_info(made[-1][2], TensorProto.FLOAT, [BATCH, 2048, 1, 1])],
        [numpy_helper.from_array(np.ascontiguousarray(v), name) for name, v in arrays.items()],
    )
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(built)
    return built.SerializeToString()


def with_onnxruntime():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model(), options, ["CPUExecutionProvider"])
    return lambda batches: [session.run(None, {"images": batch})[0] for batch in batches]


def with_openvino():
    """As its guide advises for throughput: several requests at once, each on some of the threads."""
    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    settings |= {"PERFORMANCE_HINT": "THROUGHPUT"}
    queue = openvino.AsyncInferQueue(core.compile_model(core.read_model(model()), "CPU", settings))
    results = {}

    def keep(request, i):
        results[i] = request.get_output_tensor().data.copy()

    queue.set_callback(keep)

    def run(batches):
        for i, batch in enumerate(batches):
            queue.start_async({"images": batch}, i)
        queue.wait_all()
        return [results[i] for i in range(len(batches))]

    return run


runtimes = {"onnxruntime": with_onnxruntime(), "openvino": with_openvino()}
batches = np.split(images, len(images) // BATCH)
print(json.dumps({name: importlib.metadata.version(name) for name in runtimes}), flush=True)
for line in sys.stdin:
    *save, name = line.split()
    began = time.perf_counter()
    result = np.concatenate(runtimes[name](batches))
    seconds = time.perf_counter() - began
    if save:
        np.save(folder / f"{name}.npy", result.reshape(len(images), -1))
    print(seconds, flush=True)
