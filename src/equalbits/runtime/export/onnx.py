"""Export a packed network to ONNX. The bits stay bits in the file; its graph unpacks them when it is loaded.

ONNX has no 1-bit type, so a plane of weights is a uint8 tensor, eight connections per byte. Shift, and, cast and
reshape make ±1 of it; a runtime that folds constants does so once. The rest is float arithmetic: the file is small but
as fast as its runtime. For speed run the packed file itself.
"""

import json
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from equalbits.runtime.engine import PackedModel
from equalbits.runtime.export_graph import FLOAT, ExportGraph, Node
from equalbits.runtime.lengths import longest
from equalbits.runtime.network import Network
from equalbits.runtime.op_specs import Array

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
    graph = _OnnxGraph(network)
    graph.add_operations()
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


class _OnnxGraph(ExportGraph):
    """Nodes and stored tensors; names that are not in the packed file start with a colon, which no name there holds."""

    def __init__(self, network: Network) -> None:
        super().__init__(network, "images")
        self.nodes: list[NodeProto] = []
        self.tensors: list[TensorProto] = []

    def node(self, kind: str, *inputs: Node | float | Sequence[int], **attributes: Any) -> Node:
        from onnx import helper

        output = f":n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(map(self.as_node, inputs)), [output], **attributes))
        return output

    def store(self, array: Array, name: str) -> Node:
        from onnx import numpy_helper

        name = f"{name}:stored" if name in ("images", "logits") else name or f":c{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(array, name))
        return name

    def bits(self, name: str, shape: Sequence[int]) -> Node:
        apart = self.node("Unsqueeze", self.constant(self.network.tensors[name], name), (2,))
        apart = self.node("BitShift", apart, self.constant(np.arange(8, dtype=np.uint8)), direction="RIGHT")
        apart = self.node("BitwiseAnd", apart, self.constant(np.ones(1, np.uint8)))
        rows = self.node("Reshape", apart, (shape[0], -1))
        kept = self.node("Slice", rows, (0,), (math.prod(shape[1:]),), (1,))
        return self.node("Reshape", self.node("Cast", kept, to=FLOAT), shape)
