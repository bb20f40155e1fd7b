"""A packed network as ONNX: the bits stay bits in the file, and are unpacked by its graph when it is loaded.

ONNX has no type of one bit, so a plane of weights is a uint8 tensor, eight connections a byte. Shift, and, cast and
reshape make ±1 of it; any runtime that folds constants does so once. What runs is then float arithmetic: the file is
small, but no faster than its runtime is. For speed run the packed file itself.
"""

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equalbits.runtime import Network, Operation, PackedModel
from equalbits.runtime.numpy_ops import grid
from equalbits.runtime.op_specs import connections

#: The version of ONNX's operators that is written: the first that can take bits apart.
OPSET = 18


def export_onnx(packed: PackedModel, path: str | os.PathLike[str]) -> None:
    """Write a packed model as an ONNX file, checked by ONNX's own checker; needs the package ``onnx``.

    It takes ``images``, float32 of (batch, channel, row, column), and gives ``logits``. Class names, mean and std go
    into its metadata as JSON.
    """
    import onnx
    from onnx import TensorProto, helper

    network = packed.network
    graph = _Graph(network)
    for place, operation in enumerate(network.operations):
        _EMIT[operation.kind](graph, place, operation)
    last = graph.nodes[-1]
    last.output[0] = "logits"
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])
        for name, shape in (("images", network.input_shape), ("logits", network.shapes[-1]))
    ]
    made = helper.make_graph(graph.nodes, "equalbits", ends[:1], ends[1:], graph.tensors)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    facts = {"classes": network.classes, "mean": network.mean, "std": network.std}
    helper.set_model_props(model, {name: json.dumps(fact) for name, fact in facts.items() if fact})
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, os.fspath(path))


class _Graph:
    """Nodes and tensors so far; value ``n`` of the network is called ``:vn``.

    A name of our own starts with a colon, which no name in a packed file holds.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []
        self._names: dict[str, str] = {}

    def node(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node; returns the name of what it gives."""
        from onnx import helper

        output = output or f":n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def tensor(self, numbers: NDArray[Any] | np.generic, name: str = "") -> str:
        """Add a constant; returns its name. The same name is stored once."""
        from onnx import numpy_helper

        name = name or f":c{len(self.tensors)}"
        name = f"{name}:stored" if name in ("images", "logits") else name
        if name not in self._names:
            self._names[name] = name
            self.tensors.append(numpy_helper.from_array(np.asarray(numbers, order="C"), name))
        return name

    def whole(self, *numbers: int) -> str:
        """A constant list of whole numbers."""
        return self.tensor(np.array(numbers, np.int64))

    def reads(self, operation: Operation) -> list[str]:
        """The names of what an operation reads."""
        return [f":v{value}" if value else "images" for value in operation.inputs]

    def real(self, operation: Operation, part: str, shape: Sequence[int]) -> str:
        """A stored tensor as float32 in this shape; narrow ones are widened in the graph."""
        name, array = operation.tensors[part], self.network.arrays(operation)[part]
        if (key := f"{_in_shape(name, shape)}:real") not in self._names:
            stored = self.tensor(array.reshape(shape), _in_shape(name, shape) if array.shape != tuple(shape) else name)
            self._names[key] = stored if array.dtype == np.float32 else self.node("Cast", stored, to=1)
        return self._names[key]

    def symbols(self, operation: Operation, shape: Sequence[int]) -> str:
        """A plane or two as −1, 0 and +1 in this shape, taken apart in the graph."""
        name, kept = operation.tensors["weight"], operation.tensors.get("kept", "")
        if (key := f"{_in_shape(name, shape)}:{kept}:symbols") not in self._names:
            width = int(np.prod(shape[1:]))
            signs = self.node("Mul", self._bits(name, width), self.tensor(np.float32(2)))
            signs = self.node("Sub", signs, self.tensor(np.float32(1)))
            if kept:
                signs = self.node("Mul", signs, self._bits(kept, width))
            self._names[key] = self.node("Reshape", signs, self.whole(*shape))
        return self._names[key]

    def _bits(self, name: str, width: int) -> str:
        """A plane as 0 and 1 of shape (filter, connection), float32."""
        plane = self.tensor(self.network.tensors[name], name)
        apart = self.node("Unsqueeze", plane, self.whole(2))
        apart = self.node("BitShift", apart, self.tensor(np.arange(8, dtype=np.uint8)), direction="RIGHT")
        apart = self.node("BitwiseAnd", apart, self.tensor(np.ones(1, np.uint8)))
        rows = self.node("Reshape", apart, self.whole(len(self.network.tensors[name]), -1))
        kept = self.node("Slice", rows, self.whole(0), self.whole(width), self.whole(1))
        return self.node("Cast", kept, to=1)


