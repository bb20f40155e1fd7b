"""Softmax, and normalization by statistics of the value itself, along one axis: layer norm and RMS norm."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from equalbits.runtime import op_specs
from equalbits.runtime.export_graph import ExportGraph, Node
from equalbits.runtime.lower import Lowering
from equalbits.runtime.op_specs import Array, Floats, Operation, OpSpec, Setting, Settings, Shape, Shapes, Tensors
from equalbits.runtime.ops import functions

_AXIS = Setting(op_specs.axis, required=True)


class _AlongAxis(OpSpec):
    """An operation on rows of numbers along one axis; ``step`` is the kind of the native step."""

    step: str
    temporaries = 12
    settings: ClassVar = {"axis": _AXIS}

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        op_specs.axis_size(settings["axis"], inputs[0])
        return inputs[0]

    def fields(self, lowering: Lowering, operation: Operation) -> dict[str, int]:
        """Return the fields of the native step besides its sizes."""
        return {}

    def lower(self, lowering: Lowering, place: int, operation: Operation) -> None:
        value, axis, shape = operation.inputs[0], operation.settings["axis"], lowering.shapes[place + 1]
        source, fields = lowering.as_real(value), self.fields(lowering, operation)
        target, order = lowering.write_real(place + 1), [i for i in range(len(shape)) if i != axis] + [axis]
        both = (lowering.strides(value), lowering.strides(place + 1))
        moved = tuple(tuple(strides[i] for i in order) for strides in both)
        lowering.plan.strided(self.step, tuple(shape[i] for i in order), moved, IN=source, OUT=target, **fields)


class _Softmax(_AlongAxis):
    """e^value, divided by its sum along the axis; with ``causal``, of row i only the entries up to i, the rest 0."""

    kind, step = "softmax", "SOFTMAX"
    settings: ClassVar = {"axis": _AXIS, "causal": Setting(op_specs.flag, False)}

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        if settings["causal"] and not 1 <= settings["axis"] == len(inputs[0]) - 1:
            raise ValueError(f"is causal along axis {settings['axis']} of {inputs[0]}: it must be the last of several")
        return super().shape(inputs, settings, tensors)

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        (value,), axis = values, settings["axis"] + 1
        value = np.where(_later(*value.shape[-2:]), np.float32(-np.inf), value) if settings["causal"] else value
        powers = functions.exp(value - value.max(axis=axis, keepdims=True))
        shares: Floats = powers / powers.sum(axis=axis, keepdims=True)
        return shares

    def fields(self, lowering: Lowering, operation: Operation) -> dict[str, int]:
        return {"CAUSAL": lowering.shapes[operation.inputs[0]][-2] if operation.settings["causal"] else 0}

    def export(self, graph: ExportGraph, operation: Operation, shape: Shape) -> Node:
        (value,) = graph.inputs(operation)
        if operation.settings["causal"]:
            *_, rows, columns = shape
            value = graph.node(
                "Where", graph.constant(_later(rows, columns), f":later{rows}x{columns}"), -np.inf, value
            )
        return graph.node("Softmax", value, axis=operation.settings["axis"] + 1)


class _RMSNorm(_AlongAxis):
    """The value divided by the root of its mean square along the axis, then ``· scale + bias`` per entry."""

    kind, step = "rms_norm", "RMS_NORM"
    optional = ("scale", "bias")
    settings: ClassVar = {"axis": _AXIS, "eps": Setting(op_specs.number, 1e-5)}
    centered = False

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        size = op_specs.axis_size(settings["axis"], inputs[0])
        if not 0 <= settings["eps"] <= 1:
            raise ValueError(f"has eps={settings['eps']}: it must lie in [0, 1]")
        for name, tensor in tensors.items():
            op_specs.check_vector(name, tensor, {(size,)})
        return inputs[0]

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        (value,), axis = values, settings["axis"] + 1
        if self.centered:
            value = value - value.mean(axis=axis, keepdims=True, dtype=np.float64).astype(np.float32)
        square = np.square(value).mean(axis=axis, keepdims=True, dtype=np.float64).astype(np.float32)
        value = value * (np.float32(1) / np.sqrt(square + np.float32(settings["eps"])))
        tail = (1,) * (value.ndim - 1 - axis)
        for name in ("scale", "bias"):
            if name in tensors:
                entries = tensors[name].astype(np.float32).reshape(-1, *tail)
                value = value * entries if name == "scale" else value + entries
        result: Floats = value
        return result

    def fields(self, lowering: Lowering, operation: Operation) -> dict[str, int]:
        arrays = lowering.network.arrays(operation)
        found = {name.upper(): lowering.plan.tensor(array.astype(np.float32)) for name, array in arrays.items()}
        return found | {"WEIGHT": lowering.plan.tensor(np.array([operation.settings["eps"]], np.float32))}

    def export(self, graph: ExportGraph, operation: Operation, shape: Shape) -> Node:
        (value,), axis = graph.inputs(operation), operation.settings["axis"]
        axes = (axis + 1,)
        if self.centered:
            value = graph.node("Sub", value, graph.node("ReduceMean", value, axes))
        square = graph.node("ReduceMean", graph.node("Mul", value, value), axes)
        root = graph.node("Sqrt", graph.node("Add", square, operation.settings["eps"]))
        made = graph.node("Div", value, root)
        return graph.scale_and_shift(made, operation, (1,) * (len(shape) - 1 - axis))


class _LayerNorm(_RMSNorm):
    """RMS norm of the value minus its mean along the axis."""

    kind, step = "layer_norm", "NORM"
    centered = True


def _later(rows: int, columns: int) -> Array:
    """Return where a column comes after its row: the entries that a causal softmax leaves out."""
    return np.arange(columns) > np.arange(rows)[:, None]


OPS = (_Softmax(), _LayerNorm(), _RMSNorm())
