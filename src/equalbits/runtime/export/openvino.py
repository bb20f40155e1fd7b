"""Export a packed network to OpenVINO IR, with BinaryConvolution where OpenVINO's CPU plugin can run it.

BinaryConvolution takes weights of one bit and an input made by a FakeQuantize of two levels. It pads with 0, so its
sums equal the packed ones to the last bit. Everything else runs as float operations; bits are unpacked on loading.
"""

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from equalbits.runtime.engine import PackedModel
from equalbits.runtime.lengths import longest
from equalbits.runtime.limits import Limits
from equalbits.runtime.network import Network, Operation
from equalbits.runtime.op_specs import Array, Shape
from equalbits.runtime.ops import OPS

if TYPE_CHECKING:
    import openvino

#: A node of an OpenVINO graph.
OpenvinoNode = Any


def export_openvino(packed: PackedModel, path: str | os.PathLike[str], *, batch: int = 1) -> None:
    """Write ``path`` (net.xml) and the weights beside it (net.bin); needs the package ``openvino``.

    The network takes exactly ``batch`` images at a time: BinaryConvolution has a static batch size. Its input is called
    ``images``, its output ``logits``; compile it with ``INFERENCE_PRECISION_HINT`` ``f32`` for the packed logits.
    """
    import openvino as ov

    ov.save_model(build_openvino(longest(packed.network), batch), os.fspath(path), compress_to_fp16=False)


def build_openvino(network: Network, batch: int = 1) -> "openvino.Model":
    """Return the OpenVINO model of a packed network."""
    import openvino as ov

    graph = OpenvinoGraph(network, batch)
    for place, operation in enumerate(network.operations):
        graph.values[place + 1] = OPS[operation.kind].to_openvino(graph, operation, network.shapes[place + 1])
    logits = graph.op.result(graph.values[len(network.operations)], name="logits")
    logits.output(0).set_names({"logits"})
    return ov.Model([logits], [graph.values[0]], "equalbits")


class OpenvinoGraph:
    """An OpenVINO graph under construction: ``values`` holds the node of each value of the network.

    ``op`` holds the operators of opset 13, ``op1`` those of opset 1. ``sign_bits`` holds signs as 0 and 1, the input of
    BinaryConvolution.
    """

    def __init__(self, network: Network, batch: int) -> None:
        import openvino as ov
        from openvino import opset1, opset13

        self.network, self.op, self.op1 = network, opset13, opset1
        self._ov, self._batch = ov, batch
        images = opset13.parameter([batch, *network.input_shape], ov.Type.f32, name="images")
        images.output(0).set_names({"images"})
        self.values: dict[int, OpenvinoNode] = {0: images}
        self.constants = Limits().constants(network)
        self._named: dict[str, OpenvinoNode] = {}
        self.sign_bits: dict[int, OpenvinoNode] = {}

    def inputs(self, operation: Operation) -> list[OpenvinoNode]:
        """Return the nodes of the values an operation reads."""
        return [self.values[value] for value in operation.inputs]

    def reshape(self, value: OpenvinoNode, shape: Shape) -> OpenvinoNode:
        """Return a value in another shape; the batch axis stays."""
        return self.op.reshape(value, self.int_list(self._batch, *shape), False)

    def as_image(self, value: OpenvinoNode, shape: Shape) -> OpenvinoNode:
        """Return a value as (batch, channel, row, column)."""
        return value if len(shape) == 3 else self.reshape(value, (*shape, 1, 1))

    def number(self, value: float) -> OpenvinoNode:
        """Return a float32 constant."""
        return self.op.constant(np.asarray(value, np.float32))

    def int_list(self, *numbers: int) -> OpenvinoNode:
        """Return a constant list of integers."""
        return self.op.constant(np.array(numbers, np.int64))

    def constant(self, array: Array, name: str = "") -> OpenvinoNode:
        """Return a constant in its own dtype; those of one name are made once."""
        if name not in self._named:
            self.constants.spend(array.nbytes)
            node = self.op.constant(np.array(array))
            if not name:
                return node
            self._named[name] = node
        return self._named[name]

    def stored(self, array: Array) -> OpenvinoNode:
        """Return a constant as it is stored, widened to float32 in the graph."""
        constant = self.constant(array)
        return constant if array.dtype == np.float32 else self.op.convert(constant, "f32")

    def packed_bits(self, ones: Array, shape: Shape, *, lowest_first: bool) -> OpenvinoNode:
        """Return a constant of one bit per number, without gaps between rows.

        OpenVINO's own unpacking reads the highest bit of a byte first, BinaryConvolution the lowest.
        """
        self.constants.spend(ones.size // 8)
        tensor: Any = self._ov.Tensor(self._ov.Type.u1, self._ov.Shape(list(shape)))
        tensor.data[:] = np.packbits(ones.reshape(-1), bitorder="little" if lowest_first else "big")
        return self._ov.op.Constant(tensor)