def _in_shape(name: str, shape: Sequence[int]) -> str:
    return f"{name}:{'x'.join(map(str, shape))}"


def _weighted(graph: _Graph, place: int, operation: Operation) -> None:
    (read,), settings = graph.reads(operation), operation.settings
    arrays = graph.network.arrays(operation)
    inputs = tuple(graph.network.shapes[value] for value in operation.inputs)
    filters, is_conv = len(arrays["weight"]), operation.kind == "conv"
    width = connections(settings, inputs)
    shape = [filters, inputs[0][0] // settings["groups"], *settings["kernel"]] if is_conv else [filters, width]
    bits = arrays["weight"].dtype == np.uint8
    weight = graph.symbols(operation, shape) if bits else graph.real(operation, "weight", shape)
    if is_conv:
        top, bottom, left, right = settings["padding"]
        window = {"kernel_shape": settings["kernel"], "strides": settings["stride"], "pads": (top, left, bottom, right)}
        made = graph.node("Conv", read, weight, **window, dilations=settings["dilation"], group=settings["groups"])
    else:
        made = graph.node("Gemm", read, weight, transB=1)
    tail = (1, 1) if is_conv else ()
    for part, kind in (("scale", "Mul"), ("bias", "Add")):
        if part in arrays:
            made = graph.node(kind, made, graph.real(operation, part, (arrays[part].size, *tail)))
    graph.nodes[-1].output[0] = f":v{place + 1}"


def _affine(graph: _Graph, place: int, operation: Operation) -> None:
    shape = graph.network.shapes[place + 1]
    tail = (1,) * (len(shape) - 1)
    both = graph.real(operation, "gain_shift", (2, shape[0], *tail))
    gain, shift = (graph.node("Gather", both, graph.tensor(np.int64(row), f":row{row}"), axis=0) for row in (0, 1))
    scaled = graph.node("Mul", graph.reads(operation)[0], gain)
    graph.node("Add", scaled, shift, output=f":v{place + 1}")


def _prelu(graph: _Graph, place: int, operation: Operation) -> None:
    size, shape = graph.network.arrays(operation)["slope"].size, graph.network.shapes[place + 1]
    slope = graph.real(operation, "slope", (size, *(1,) * (len(shape) - 1)))
    graph.node("PRelu", graph.reads(operation)[0], slope, output=f":v{place + 1}")


def _clamp(graph: _Graph, place: int, operation: Operation) -> None:
    bounds = (operation.settings["min"], operation.settings["max"])
    names = ["" if bound is None else graph.tensor(np.float32(bound)) for bound in bounds]
    graph.node("Clip", graph.reads(operation)[0], *names, output=f":v{place + 1}")


def _sign(graph: _Graph, place: int, operation: Operation) -> None:
    above = graph.node("GreaterOrEqual", graph.reads(operation)[0], graph.tensor(np.float32(0), ":zero"))
    plus, minus = (graph.tensor(np.float32(symbol), name) for symbol, name in ((1, ":plus"), (-1, ":minus")))
    graph.node("Where", above, plus, minus, output=f":v{place + 1}")


def _pool(graph: _Graph, place: int, operation: Operation) -> None:
    settings = operation.settings
    top, bottom, left, right = settings["padding"]
    window = {"kernel_shape": settings["kernel"], "strides": settings["stride"], "pads": (top, left, bottom, right)}
    if operation.kind == "avg_pool":
        window["count_include_pad"] = int(settings["count_padding"])
    kind = {"max_pool": "MaxPool", "avg_pool": "AveragePool"}[operation.kind]
    graph.node(kind, graph.reads(operation)[0], output=f":v{place + 1}", **window)


def _adaptive(graph: _Graph, place: int, operation: Operation) -> None:
    """A mean over windows is a product with a matrix of shares from either side."""
    (read,), (_, high, wide) = graph.reads(operation), graph.network.shapes[operation.inputs[0]]
    rows, columns = operation.settings["size"]
    if (rows, columns) == (1, 1):
        graph.node("GlobalAveragePool", read, output=f":v{place + 1}")
        return
    down = graph.node("MatMul", graph.tensor(_shares(high, rows)), read)
    graph.node("MatMul", down, graph.tensor(_shares(wide, columns).T), output=f":v{place + 1}")


def _shares(size: int, parts: int) -> NDArray[np.float32]:
    shares = np.zeros((parts, size), np.float32)
    for row, (start, stop) in zip(shares, grid(size, parts), strict=True):
        row[start:stop] = 1 / (stop - start)
    return shares


def _reshape(graph: _Graph, place: int, operation: Operation) -> None:
    shape = graph.whole(-1, *graph.network.shapes[place + 1])
    graph.node("Reshape", graph.reads(operation)[0], shape, output=f":v{place + 1}")


def _permute(graph: _Graph, place: int, operation: Operation) -> None:
    axes = [0, *(axis + 1 for axis in operation.settings["axes"])]
    graph.node("Transpose", graph.reads(operation)[0], perm=axes, output=f":v{place + 1}")


def _shuffle(graph: _Graph, place: int, operation: Operation) -> None:
    (channels, *rest), groups = graph.network.shapes[place + 1], operation.settings["groups"]
    apart = graph.node("Reshape", graph.reads(operation)[0], graph.whole(-1, groups, channels // groups, *rest))
    dealt = graph.node("Transpose", apart, perm=[0, 2, 1, 3, 4])
    graph.node("Reshape", dealt, graph.whole(-1, channels, *rest), output=f":v{place + 1}")


def _slice(graph: _Graph, place: int, operation: Operation) -> None:
    start, stop, step = (operation.settings[name] for name in ("start", "stop", "step"))
    parts = (start, stop, range(1, len(start) + 1), step)
    graph.node("Slice", graph.reads(operation)[0], *(graph.whole(*part) for part in parts), output=f":v{place + 1}")


def _pad(graph: _Graph, place: int, operation: Operation) -> None:
    settings = operation.settings
    sizes = graph.whole(0, *settings["before"], 0, *settings["after"])
    fill = graph.tensor(np.float32(settings["value"]))
    graph.node("Pad", graph.reads(operation)[0], sizes, fill, output=f":v{place + 1}")


def _plain(kind: str, **attributes: Any) -> Callable[[_Graph, int, Operation], None]:
    def emit(graph: _Graph, place: int, operation: Operation) -> None:
        graph.node(kind, *graph.reads(operation), output=f":v{place + 1}", **attributes)

    return emit


_EMIT: dict[str, Callable[[_Graph, int, Operation], None]] = {
    "conv": _weighted,
    "linear": _weighted,
    "affine": _affine,
    "prelu": _prelu,
    "relu": _plain("Relu"),
    "clamp": _clamp,
    "sign": _sign,
    "add": _plain("Add"),
    "concat": _plain("Concat", axis=1),
    "max_pool": _pool,
    "avg_pool": _pool,
    "adaptive_avg_pool": _adaptive,
    "flatten": _reshape,
    "reshape": _reshape,
    "permute": _permute,
    "channel_shuffle": _shuffle,
    "slice": _slice,
    "pad": _pad,
}
