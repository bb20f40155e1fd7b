"""Export a packed network to ONNX. The bits stay bits in the file; its graph unpacks them when it is loaded.

ONNX has no 1-bit type, so a plane of weights is a uint8 tensor, eight connections per byte. Shift, and, cast and
reshape make ±1 of it; a runtime that folds constants does so once. The rest is float arithmetic: the file is small but
as fast as its runtime. For speed run the packed file itself.
"""

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from equalbits.runtime.engine import PackedModel
from equalbits.runtime.lengths import longest
from equalbits.runtime.limits import Limits
from equalbits.runtime.network import Network, Operation
from equalbits.runtime.op_specs import Array
from equalbits.runtime.ops import OPS

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

#: ONNX operator set written: the first with bitwise operators.
OPSET = 18


def export_onnx(packed: PackedModel, path: str | os.PathLike[str]) -> None:
    """Write a packed model as an ONNX file, validated by ONNX's checker; needs the package ``onnx``.

    The input is ``images``, float32 of (batch, channel, row, column); the output is ``logits``. Class names, mean and
    std go into the metadata as JSON.
    """
    import onnx
    from onnx import TensorProto, helper

    network = longest(packed.network)
    graph = OnnxGraph(network)
    for place, operation in enumerate(network.operations):
        OPS[operation.kind].to_onnx(graph, operation, network.shapes[place + 1])
        graph.nodes[-1].output[0] = f":v{place + 1}"
    graph.nodes[-1].output[0] = "logits"
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


class OnnxGraph:
    """An ONNX graph under construction; value ``n`` of the network is called ``:vn``.

    Names that are not in the packed file start with a colon, which no name in a packed file holds.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.nodes: list[NodeProto] = []
        self.tensors: list[TensorProto] = []
        self._names: dict[str, str] = {}
        self.constants = Limits().constants(network)

    def node(self, kind: str, *inputs: str, **attributes: object) -> str:
        """Add a node; return the name of its output."""
        from onnx import helper

        output = f":n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def constant(self, array: Array | np.generic, name: str = "") -> str:
        """Add a constant; return its name. Constants of one name are stored once."""
        from onnx import numpy_helper

        name = name or f":c{len(self.tensors)}"
        name = f"{name}:stored" if name in ("images", "logits") else name
        if name not in self._names:
            self._names[name] = name
            self.constants.spend(array.nbytes)
            self.tensors.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def int_list(self, *numbers: int) -> str:
        """Add a constant list of integers; return its name."""
        return self.constant(np.array(numbers, np.int64))

    def inputs(self, operation: Operation) -> list[str]:
        """Return the names of the values an operation reads."""
        return [f":v{value}" if value else "images" for value in operation.inputs]

    def floats(self, operation: Operation, part: str, shape: Sequence[int]) -> str:
        """Return the name of a stored tensor as float32 in this shape; the graph widens narrow ones."""
        name, array = operation.tensors[part], self.network.arrays(operation)[part]
        if (key := f"{_with_shape(name, shape)}:real") not in self._names:
            changed = array.shape != tuple(shape)
            stored = self.constant(array.reshape(shape), _with_shape(name, shape) if changed else name)
            self._names[key] = stored if array.dtype == np.float32 else self.node("Cast", stored, to=1)
        return self._names[key]

    def symbols(self, operation: Operation, shape: Sequence[int]) -> str:
        """Return the name of the weights −1, 0 and +1 in this shape; the graph unpacks the bits."""
        name, kept = operation.tensors["weight"], operation.tensors.get("kept", "")
        if (key := f"{_with_shape(name, shape)}:{kept}:symbols") not in self._names:
            width = int(np.prod(shape[1:]))
            signs = self.node("Mul", self._unpack_bits(name, width), self.constant(np.float32(2)))
            signs = self.node("Sub", signs, self.constant(np.float32(1)))
            if kept:
                signs = self.node("Mul", signs, self._unpack_bits(kept, width))
            self._names[key] = self.node("Reshape", signs, self.int_list(*shape))
        return self._names[key]

    def _unpack_bits(self, name: str, width: int) -> str:
        """Return a plane as 0 and 1 of shape (filter, connection), float32."""
        plane = self.constant(self.network.tensors[name], name)
        apart = self.node("Unsqueeze", plane, self.int_list(2))
        apart = self.node("BitShift", apart, self.constant(np.arange(8, dtype=np.uint8)), direction="RIGHT")
        apart = self.node("BitwiseAnd", apart, self.constant(np.ones(1, np.uint8)))
        rows = self.node("Reshape", apart, self.int_list(len(self.network.tensors[name]), -1))
        kept = self.node("Slice", rows, self.int_list(0), self.int_list(width), self.int_list(1))
        return self.node("Cast", kept, to=1)


def _with_shape(name: str, shape: Sequence[int]) -> str:
    return f"{name}:{'x'.join(map(str, shape))}"
