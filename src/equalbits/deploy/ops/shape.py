"""Operations that move values: reshapes, permutations, slices, splits, concatenation and repetition."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from equalbits.deploy.traced_values import Known, Stacked, Value
from equalbits.deploy.tracer import Tracer, rule
from equalbits.runtime import OPS

_MAX_CONCATENATED = OPS["concat"].inputs[1]


@rule("view.default", "_unsafe_view.default", "reshape.default", "view_as.default", batch="reshape")
@rule("flatten.using_ints", "unflatten.int", "unsqueeze.default", batch="reshape")
@rule("squeeze.dims", batch="drop", axes_at=1)
def reshape(tracer: Tracer, value: Value, *_: object) -> Value:
    """Reshape to the shape that the trace recorded."""
    return tracer.reshape(value, tracer.output_shape())


@rule("permute.default")
def permute(tracer: Tracer, value: Value, axes: Sequence[int]) -> Value:
    """Permute the axes; the batch stays first."""
    order = [axis % (len(value.shape) + 1) for axis in axes]
    if order[0] != 0:
        raise tracer.refuse("moves the batch axis: a packed network treats each image by itself")
    return tracer.permute(value, [axis - 1 for axis in order[1:]])


@rule("slice.Tensor", batch="cut", axes_at=1)
def slice_(
    tracer: Tracer, value: Value, axis: int = 0, start: int | None = None, stop: int | None = None, step: int = 1
) -> Value | Tensor:
    """Slice one axis."""
    axis = axis % (len(value.shape) + 1)
    if 0 in tracer.shape:  # nothing, which a concatenation drops
        return torch.zeros(tracer.shape)
    if axis == 0:
        if (start or 0, step) == (0, 1) and (stop is None or stop >= tracer.batch):
            return value
        raise tracer.refuse("slices the batch: a packed network answers every image")
    return tracer.slice_axis(value, axis - 1, slice(start, stop, step))


@rule("select.int", batch="drop", axes_at=1)
def select(tracer: Tracer, value: Value, axis: int, index: int) -> Value:
    """Select one entry of an axis."""
    axis = tracer.image_axis(value, axis, "selects one image of the batch: a packed network answers every image")
    place = index % value.shape[axis - 1]
    part = tracer.slice_axis(value, axis - 1, slice(place, place + 1))
    return tracer.reshape(part, tracer.output_shape())


@rule("split_with_sizes.default", batch="cut", axes_at=2)
def split(tracer: Tracer, value: Value, sizes: Sequence[int], axis: int = 0) -> tuple[Value, ...]:
    """Split an axis into parts of these sizes."""
    axis = tracer.image_axis(value, axis, "splits the batch: a packed network treats each image by itself")
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    cuts = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return tuple(tracer.slice_axis(value, axis - 1, cut) for cut in cuts)


@rule("cat.default", axes_at=1)
def concat(tracer: Tracer, values: Sequence[Known], axis: int = 0) -> Value:
    """Concatenate; along another axis than the channels, with that axis moved to the front meanwhile."""
    like = next(tracer.value(value) for value in values if not isinstance(value, Tensor))
    axis = tracer.image_axis(like, axis, "concatenates along the batch: a packed network treats each image by itself")
    joined = []
    for part in values:
        if not isinstance(part, Tensor):
            joined.append(tracer.value(part))
        elif part.numel():  # an entry of a value times 0, plus the constant; torch accepts empty ones
            entry = tracer.slice_axis(like, axis - 1, slice(0, 1))
            joined.append(tracer.affine(repeat_entries(tracer, entry, axis, part.shape[axis]), 0.0, part))
    parts = [tracer.move_axis(value, axis - 1, 0) for value in joined]
    while len(parts) > 1:  # in groups, as one operation reads so many at most
        starts = range(0, len(parts), _MAX_CONCATENATED)
        parts = [tracer.add("concat", *parts[start : start + _MAX_CONCATENATED]) for start in starts]
    return tracer.move_axis(parts[0], 0, axis - 1)


@rule("slice_scatter.default")
def slice_scatter(
    tracer: Tracer,
    value: Value,
    part: Known,
    axis: int = 0,
    start: int | None = None,
    stop: int | None = None,
    step: int = 1,
) -> Known:
    """Replace a slice of one axis."""
    axis = axis % (len(value.shape) + 1)
    size = tracer.batch if axis == 0 else value.shape[axis - 1]
    first, end, step = slice(start, stop, step).indices(size)
    if (first, end, step) == (0, size, 1):
        return part
    if axis == 0 or step != 1:
        raise tracer.refuse(
            "replaces images of the batch, or every other entry: a packed network replaces whole slices"
        )
    before = [tracer.slice_axis(value, axis - 1, slice(0, first))] if first else []
    behind = [tracer.slice_axis(value, axis - 1, slice(end, size))] if end < size else []
    return concat(tracer, [*before, part, *behind], axis)


@rule("copy.default")
def copy(tracer: Tracer, value: Known, source: Known, *_: object) -> Known:
    """Return what a value is overwritten with."""
    if isinstance(source, Value):
        return expand_to(tracer, source, tracer.output_shape())
    return source.expand(tracer.shape) if isinstance(source, Tensor) else source


@rule("stack.default")
def stack(tracer: Tracer, values: Sequence[Known], axis: int = 0) -> Value | Stacked:
    """Stack along a new axis; before the batch, for a reduction that follows."""
    joined = [tracer.value(value) for value in values]
    shape = list(joined[0].shape)
    axis = axis % (len(shape) + 2)
    if axis == 0:
        return Stacked(tuple(joined))
    shape.insert(axis - 1, 1)
    apart = [tracer.reshape(value, tuple(shape)) for value in joined]
    return concat(tracer, apart, axis)


@rule("repeat.default")
@rule("expand.default", batch="anywhere")
def expand(tracer: Tracer, value: Value, *_: object, **__: object) -> Value:
    """Repeat a value along each axis to the shape that the trace recorded."""
    return expand_to(tracer, value, tracer.output_shape())


def expand_to(tracer: Tracer, made: Value, shape: Sequence[int]) -> Value:
    """Repeat a value along each axis to ``shape``."""
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
    flat = tracer.reshape(value, tuple(image))
    made = tracer.add("adaptive_avg_pool", flat, size=size)
    shape[axis - 1] *= times
    return tracer.reshape(made, tuple(shape))
