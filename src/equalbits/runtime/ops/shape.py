"""Operations that move numbers and change none: reshapes, permutations, slices, padding and concatenation."""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from equalbits.runtime import op_specs
from equalbits.runtime.export_graph import ExportGraph, Node
from equalbits.runtime.lower import Lowering
from equalbits.runtime.op_specs import Floats, Operation, OpSpec, Setting, Settings, Shape, Shapes, Tensors, per_axis

_REQUIRED_LIST = Setting(op_specs.counts, required=True)


class _Concat(OpSpec):
    """Concatenate along the channels."""

    kind = "concat"
    inputs = (1, 64)
    moves = True

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        if len({shape[1:] for shape in inputs}) > 1:
            raise ValueError(f"concatenates shapes {list(inputs)[:4]}: only their channels may differ")
        return (sum(shape[0] for shape in inputs), *inputs[0][1:])

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        return np.concatenate(values, axis=1)

    def lower(self, lowering: Lowering, place: int, operation: Operation) -> None:
        sources = [(lowering.as_real(value), value) for value in operation.inputs]
        target, after = lowering.write_real(place + 1), lowering.strides(place + 1)
        start = 0
        for source, value in sources:
            part = lowering.shapes[value]
            lowering.plan.copy(source, target, part, (lowering.strides(value), after), (0, start * after[0]))
            start += part[0]

    def export(self, graph: ExportGraph, operation: Operation, shape: Shape) -> Node:
        return graph.node("Concat", *graph.inputs(operation), axis=1)


class _Reshape(OpSpec):
    """Change the shape; the numbers keep their order."""

    kind = "reshape"
    settings: ClassVar = {"shape": _REQUIRED_LIST}
    moves = True

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        shape: Shape = settings["shape"]
        if not shape or math.prod(shape) != math.prod(inputs[0]):
            raise ValueError(f"reshapes {inputs[0]} to {shape}: both must hold as many numbers")
        return shape

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        return values[0].reshape(len(values[0]), *settings.get("shape", (-1,)))

    def lower(self, lowering: Lowering, place: int, operation: Operation) -> None:
        lowering.real[place + 1] = lowering.reshape(operation.inputs[0], place + 1)

    def export(self, graph: ExportGraph, operation: Operation, shape: Shape) -> Node:
        return graph.node("Reshape", *graph.inputs(operation), (-1, *shape))


class _Flatten(_Reshape):
    """Reshape to one axis."""

    kind = "flatten"
    settings: ClassVar = {}

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        return (math.prod(inputs[0]),)


class _Permute(OpSpec):
    """Permute the axes."""

    kind = "permute"
    settings: ClassVar = {"axes": _REQUIRED_LIST}
    moves = True

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        axes = settings["axes"]
        if sorted(axes) != list(range(len(inputs[0]))):
            raise ValueError(f"permutes {inputs[0]} by {axes}: name each axis once, from 0")
        return tuple(inputs[0][axis] for axis in axes)

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        return values[0].transpose(_with_batch(settings["axes"]))

    def lower(self, lowering: Lowering, place: int, operation: Operation) -> None:
        source, apart = lowering.as_real(operation.inputs[0]), lowering.strides(operation.inputs[0])
        shape, moved = lowering.shapes[place + 1], tuple(apart[axis] for axis in operation.settings["axes"])
        lowering.plan.copy(source, lowering.write_real(place + 1), shape, (moved, lowering.strides(place + 1)))

    def export(self, graph: ExportGraph, operation: Operation, shape: Shape) -> Node:
        return graph.node("Transpose", *graph.inputs(operation), perm=_with_batch(operation.settings["axes"]))


def _with_batch(axes: Shape) -> list[int]:
    return [0, *(axis + 1 for axis in axes)]


