"""Operations that move values: reshapes, permutations, slices, splits, concatenation and repetition."""

import math
from collections.abc import Sequence

from torch import Tensor

from equalbits.deploy import simplify
from equalbits.deploy.graph import Value
from equalbits.deploy.tracer import Known, Stacked, Tracer, rule
from equalbits.runtime.ops import OPS

_MAX_CONCATENATED = OPS["concat"].inputs[1]


@rule("view.default", "_unsafe_view.default", "unsqueeze.default", "squeeze.dims")
def reshape(tracer: Tracer, value: Known, *_: object) -> Value:
    """Reshape to the shape that the trace recorded."""
    return simplify.reshape(tracer.graph, tracer.value(value), tracer.output_shape(), layer=tracer.layer)


@rule("permute.default")
def permute(tracer: Tracer, value: Known, axes: Sequence[int]) -> Value:
    """Permute the axes; the batch stays first."""
    source = tracer.value(value)
    order = [axis % (len(source.shape) + 1) for axis in axes]
    if order[0] != 0:
        raise tracer.refuse("moves the batch axis: a packed network treats each image by itself")
    return simplify.permute(tracer.graph, source, [axis - 1 for axis in order[1:]], layer=tracer.layer)


@rule("slice.Tensor")
def slice_(
    tracer: Tracer, value: Known, axis: int = 0, start: int | None = None, stop: int | None = None, step: int = 1
) -> Value:
    """Slice one axis."""
    source = tracer.value(value)
    axis = axis % (len(source.shape) + 1)
    if axis == 0:
        if (start or 0, step) == (0, 1) and (stop is None or stop >= tracer.batch):
            return source
        raise tracer.refuse("slices the batch: a packed network answers every image")
    return simplify.slice_axis(tracer.graph, source, axis - 1, slice(start, stop, step), layer=tracer.layer)


@rule("select.int")
def select(tracer: Tracer, value: Known, axis: int, index: int) -> Value:
    """Select one entry of an axis."""
    source = tracer.value(value)
    axis = axis % (len(source.shape) + 1)
    if axis == 0:
        raise tracer.refuse("selects one image of the batch: a packed network answers every image")
    place = index % source.shape[axis - 1]
    part = simplify.slice_axis(tracer.graph, source, axis - 1, slice(place, place + 1), layer=tracer.layer)
    return simplify.reshape(tracer.graph, part, tracer.output_shape(), layer=tracer.layer)


@rule("split_with_sizes.default")
def split(tracer: Tracer, value: Known, sizes: Sequence[int], axis: int = 0) -> tuple[Value, ...]:
    """Split an axis into parts of these sizes."""
    source = tracer.value(value)
    axis = axis % (len(source.shape) + 1)
    if axis == 0:
        raise tracer.refuse("splits the batch: a packed network treats each image by itself")
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    cuts = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return tuple(simplify.slice_axis(tracer.graph, source, axis - 1, cut, layer=tracer.layer) for cut in cuts)


@rule("cat.default")
def concat(tracer: Tracer, values: Sequence[Known], axis: int = 0) -> Value:
    """Concatenate; along another axis than the channels, with that axis moved to the front meanwhile."""
    like = next(tracer.value(value) for value in values if not isinstance(value, Tensor))
    axis = axis % (len(like.shape) + 1)
    if axis == 0:
        raise tracer.refuse("concatenates along the batch: a packed network treats each image by itself")
    filled = [value for value in values if not isinstance(value, Tensor) or value.numel()]  # torch accepts empty ones
    joined = [
        _as_value(tracer, like, axis, value) if isinstance(value, Tensor) else tracer.value(value) for value in filled
    ]
    parts = [simplify.move_to_front(tracer.graph, value, axis - 1, layer=tracer.layer) for value in joined]
    while len(parts) > 1:  # in groups, as one operation reads so many at most
        starts = range(0, len(parts), _MAX_CONCATENATED)
        parts = [tracer.add("concat", *parts[start : start + _MAX_CONCATENATED]) for start in starts]
    return simplify.move_from_front(tracer.graph, parts[0], axis - 1, layer=tracer.layer)


def _as_value(tracer: Tracer, like: Value, axis: int, constant: Tensor) -> Value:
    """Return a constant as a value that can be concatenated to ``like``: an entry of it times 0, plus the constant."""
    entry = simplify.slice_axis(tracer.graph, like, axis - 1, slice(0, 1), layer=tracer.layer)
    return tracer.affine(repeat_entries(tracer, entry, axis, constant.shape[axis]), 0.0, constant)


@rule("stack.default")
def stack(tracer: Tracer, values: Sequence[Known], axis: int = 0) -> Value | Stacked:
    """Stack along a new axis; before the batch, for a reduction that follows."""
    joined = [tracer.value(value) for value in values]
    shape = list(joined[0].shape)
    axis = axis % (len(shape) + 2)
    if axis == 0:
        return Stacked(tuple(joined))
    shape.insert(axis - 1, 1)
    apart = [simplify.reshape(tracer.graph, value, tuple(shape), layer=tracer.layer) for value in joined]
    return concat(tracer, apart, axis)


@rule("repeat.default", "expand.default")
def expand(tracer: Tracer, value: Known, *_: object, **__: object) -> Value:
    """Repeat a value along each axis to the shape that the trace recorded."""
    made, shape = tracer.value(value), tracer.output_shape()
    if len(shape) != len(made.shape):
        raise tracer.refuse(f"repeats a value of shape {made.shape} along new axes: add those with unsqueeze first")
    for axis, size in enumerate(shape, start=1):
        times = size // made.shape[axis - 1]
        if times > 1 and made.shape[axis - 1] == 1:
            made = repeat_entries(tracer, made, axis, times)
        elif times > 1:
            made = concat(tracer, [made] * times, axis)
    return made


def repeat_entries(tracer: Tracer, value: Value, axis: int, times: int) -> Value:
    """Repeat every entry of an axis: an adaptive pooling with windows of one entry."""
    if times == 1:
        return value
    shape = list(value.shape)
    is_image = len(shape) == 3 and axis > 1
    image = shape if is_image else [math.prod(shape[: axis - 1]), shape[axis - 1], math.prod(shape[axis:])]
    size = [long * times if place == (axis if is_image else 2) else long for place, long in enumerate(image[1:], 2)]
    flat = simplify.reshape(tracer.graph, value, tuple(image), layer=tracer.layer)
    made = tracer.add("adaptive_avg_pool", flat, size=size)
    shape[axis - 1] *= times
    return simplify.reshape(tracer.graph, made, tuple(shape), layer=tracer.layer)
