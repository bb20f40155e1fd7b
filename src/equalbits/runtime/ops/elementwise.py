"""Elementwise operations: affine, PReLU, ReLU, clamp, sign and the sum of two values.

The native engine fuses all but sign into the chain behind a convolution or pooling. A sign ends a chain: what only
binary layers read is written as one bit per number.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from equalbits.runtime import op_specs
from equalbits.runtime.export_graph import ExportGraph, Node
from equalbits.runtime.lower import Lowering
from equalbits.runtime.op_specs import (
    Array,
    ChainOp,
    ElementwiseOp,
    Floats,
    Operation,
    Setting,
    Settings,
    Shape,
    Shapes,
    Tensors,
)
from equalbits.runtime.plan_tables import BITS


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

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        tail = (1,) * (values[0].ndim - 2 - settings["axis"])
        gain, shift = (row.astype(np.float32).reshape(-1, *tail) for row in tensors["gain_shift"])
        result: Floats = values[0] * gain + shift
        return result

    def fields(self, lowering: Lowering, operation: Operation, value: int, number: str) -> dict[str, int]:
        rows, axis = lowering.network.arrays(operation)["gain_shift"], operation.settings["axis"]
        names = (f"GAIN{number}", f"SHIFT{number}")
        return {name: lowering.vector(row, value, axis) for name, row in zip(names, rows, strict=True)}

    def export(self, graph: ExportGraph, operation: Operation, shape: Shape) -> Node:
        column = (-1, *(1,) * (len(shape) - 1 - operation.settings["axis"]))
        gain, shift = (graph.floats(operation, "gain_shift", column, row) for row in (0, 1))
        return graph.node("Add", graph.node("Mul", *graph.inputs(operation), gain), shift)


class _PReLU(ChainOp):
    """The value where it is at least 0, else ``value · slope``."""

    kind = "prelu"
    tensors = ("slope",)

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        op_specs.check_vector("slope", tensors["slope"], {(1,), (inputs[0][0],)})
        return inputs[0]

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        return np.where(values[0] >= 0, values[0], values[0] * _per_channel(tensors["slope"], values[0]))

    def fields(self, lowering: Lowering, operation: Operation, value: int, number: str) -> dict[str, int]:
        slope = lowering.network.arrays(operation)["slope"]
        return {f"SLOPE{number}": lowering.vector(slope, value)}

    def export(self, graph: ExportGraph, operation: Operation, shape: Shape) -> Node:
        slope = graph.floats(operation, "slope", (-1, *(1,) * (len(shape) - 1)))
        return graph.node("PRelu", *graph.inputs(operation), slope)


class _Clamp(ChainOp):
    """The value, not below ``min`` and not above ``max``."""

    kind = "clamp"
    settings: ClassVar = {name: Setting(op_specs.optional_number) for name in ("min", "max")}

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        low, high = settings["min"], settings["max"]
        if low is not None and high is not None and low > high:
            raise ValueError(f"has min={low} above max={high}")
        return inputs[0]

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        low, high = settings["min"], settings["max"]
        value = values[0] if low is None else np.maximum(values[0], np.float32(low))
        return value if high is None else np.minimum(value, np.float32(high))

    def fields(self, lowering: Lowering, operation: Operation, value: int, number: str) -> dict[str, int]:
        low, high = operation.settings["min"], operation.settings["max"]
        limits = [-np.inf if low is None else low, np.inf if high is None else high]
        return {"CLAMP": lowering.plan.tensor(np.array(limits, np.float32))}

    def export(self, graph: ExportGraph, operation: Operation, shape: Shape) -> Node:
        limits = (operation.settings["min"], operation.settings["max"])
        return graph.node("Clip", *graph.inputs(operation), *("" if limit is None else limit for limit in limits))


class _ReLU(ChainOp):
    """The value, not below 0."""

    kind, onnx = "relu", "Relu"
    aten: ClassVar = {"relu.default": ()}

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        return np.maximum(values[0], np.float32(0))

    def slot(self, lowering: Lowering, place: int) -> str:
        """Return the slot of a clamp, which ends the chain; where more follows, that of a PReLU."""
        more = [lowering.is_elementwise(reader) for reader in lowering.readers[place + 1]]
        return "prelu" if more == [True] else "clamp"

    def fields(self, lowering: Lowering, operation: Operation, value: int, number: str) -> dict[str, int]:
        if number.isdigit():
            return {f"RELU{number}": 1}
        return {"CLAMP": lowering.plan.tensor(np.array([0, np.inf], np.float32))}


class _Sign(ElementwiseOp):
    """+1 where the value is at least 0, else −1."""

    kind = "sign"

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        return np.where(values[0] >= 0, np.float32(1), np.float32(-1))

    def lower(self, lowering: Lowering, place: int, operation: Operation) -> None:
        fields = {"IN": lowering.as_real(operation.inputs[0])}
        if lowering.read_compactly(place) and place + 1 not in lowering.compact:
            fields["OUT_BITS"] = lowering.write_compact(place + 1, BITS)
        if lowering.read_as_real(place):
            fields |= {"OUT": lowering.write_real(place + 1), "SIGN_REAL": 1}
        lowering.plan.step("CHAIN", **fields)

    def export(self, graph: ExportGraph, operation: Operation, shape: Shape) -> Node:
        return graph.node("Where", graph.node("GreaterOrEqual", *graph.inputs(operation), 0.0), 1.0, -1.0)


class _Add(ChainOp):
    """The sum of two values."""

    kind, onnx = "add", "Add"
    inputs = (2, 2)

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        if inputs[0] != inputs[1]:
            raise ValueError(f"adds values of shape {inputs[0]} and {inputs[1]}: they must be the same")
        return inputs[0]

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        return values[0] + values[1]

    def slot(self, lowering: Lowering, place: int) -> str:
        return "residual"

    def fields(self, lowering: Lowering, operation: Operation, value: int, number: str) -> dict[str, int] | None:
        """Add a value that has been written before; a step cannot wait for one that has not."""
        other = operation.inputs[1] if operation.inputs[0] == value else operation.inputs[0]
        return None if other != 0 and other not in lowering.real else {"RESIDUAL": lowering.as_real(other)}


OPS = (_Affine(), _PReLU(), _ReLU(), _Clamp(), _Sign(), _Add())
