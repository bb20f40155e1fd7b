"""Export a packed network to OpenVINO IR, with BinaryConvolution where OpenVINO's CPU plugin can run it.

BinaryConvolution takes weights of one bit and an input made by a FakeQuantize of two levels. It pads with 0, so its
sums equal the packed ones to the last bit. Everything else runs as float operations; bits are unpacked on loading.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from equalbits.runtime.bits import unpack_bits, unpack_symbols
from equalbits.runtime.engine import PackedModel
from equalbits.runtime.export_graph import ExportGraph, Node
from equalbits.runtime.lengths import longest
from equalbits.runtime.network import Network
from equalbits.runtime.op_specs import Array, ChainOp, Operation
from equalbits.runtime.ops.embedding import ONNX_INT64

if TYPE_CHECKING:
    import openvino

#: FakeQuantize returns its upper level above its edge, not at it. The largest normal number below 0 puts both zeros
#: above the edge, as in numpy.
_EDGE = float(-np.finfo(np.float32).tiny)
#: OpenVINO's names of ONNX's operators that are not the same in lower case.
_NAMES = {"Mul": "multiply", "Sub": "subtract", "Div": "divide", "Where": "select", "GreaterOrEqual": "greater_equal"}


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
    from openvino import opset13

    images = opset13.parameter([batch, *network.input_shape], ov.Type.f32, name="images")
    images.output(0).set_names({"images"})
    logits = opset13.result(_OpenvinoGraph(network, images).add_operations(), name="logits")
    logits.output(0).set_names({"logits"})
    return ov.Model([logits], [images], "equalbits")


class _OpenvinoGraph(ExportGraph):
    """Nodes of opset 13, and pools of opset 1, which return one output."""

    def __init__(self, network: Network, images: Node) -> None:
        import openvino as ov
        from openvino import opset1, opset13

        super().__init__(network, images)
        self._ov, self._op, self._op1 = ov, opset13, opset1
        self._sign_bits: dict[int, Node] = {}
        self._rules = self._make_rules()

    def node(self, kind: str, *inputs: Node | float | Sequence[int], **attributes: Any) -> Node:
        rule = self._rules.get(kind) or getattr(self._op, _NAMES.get(kind, kind.lower()))
        lists = {name: list(given) if isinstance(given, tuple) else given for name, given in attributes.items()}
        return rule(*map(self.as_node, inputs), **lists)

    def store(self, array: Array, name: str) -> Node:
        return self._op.constant(np.array(array))

    def bits(self, name: str, shape: Sequence[int]) -> Node:
        ones = unpack_bits(self.network.tensors[name], math.prod(shape[1:]))
        return self._op.convert(self._packed_bits(ones, shape, lowest_first=False), "f32")

    def multiply_signs(self, operation: Operation, full: Sequence[int]) -> Node | None:
        """Return a BinaryConvolution, which has no groups and needs whole bytes of channels.

        Pruned weights take two: one with +1 and one with −1 in the place of 0, halved.
        """
        (value,), settings, arrays = operation.inputs, operation.settings, self.network.arrays(operation)
        inputs, is_sign = self.network.shapes[value], value and self.network.operations[value - 1].kind == "sign"
        if not is_sign or arrays["weight"].dtype != np.uint8 or inputs[0] % 8 or settings.get("groups", 1) > 1:
            return None
        if len(inputs) not in (1, 3) or (len(inputs) == 3 and operation.kind == "linear"):
            return None
        full = (*full, 1, 1)[:4]
        symbols = unpack_symbols(arrays["weight"], arrays.get("kept"), math.prod(full[1:]))
        stride, dilation = (list(settings.get(name, (1, 1))) for name in ("stride", "dilation"))
        top, bottom, left, right = settings.get("padding", (0, 0, 0, 0))
        window = stride, [top, left], [bottom, right], dilation, "xnor-popcount", 0.0
        parts = [
            self._op.binary_convolution(self._signs(value), self._packed_bits(ones, full, lowest_first=True), *window)
            for ones in ([symbols == 1] if symbols.all() else [symbols >= 0, symbols == 1])
        ]
        made = parts[0] if len(parts) == 1 else self.node("Mul", self.node("Add", *parts), 0.5)
        return made if operation.kind == "conv" else self.node("Reshape", made, (-1, full[0]))

    def _signs(self, value: int) -> Node:
        """Return a sign as 0 and 1, by a FakeQuantize of two levels."""
        if value not in self._sign_bits:
            (source,), shape = self.network.operations[value - 1].inputs, self.network.shapes[value]
            image = self.values[source]
            if len(shape) == 1:
                image = self.node("Reshape", image, (-1, *shape, 1, 1))
            if _comes_from_move(self.network, source):  # without a pooling, OpenVINO writes out of bounds
                image = self._op1.max_pool(image, [1, 1], [0, 0], [0, 0], [1, 1])
            edge, low, high = map(self.as_node, (_EDGE, 0.0, 1.0))
            self._sign_bits[value] = self._op.fake_quantize(image, edge, edge, low, high, 2)
        return self._sign_bits[value]

    def _packed_bits(self, ones: Array, shape: Sequence[int], *, lowest_first: bool) -> Node:
        """Return a constant of one bit per number, without gaps between rows.

        OpenVINO's own unpacking reads the highest bit of a byte first, BinaryConvolution the lowest.
        """
        self.spend(ones.size // 8)
        tensor: Any = self._ov.Tensor(self._ov.Type.u1, self._ov.Shape(list(shape)))
        tensor.data[:] = np.packbits(ones.reshape(-1), bitorder="little" if lowest_first else "big")
        return self._ov.op.Constant(tensor)

    def _make_rules(self) -> Mapping[str, Callable[..., Node]]:
        """Return the ONNX operators whose inputs or attributes differ."""
        op, op1 = self._op, self._op1

        def clip(value: Node, low: Node, high: Node) -> Node:
            value = value if low == "" else op.maximum(value, low)
            return value if high == "" else op.minimum(value, high)

        def pad(value: Node, sizes: Node, fill: Node) -> Node:
            before, after = np.split(sizes.get_data(), 2)
            return op.pad(value, op.constant(before), op.constant(after), "constant", fill)

        def conv(value: Node, weight: Node, group: int, strides: list[int], pads: list[int], **rest: list[int]) -> Node:
            convolve = op.convolution if group == 1 else op.group_convolution
            if group > 1:
                filters, *sizes = weight.output(0).shape
                weight = self.node("Reshape", weight, (group, filters // group, *sizes))
            return convolve(value, weight, strides, pads[:2], pads[2:], rest["dilations"])

        return {
            "AveragePool": lambda value, kernel_shape, strides, pads, count_include_pad: op1.avg_pool(
                value, strides, pads[:2], pads[2:], kernel_shape, not count_include_pad
            ),
            "Cast": lambda value, to: op.convert(value, "i64" if to == ONNX_INT64 else "f32"),
            "Clip": clip,
            "Concat": lambda *values, axis: op.concat([*values], axis),
            "Conv": conv,
            "Gather": lambda table, places, axis: op.gather(table, places, op.constant(np.int64(axis))),
            "GlobalAveragePool": lambda value: op.reduce_mean(value, self.as_node((2, 3)), True),
            "MatMul": lambda first, second: op.matmul(first, second, False, False),
            "MaxPool": lambda value, kernel_shape, strides, pads: op1.max_pool(
                value, strides, pads[:2], pads[2:], kernel_shape
            ),
            "Pad": pad,
            "Reciprocal": lambda value: op.divide(self.as_node(1.0), value),
            "ReduceMean": lambda value, axes: op.reduce_mean(value, axes, True),
            "Reshape": lambda value, shape: op.reshape(value, shape, False),
            "Round": lambda value: op.round(value, "HALF_TO_EVEN"),
            "Slice": lambda value, start, stop, axes, step: op.slice(value, start, stop, step, axes),
            "Transpose": lambda value, perm: op.transpose(value, self.as_node(perm)),
        }


def _comes_from_move(network: Network, value: int) -> bool:
    """Return whether a value is made by an operation that moves numbers, with elementwise ones behind it."""
    seen, wanted = set[int](), [value]
    while wanted:
        value = wanted.pop()
        spec = network.operations[value - 1].spec if value else None
        if spec is not None and spec.moves:
            return True
        if isinstance(spec, ChainOp) and value not in seen:
            wanted.extend(network.operations[value - 1].inputs)
        seen.add(value)
    return False
