"""Operations that move numbers and change none: reshapes, permutations, slices, padding and concatenation."""

import math
from typing import TYPE_CHECKING

import numpy as np

from equalbits.runtime.op_specs import (
    Floats,
    OpSpec,
    Setting,
    Settings,
    Shape,
    Shapes,
    Tensors,
    count,
    counts,
    image_shape,
    number,
    per_axis,
)
from equalbits.runtime.plan_tables import strides

if TYPE_CHECKING:
    from equalbits.runtime.export_graphs import OnnxGraph, OpenvinoGraph, OpenvinoNode
    from equalbits.runtime.lower import Lowering
    from equalbits.runtime.network import Operation

_REQUIRED_LIST = Setting(counts, required=True)


# flatten and reshape


def _flatten_shape(inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
    return (math.prod(inputs[0]),)


def _reshape_shape(inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
    shape: Shape = settings["shape"]
    if not shape or math.prod(shape) != math.prod(inputs[0]):
        raise ValueError(f"reshapes {inputs[0]} to {shape}: both must hold as many numbers")
    return shape


def _run_flatten(value: Floats, *, tensors: Tensors, settings: Settings) -> Floats:
    return value.reshape(len(value), -1)


def _run_reshape(value: Floats, *, tensors: Tensors, settings: Settings) -> Floats:
    return value.reshape(len(value), *settings["shape"])


def _lower_reshape(lowering: "Lowering", place: int, operation: "Operation") -> None:
    before, after = lowering.network.shapes[operation.inputs[0]], lowering.network.shapes[place + 1]
    lowering.real[place + 1] = lowering.reshape(lowering.as_real(operation.inputs[0]), before, after)


def _reshape_to_onnx(graph: "OnnxGraph", operation: "Operation", shape: Shape) -> None:
    target = graph.int_list(-1, *shape)
    graph.node("Reshape", graph.inputs(operation)[0], target)


def _reshape_to_openvino(graph: "OpenvinoGraph", operation: "Operation", shape: Shape) -> "OpenvinoNode":
    return graph.reshape(graph.values[operation.inputs[0]], shape)


_RESHAPE_RULES = (_reshape_to_onnx, _reshape_to_openvino, _lower_reshape)
flatten = OpSpec(_flatten_shape, _run_flatten, *_RESHAPE_RULES, moves=True)
reshape = OpSpec(_reshape_shape, _run_reshape, *_RESHAPE_RULES, settings={"shape": _REQUIRED_LIST}, moves=True)

# permute


def _permute_shape(inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
    axes = settings["axes"]
    if sorted(axes) != list(range(len(inputs[0]))):
        raise ValueError(f"permutes {inputs[0]} by {axes}: name each axis once, from 0")
    return tuple(inputs[0][axis] for axis in axes)


def _run_permute(value: Floats, *, tensors: Tensors, settings: Settings) -> Floats:
    return value.transpose(0, *(axis + 1 for axis in settings["axes"]))


def _lower_permute(lowering: "Lowering", place: int, operation: "Operation") -> None:
    source, before = lowering.as_real(operation.inputs[0]), lowering.network.shapes[operation.inputs[0]]
    shape, apart = lowering.network.shapes[place + 1], strides(before)
    moved = tuple(apart[axis] for axis in operation.settings["axes"])
    lowering.plan.copy(source, lowering.write_real(place + 1), shape, (moved, strides(shape)))


def _permute_to_onnx(graph: "OnnxGraph", operation: "Operation", shape: Shape) -> None:
    axes = [0, *(axis + 1 for axis in operation.settings["axes"])]
    graph.node("Transpose", graph.inputs(operation)[0], perm=axes)


def _permute_to_openvino(graph: "OpenvinoGraph", operation: "Operation", shape: Shape) -> "OpenvinoNode":
    axes = [0, *(axis + 1 for axis in operation.settings["axes"])]
    return graph.op.transpose(graph.values[operation.inputs[0]], graph.int_list(*axes))


permute = OpSpec(
    _permute_shape,
    _run_permute,
    _permute_to_onnx,
    _permute_to_openvino,
    _lower_permute,
    settings={"axes": _REQUIRED_LIST},
    moves=True,
)

# channel_shuffle: interleave the channels of all groups, as ShuffleNet does


def _shuffle_shape(inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
    channels, *_ = image_shape(inputs[0])
    if channels % settings["groups"]:
        raise ValueError(f"shuffles {channels} channels in {settings['groups']} groups: they must divide evenly")
    return inputs[0]


def _run_shuffle(value: Floats, *, tensors: Tensors, settings: Settings) -> Floats:
    batch, channels, *rest = value.shape
    grouped = value.reshape(batch, settings["groups"], channels // settings["groups"], *rest)
    return grouped.swapaxes(1, 2).reshape(value.shape)


def _lower_shuffle(lowering: "Lowering", place: int, operation: "Operation") -> None:
    source, shape = lowering.as_real(operation.inputs[0]), lowering.network.shapes[place + 1]
    groups, part = operation.settings["groups"], shape[0] // operation.settings["groups"]
    apart = strides(shape)
    sizes, moved = (groups, part, *shape[1:]), ((part, 1, *apart[1:]), (1, groups, *apart[1:]))
    lowering.plan.copy(source, lowering.write_real(place + 1), sizes, moved)


def _shuffle_to_onnx(graph: "OnnxGraph", operation: "Operation", shape: Shape) -> None:
    (channels, *rest), groups = shape, operation.settings["groups"]
    apart = graph.node("Reshape", graph.inputs(operation)[0], graph.int_list(-1, groups, channels // groups, *rest))
    interleaved = graph.node("Transpose", apart, perm=[0, 2, 1, 3, 4])
    graph.node("Reshape", interleaved, graph.int_list(-1, channels, *rest))


def _shuffle_to_openvino(graph: "OpenvinoGraph", operation: "Operation", shape: Shape) -> "OpenvinoNode":
    (channels, *rest), groups = shape, operation.settings["groups"]
    parts = graph.reshape(graph.values[operation.inputs[0]], (groups, channels // groups, *rest))
    return graph.reshape(graph.op.transpose(parts, graph.int_list(0, 2, 1, 3, 4)), shape)


channel_shuffle = OpSpec(
    _shuffle_shape,
    _run_shuffle,
    _shuffle_to_onnx,
    _shuffle_to_openvino,
    _lower_shuffle,
    settings={"groups": Setting(count, required=True)},
    moves=True,
    aten={"channel_shuffle.default": ("groups",)},
)

# slice


def _slice_shape(inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
    starts, stops, steps = (per_axis(settings[name], inputs[0]) for name in ("start", "stop", "step"))
    for start, stop, step, size in zip(starts, stops, steps, inputs[0], strict=True):
        if not start < stop <= size or step < 1:
            raise ValueError(f"takes {start}:{stop}:{step} of an axis of {size}: the slice must not be empty")
    return tuple((stop - start + step - 1) // step for start, stop, step in zip(starts, stops, steps, strict=True))


def _run_slice(value: Floats, *, tensors: Tensors, settings: Settings) -> Floats:
    ranges = zip(settings["start"], settings["stop"], settings["step"], strict=True)
    return value[(slice(None), *(slice(*entry) for entry in ranges))]


def _lower_slice(lowering: "Lowering", place: int, operation: "Operation") -> None:
    source, apart = lowering.as_real(operation.inputs[0]), strides(lowering.network.shapes[operation.inputs[0]])
    settings, shape = operation.settings, lowering.network.shapes[place + 1]
    steps = tuple(step * far for step, far in zip(settings["step"], apart, strict=True))
    offset = sum(start * far for start, far in zip(settings["start"], apart, strict=True))
    lowering.plan.copy(source, lowering.write_real(place + 1), shape, (steps, strides(shape)), (offset, 0))


def _slice_to_onnx(graph: "OnnxGraph", operation: "Operation", shape: Shape) -> None:
    start, stop, step = (operation.settings[name] for name in ("start", "stop", "step"))
    parts = (start, stop, range(1, len(start) + 1), step)
    graph.node("Slice", graph.inputs(operation)[0], *(graph.int_list(*part) for part in parts))


def _slice_to_openvino(graph: "OpenvinoGraph", operation: "Operation", shape: Shape) -> "OpenvinoNode":
    start, stop, step = (operation.settings[name] for name in ("start", "stop", "step"))
    parts = (start, stop, step, range(1, len(start) + 1))
    return graph.op.slice(graph.values[operation.inputs[0]], *(graph.int_list(*part) for part in parts))


slice_ = OpSpec(
    _slice_shape,
    _run_slice,
    _slice_to_onnx,
    _slice_to_openvino,
    _lower_slice,
    settings={"start": _REQUIRED_LIST, "stop": _REQUIRED_LIST, "step": _REQUIRED_LIST},
    moves=True,
)

# pad: constants around


def _pad_shape(inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
    before, after = (per_axis(settings[name], inputs[0]) for name in ("before", "after"))
    return tuple(b + size + a for b, size, a in zip(before, inputs[0], after, strict=True))


def _run_pad(value: Floats, *, tensors: Tensors, settings: Settings) -> Floats:
    widths = ((0, 0), *zip(settings["before"], settings["after"], strict=True))
    return np.pad(value, widths, constant_values=np.float32(settings["value"]))


def _lower_pad(lowering: "Lowering", place: int, operation: "Operation") -> None:
    source, before = lowering.as_real(operation.inputs[0]), lowering.network.shapes[operation.inputs[0]]
    target, after = lowering.write_real(place + 1), strides(lowering.network.shapes[place + 1])
    offset = sum(start * far for start, far in zip(operation.settings["before"], after, strict=True))
    fill = lowering.plan.tensor(np.array([operation.settings["value"]], np.float32))
    lowering.plan.step("FILL", OUT=target, WEIGHT=fill)
    lowering.plan.copy(source, target, before, (strides(before), after), (0, offset))


def _pad_to_onnx(graph: "OnnxGraph", operation: "Operation", shape: Shape) -> None:
    sizes = graph.int_list(0, *operation.settings["before"], 0, *operation.settings["after"])
    graph.node("Pad", graph.inputs(operation)[0], sizes, graph.constant(np.float32(operation.settings["value"])))


def _pad_to_openvino(graph: "OpenvinoGraph", operation: "Operation", shape: Shape) -> "OpenvinoNode":
    settings, value = operation.settings, graph.values[operation.inputs[0]]
    before, after = (graph.int_list(0, *settings[name]) for name in ("before", "after"))
    return graph.op.pad(value, before, after, "constant", graph.number(settings["value"]))


pad = OpSpec(
    _pad_shape,
    _run_pad,
    _pad_to_onnx,
    _pad_to_openvino,
    _lower_pad,
    settings={"before": _REQUIRED_LIST, "after": _REQUIRED_LIST, "value": Setting(number, 0.0)},
    moves=True,
)

# concat: along the channels


def _concat_shape(inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
    if len({shape[1:] for shape in inputs}) > 1:
        raise ValueError(f"concatenates shapes {list(inputs)[:4]}: only their channels may differ")
    return (sum(shape[0] for shape in inputs), *inputs[0][1:])


def _run_concat(*values: Floats, tensors: Tensors, settings: Settings) -> Floats:
    return np.concatenate(values, axis=1)


def _lower_concat(lowering: "Lowering", place: int, operation: "Operation") -> None:
    sources = [(lowering.as_real(value), lowering.network.shapes[value]) for value in operation.inputs]
    target, after = lowering.write_real(place + 1), strides(lowering.network.shapes[place + 1])
    start = 0
    for source, part in sources:
        lowering.plan.copy(source, target, part, (strides(part), after), (0, start * after[0]))
        start += part[0]


def _concat_to_onnx(graph: "OnnxGraph", operation: "Operation", shape: Shape) -> None:
    graph.node("Concat", *graph.inputs(operation), axis=1)


def _concat_to_openvino(graph: "OpenvinoGraph", operation: "Operation", shape: Shape) -> "OpenvinoNode":
    return graph.op.concat([graph.values[value] for value in operation.inputs], 1)


concat = OpSpec(
    _concat_shape,
    _run_concat,
    _concat_to_onnx,
    _concat_to_openvino,
    _lower_concat,
    inputs=(1, 64),
    moves=True,
)
OPS = {
    "concat": concat,
    "flatten": flatten,
    "reshape": reshape,
    "permute": permute,
    "channel_shuffle": channel_shuffle,
    "slice": slice_,
    "pad": pad,
}
