"""An ONNX graph in the making, and the packages that it needs."""

from importlib import import_module
from typing import Any

import numpy as np

from ... import __version__
from ...errors import UserError

_OPSET, _IR = 17, 8  # of 2022, so that old runtimes read the files

_TAKES = {"u": "quantiles u in [0, 1]", "z": "latents z"}

Operand = str | np.ndarray | np.generic


def package(name: str) -> Any:
    """Return a package of the extra `export`, imported when it is needed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UserError(
            f"ONNX needs the package {name}, which is not installed; install it with "
            "`pip install 'kaem[export]'`."
        ) from error


class Graph:
    """Nodes and constants in the order of their making; a call adds a node and names its output."""

    def __init__(self) -> None:
        self.onnx = package("onnx")
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def __call__(self, operator: str, *operands: Operand, **attributes: Any) -> str:
        inputs = [x if isinstance(x, str) else self._constant(x) for x in operands]
        output = f"{operator}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, [output], **attributes))
        return output

    def _constant(self, value: np.ndarray | np.generic) -> str:
        name = f"constant_{len(self.constants)}"
        whole = np.asarray(value, order="C")
        self.constants.append(self.onnx.numpy_helper.from_array(whole, name))
        return name

    def reshape(self, x: str, *shape: int) -> str:
        """Add a reshape, with any number of samples on the first axis."""
        return self("Reshape", x, np.array([-1, *shape]))

    def sum(self, x: str, axis: int) -> str:
        return self("ReduceSum", x, np.array([axis]), keepdims=0)

    def split(self, x: str, number: int) -> list[str]:
        """Add a split into parts along the first axis, which stays."""
        names = [f"Split_{len(self.nodes)}_{i}" for i in range(number)]
        self.nodes.append(self.onnx.helper.make_node("Split", [x], names, axis=0))
        return names

    def part(self, x: str, start: int, end: int) -> str:
        """Add a slice of the last axis."""
        return self("Slice", x, *(np.array([i]) for i in (start, end, -1)))

    def model(self, x: str, takes: str, shape: tuple[int, ...], made: tuple[int, ...]) -> bytes:
        """Return the graph from the input `takes`, of `shape` for each sample, to `x` as a file."""
        helper, kind = self.onnx.helper, self.onnx.TensorProto.FLOAT
        self.nodes.append(helper.make_node("Identity", [x], ["x"]))
        graph = helper.make_graph(
            self.nodes,
            "kaem",
            [helper.make_tensor_value_info(takes, kind, ["n", *shape])],
            [helper.make_tensor_value_info("x", kind, ["n", *made])],
            self.constants,
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", _OPSET)],
            ir_version=_IR,
            producer_name="kaem",
            producer_version=__version__,
            doc_string=f"A Kolmogorov-Arnold energy model: {_TAKES[takes]} to data x.",
        )
        self.onnx.checker.check_model(model, full_check=True)
        return model.SerializeToString(deterministic=True)