class _ChannelShuffle(OpSpec):
    """Interleave the channels of all groups, as ShuffleNet does."""

    kind = "channel_shuffle"
    settings: ClassVar = {"groups": Setting(op_specs.count, required=True)}
    moves = True
    aten: ClassVar = {"channel_shuffle.default": ("groups",)}

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        channels, *_ = op_specs.image_shape(inputs[0])
        if channels % settings["groups"]:
            raise ValueError(f"shuffles {channels} channels in {settings['groups']} groups: they must divide evenly")
        return inputs[0]

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        batch, channels, *rest = values[0].shape
        grouped = values[0].reshape(batch, settings["groups"], channels // settings["groups"], *rest)
        return grouped.swapaxes(1, 2).reshape(values[0].shape)

    def lower(self, lowering: Lowering, place: int, operation: Operation) -> None:
        source, shape = lowering.as_real(operation.inputs[0]), lowering.shapes[place + 1]
        groups, part = operation.settings["groups"], shape[0] // operation.settings["groups"]
        both = (lowering.strides(operation.inputs[0]), lowering.strides(place + 1))
        moved = (
            (part * both[0][0], *both[0]),
            (both[1][0], groups * both[1][0], *both[1][1:]),
        )
        lowering.plan.copy(source, lowering.write_real(place + 1), (groups, part, *shape[1:]), moved)

    def export(self, graph: ExportGraph, operation: Operation, shape: Shape) -> Node:
        (channels, *rest), groups = shape, operation.settings["groups"]
        apart = graph.node("Reshape", *graph.inputs(operation), (-1, groups, channels // groups, *rest))
        interleaved = graph.node("Transpose", apart, perm=[0, 2, 1, 3, 4])
        return graph.node("Reshape", interleaved, (-1, channels, *rest))


class _Slice(OpSpec):
    """Slice every axis."""

    kind = "slice"
    settings: ClassVar = {"start": _REQUIRED_LIST, "stop": _REQUIRED_LIST, "step": _REQUIRED_LIST}
    moves = True

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        starts, stops, steps = (per_axis(settings[name], inputs[0]) for name in ("start", "stop", "step"))
        for start, stop, step, size in zip(starts, stops, steps, inputs[0], strict=True):
            if not start < stop <= size or step < 1:
                raise ValueError(f"takes {start}:{stop}:{step} of an axis of {size}: the slice must not be empty")
        return tuple((stop - start + step - 1) // step for start, stop, step in zip(starts, stops, steps, strict=True))

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        ranges = zip(settings["start"], settings["stop"], settings["step"], strict=True)
        return values[0][(slice(None), *(slice(*entry) for entry in ranges))]

    def lower(self, lowering: Lowering, place: int, operation: Operation) -> None:
        source, apart = lowering.as_real(operation.inputs[0]), lowering.strides(operation.inputs[0])
        settings, shape = operation.settings, lowering.shapes[place + 1]
        steps = tuple(step * far for step, far in zip(settings["step"], apart, strict=True))
        offset = sum(start * far for start, far in zip(settings["start"], apart, strict=True))
        target = lowering.write_real(place + 1)
        lowering.plan.copy(source, target, shape, (steps, lowering.strides(place + 1)), (offset, 0))

    def export(self, graph: ExportGraph, operation: Operation, shape: Shape) -> Node:
        start, stop, step = (operation.settings[name] for name in ("start", "stop", "step"))
        return graph.node("Slice", *graph.inputs(operation), start, stop, range(1, len(start) + 1), step)


class _Pad(OpSpec):
    """Put a constant around a value."""

    kind = "pad"
    settings: ClassVar = {"before": _REQUIRED_LIST, "after": _REQUIRED_LIST, "value": Setting(op_specs.number, 0.0)}
    moves = True

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        before, after = (per_axis(settings[name], inputs[0]) for name in ("before", "after"))
        return tuple(b + size + a for b, size, a in zip(before, inputs[0], after, strict=True))

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        widths = ((0, 0), *zip(settings["before"], settings["after"], strict=True))
        return np.pad(values[0], widths, constant_values=np.float32(settings["value"]))

    def lower(self, lowering: Lowering, place: int, operation: Operation) -> None:
        source, before = lowering.as_real(operation.inputs[0]), lowering.shapes[operation.inputs[0]]
        target, after = lowering.write_real(place + 1), lowering.strides(place + 1)
        offset = sum(start * far for start, far in zip(operation.settings["before"], after, strict=True))
        fill = lowering.plan.tensor(np.array([operation.settings["value"]], np.float32))
        lowering.plan.step("FILL", OUT=target, WEIGHT=fill)
        lowering.plan.copy(source, target, before, (lowering.strides(operation.inputs[0]), after), (0, offset))

    def export(self, graph: ExportGraph, operation: Operation, shape: Shape) -> Node:
        sizes = (0, *operation.settings["before"], 0, *operation.settings["after"])
        return graph.node("Pad", *graph.inputs(operation), sizes, operation.settings["value"])


OPS = (_Concat(), _Flatten(), _Reshape(), _Permute(), _ChannelShuffle(), _Slice(), _Pad())
