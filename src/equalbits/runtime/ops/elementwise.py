"""Elementwise operations: affine, PReLU, ReLU, clamp, sign and the sum of two values.

The native engine fuses all but sign into the chain behind a convolution or pooling. A sign ends a chain: what only
binary layers read is written as one bit per number.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from equalbits.runtime import op_specs
from equalbits.runtime.op_specs import (
    Array,
    ChainOp,
    ElementwiseOp,
    Floats,
    Setting,
    Settings,
    Shape,
    Shapes,
    Tensors,
)

if TYPE_CHECKING:
    from equalbits.runtime.export.onnx import OnnxGraph
    from equalbits.runtime.export.openvino import OpenvinoGraph, OpenvinoNode
    from equalbits.runtime.lower import Lowering
    from equalbits.runtime.network import Network, Operation

#: OpenVINO's FakeQuantize returns its upper level above its edge, not at it. The largest normal number below 0 puts
#: both zeros above the edge, as in numpy.
_FAKE_QUANTIZE_EDGE = float(-np.finfo(np.float32).tiny)


def _per_channel(vector: Array, value: Floats) -> Floats:
    return vector.astype(np.float32).reshape(-1, *[1] * (value.ndim - 2))


class _Affine(ChainOp):
    """``value · gain + shift`` per channel, or per entry of the last of two axes."""

    kind = "affine"
    tensors = ("gain_shift",)
    settings: ClassVar = {"axis": Setting(op_specs.axis, 0)}

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        axis = settings["axis"]
        if axis and (len(inputs[0]), axis) != (2, 1):
            raise ValueError(f"has axis={axis} on a value of shape {inputs[0]}: only a value of two axes has axis 1")
        op_specs.check_vector("gain_shift", tensors["gain_shift"], {(2, inputs[0][axis])})
        return inputs[0]

    def run(self, values: Sequence[Floats], tensors: Tensors, settings: Settings) -> Floats:
        tail = (1,) * (values[0].ndim - 2 - settings["axis"])
        gain, shift = (row.astype(np.float32).reshape(-1, *tail) for row in tensors["gain_shift"])
        result: Floats = values[0] * gain + shift
        return result

    def fields(self, lowering: "Lowering", operation: "Operation", value: int, number: str) -> dict[str, int]:
        rows, axis = lowering.network.arrays(operation)["gain_shift"], operation.settings["axis"]
        names = (f"GAIN{number}", f"SHIFT{number}")
        return {name: lowering.vector(row, value, axis) for name, row in zip(names, rows, strict=True)}

    def to_onnx(self, graph: "OnnxGraph", operation: "Operation", shape: Shape) -> None:
        axis = operation.settings["axis"]
        both = graph.floats(operation, "gain_shift", (2, shape[axis], *(1,) * (len(shape) - 1 - axis)))
        gain, shift = (graph.node("Gather", both, graph.constant(np.int64(i), f":row{i}"), axis=0) for i in (0, 1))
        graph.node("Add", graph.node("Mul", *graph.inputs(operation), gain), shift)

    def to_openvino(self, graph: "OpenvinoGraph", operation: "Operation", shape: Shape) -> "OpenvinoNode":
        tail = (1,) * (len(shape) - 1 - operation.settings["axis"])
        gain, shift = (graph.stored(row.reshape(1, -1, *tail)) for row in graph.network.arrays(operation)["gain_shift"])
        return graph.op.add(graph.op.multiply(*graph.inputs(operation), gain), shift)


class _PReLU(ChainOp):
    """The value where it is at least 0, else ``value · slope``."""

    kind = "prelu"
    tensors = ("slope",)

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        op_specs.check_vector("slope", tensors["slope"], {(1,), (inputs[0][0],)})
        return inputs[0]

    def run(self, values: Sequence[Floats], tensors: Tensors, settings: Settings) -> Floats:
        return np.where(values[0] >= 0, values[0], values[0] * _per_channel(tensors["slope"], values[0]))

    def fields(self, lowering: "Lowering", operation: "Operation", value: int, number: str) -> dict[str, int]:
        slope = lowering.network.arrays(operation)["slope"]
        return {f"SLOPE{number}": lowering.vector(slope, value)}

    def to_onnx(self, graph: "OnnxGraph", operation: "Operation", shape: Shape) -> None:
        size = graph.network.arrays(operation)["slope"].size
        slope = graph.floats(operation, "slope", (size, *(1,) * (len(shape) - 1)))
        graph.node("PRelu", *graph.inputs(operation), slope)

    def to_openvino(self, graph: "OpenvinoGraph", operation: "Operation", shape: Shape) -> "OpenvinoNode":
        slope = np.broadcast_to(graph.network.arrays(operation)["slope"], shape[:1])
        return graph.op.prelu(*graph.inputs(operation), graph.stored(slope))


class _Clamp(ChainOp):
    """The value, not below ``min`` and not above ``max``."""

    kind = "clamp"
    settings: ClassVar = {name: Setting(op_specs.optional_number) for name in ("min", "max")}

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        low, high = settings["min"], settings["max"]
        if low is not None and high is not None and low > high:
            raise ValueError(f"has min={low} above max={high}")
        return inputs[0]

    def run(self, values: Sequence[Floats], tensors: Tensors, settings: Settings) -> Floats:
        low, high = settings["min"], settings["max"]
        value = values[0] if low is None else np.maximum(values[0], np.float32(low))
        return value if high is None else np.minimum(value, np.float32(high))

    def fields(self, lowering: "Lowering", operation: "Operation", value: int, number: str) -> dict[str, int]:
        low, high = operation.settings.get("min", 0.0), operation.settings.get("max")
        limits = [-np.inf if low is None else low, np.inf if high is None else high]
        return {"CLAMP": lowering.plan.tensor(np.array(limits, np.float32))}

    def to_onnx(self, graph: "OnnxGraph", operation: "Operation", shape: Shape) -> None:
        limits = (operation.settings["min"], operation.settings["max"])
        names = ["" if limit is None else graph.constant(np.float32(limit)) for limit in limits]
        graph.node("Clip", *graph.inputs(operation), *names)

    def to_openvino(self, graph: "OpenvinoGraph", operation: "Operation", shape: Shape) -> "OpenvinoNode":
        most = float(np.finfo(np.float32).max)
        low, high = operation.settings["min"], operation.settings["max"]
        limits = (-most if low is None else low, most if high is None else high)
        return graph.op.clamp(*graph.inputs(operation), *limits)


class _ReLU(_Clamp):
    """The value, not below 0."""

    kind = "relu"
    settings: ClassVar = {}
    aten: ClassVar = {"relu.default": ()}

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        return inputs[0]

    def run(self, values: Sequence[Floats], tensors: Tensors, settings: Settings) -> Floats:
        return np.maximum(values[0], np.float32(0))

    def slot(self, lowering: "Lowering", place: int) -> str:
        """Return the slot of a clamp, which ends the chain; where more follows, that of a PReLU."""
        more = [lowering.is_elementwise(reader) for reader in lowering.readers[place + 1]]
        return "prelu" if more == [True] else "clamp"

    def fields(self, lowering: "Lowering", operation: "Operation", value: int, number: str) -> dict[str, int]:
        return {f"RELU{number}": 1} if number.isdigit() else super().fields(lowering, operation, value, number)

    def to_onnx(self, graph: "OnnxGraph", operation: "Operation", shape: Shape) -> None:
        graph.node("Relu", *graph.inputs(operation))

    def to_openvino(self, graph: "OpenvinoGraph", operation: "Operation", shape: Shape) -> "OpenvinoNode":
        return graph.op.relu(*graph.inputs(operation))


class _Sign(ElementwiseOp):
    """+1 where the value is at least 0, else −1."""

    kind = "sign"

    def run(self, values: Sequence[Floats], tensors: Tensors, settings: Settings) -> Floats:
        return np.where(values[0] >= 0, np.float32(1), np.float32(-1))

    def lower(self, lowering: "Lowering", place: int, operation: "Operation") -> None:
        fields = {"IN": lowering.as_real(operation.inputs[0])}
        if lowering.read_as_bits(place) and place + 1 not in lowering.bits:
            lowering.bits[place + 1] = fields["OUT_BITS"] = lowering.new_bits(place + 1)
        if lowering.read_as_real(place):
            fields |= {"OUT": lowering.write_real(place + 1), "SIGN_REAL": 1}
        lowering.plan.step("CHAIN", **fields)

    def to_onnx(self, graph: "OnnxGraph", operation: "Operation", shape: Shape) -> None:
        above = graph.node("GreaterOrEqual", *graph.inputs(operation), graph.constant(np.float32(0), ":zero"))
        plus, minus = (graph.constant(np.float32(symbol), name) for symbol, name in ((1, ":plus"), (-1, ":minus")))
        graph.node("Where", above, plus, minus)

    def to_openvino(self, graph: "OpenvinoGraph", operation: "Operation", shape: Shape) -> "OpenvinoNode":
        """Emit a select for readers of floats, and a FakeQuantize of two levels for BinaryConvolution."""
        (value,) = graph.inputs(operation)
        if len(shape) in (1, 3):
            edge, low, high = (graph.number(level) for level in (_FAKE_QUANTIZE_EDGE, 0, 1))
            image = graph.as_image(value, shape)
            if _comes_from_move(graph.network, operation.inputs[0]):  # without a pooling, OpenVINO writes out of bounds
                image = graph.op1.max_pool(image, [1, 1], [0, 0], [0, 0], [1, 1])
            graph.sign_bits[len(graph.values)] = graph.op.fake_quantize(image, edge, edge, low, high, 2)
        return graph.op.select(graph.op.greater_equal(value, graph.number(0)), graph.number(1), graph.number(-1))


def _comes_from_move(network: "Network", value: int) -> bool:
    """Return whether a value is made by an operation that moves numbers, with elementwise ones behind it."""
    from equalbits.runtime.ops import OPS

    seen, wanted = set[int](), [value]
    while wanted:
        value = wanted.pop()
        spec = OPS[network.operations[value - 1].kind] if value else None
        if spec is not None and spec.moves:
            return True
        if isinstance(spec, ChainOp) and value not in seen:
            wanted.extend(network.operations[value - 1].inputs)
        seen.add(value)
    return False


class _Add(ChainOp):
    """The sum of two values."""

    kind = "add"
    inputs = (2, 2)

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        if inputs[0] != inputs[1]:
            raise ValueError(f"adds values of shape {inputs[0]} and {inputs[1]}: they must be the same")
        return inputs[0]

    def run(self, values: Sequence[Floats], tensors: Tensors, settings: Settings) -> Floats:
        return values[0] + values[1]

    def slot(self, lowering: "Lowering", place: int) -> str:
        return "residual"

    def fields(self, lowering: "Lowering", operation: "Operation", value: int, number: str) -> dict[str, int] | None:
        """Add a value that has been written before; a step cannot wait for one that has not."""
        other = operation.inputs[1] if operation.inputs[0] == value else operation.inputs[0]
        return None if other != 0 and other not in lowering.real else {"RESIDUAL": lowering.as_real(other)}

    def to_onnx(self, graph: "OnnxGraph", operation: "Operation", shape: Shape) -> None:
        graph.node("Add", *graph.inputs(operation))

    def to_openvino(self, graph: "OpenvinoGraph", operation: "Operation", shape: Shape) -> "OpenvinoNode":
        return graph.op.add(*graph.inputs(operation))


OPS = (_Affine(), _PReLU(), _ReLU(), _Clamp(), _Sign(), _Add())
