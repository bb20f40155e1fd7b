"""Rules for what moves numbers about: reshapes, transposes, slices, joins."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from equalbits.deploy import simplify
from equalbits.deploy.graph import Value
from equalbits.deploy.tracer import Rule, Stacked, Walk
from equalbits.runtime.ops import OPS

_MOST_JOINED = OPS["concat"].inputs[1]


def reshape(walk: Walk, value: Any, *_: Any, **__: Any) -> Value:
    """Every reshape, flatten, squeeze or unsqueeze: the trace says the shape it gives."""
    value = walk.value(value)
    return simplify.reshape(walk.steps, value, images_shape(walk), layer=walk.layer)


def permute(walk: Walk, value: Any, axes: Sequence[int]) -> Value:
    """The axes in another order; the batch stays where it is."""
    source = walk.value(value)
    rank = len(source.shape) + 1
    order = [axis % rank for axis in axes]
    if order[0] != 0:
        raise walk.refuse("moves the batch to another axis: a packed network answers each image by itself")
    return simplify.permute(walk.steps, source, [axis - 1 for axis in order[1:]], layer=walk.layer)


def transpose(walk: Walk, value: Any, first: int = -2, second: int = -1) -> Value:
    """Two axes swapped, by default the last two."""
    rank = len(walk.value(value).shape) + 1
    axes = list(range(rank))
    axes[first % rank], axes[second % rank] = axes[second % rank], axes[first % rank]
    return permute(walk, value, axes)


def move(walk: Walk, value: Any, source: Any, target: Any) -> Value:
    """Axes put elsewhere, the others behind each other as they were."""
    rank = len(walk.value(value).shape) + 1
    froms, tos = ([axis % rank for axis in ([axes] if isinstance(axes, int) else axes)] for axes in (source, target))
    order = [axis for axis in range(rank) if axis not in froms]
    for to, axis in sorted(zip(tos, froms, strict=True)):
        order.insert(to, axis)
    return permute(walk, value, order)


def slice_(walk: Walk, value: Any, axis: int = 0, start: Any = None, stop: Any = None, step: int = 1) -> Value:
    """A part of an axis."""
    source = walk.value(value)
    axis = axis % (len(source.shape) + 1)
    if axis == 0:
        if (start or 0, step) == (0, 1) and (stop is None or stop >= walk.batch):
            return source
        raise walk.refuse("takes a part of the batch: a packed network answers every image")
    return simplify.slice_(walk.steps, source, axis - 1, slice(start, stop, step), layer=walk.layer)


def narrow(walk: Walk, value: Any, axis: int, start: int, length: int) -> Value:
    """So many entries of an axis."""
    start = start % (walk.batch, *walk.value(value).shape)[axis]
    return slice_(walk, value, axis, start, start + length)


def select(walk: Walk, value: Any, axis: int, index: int) -> Value:
    """One entry of an axis."""
    value = walk.value(value)
    axis = axis % (len(value.shape) + 1)
    if axis == 0:
        raise walk.refuse("takes one image of the batch: a packed network answers every image")
    place = index % value.shape[axis - 1]
    part = simplify.slice_(walk.steps, value, axis - 1, slice(place, place + 1), layer=walk.layer)
    return simplify.reshape(walk.steps, part, images_shape(walk), layer=walk.layer)


def unbind(walk: Walk, value: Any, axis: int = 0) -> tuple[Value, ...]:
    """Every entry of an axis by itself."""
    parts = split(walk, value, 1, axis)
    shape = list(walk.value(value).shape)
    del shape[axis % (len(shape) + 1) - 1]
    return tuple(simplify.reshape(walk.steps, part, tuple(shape), layer=walk.layer) for part in parts)


def split(walk: Walk, value: Any, sizes: Any, axis: int = 0) -> tuple[Value, ...]:
    """An axis in parts of these sizes, or of one size."""
    value = walk.value(value)
    axis = axis % (len(value.shape) + 1)
    if axis == 0:
        raise walk.refuse("splits the batch: a packed network answers each image by itself")
    whole = value.shape[axis - 1]
    sizes = [min(sizes, whole - start) for start in range(0, whole, sizes)] if isinstance(sizes, int) else sizes
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    cuts = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return tuple(simplify.slice_(walk.steps, value, axis - 1, cut, layer=walk.layer) for cut in cuts)


def chunk(walk: Walk, value: Any, parts: int, axis: int = 0) -> tuple[Value, ...]:
    """An axis in so many parts."""
    shape = (0, *walk.value(value).shape)
    return split(walk, value, -(-shape[axis % len(shape)] // parts), axis)


def concat(walk: Walk, values: Sequence[Any], axis: int = 0) -> Value:
    """Values one after the other; along another axis than the channels, with that axis first for the while."""
    like = next(walk.value(value) for value in values if not isinstance(value, Tensor))
    axis = axis % (len(like.shape) + 1)
    if axis == 0:
        raise walk.refuse("joins images along the batch: a packed network answers each image by itself")
    there = [value for value in values if not isinstance(value, Tensor) or value.numel()]  # torch takes empty ones too
    joined = [_beside(walk, like, axis, value) if isinstance(value, Tensor) else walk.value(value) for value in there]
    parts = [simplify.to_front(walk.steps, value, axis - 1, layer=walk.layer) for value in joined]
    while len(parts) > 1:  # by as many as an operation takes
        groups = [parts[start : start + _MOST_JOINED] for start in range(0, len(parts), _MOST_JOINED)]
        parts = [walk.steps.add("concat", *group, layer=walk.layer) for group in groups]
    return simplify.from_front(walk.steps, parts[0], axis - 1, layer=walk.layer)


def _beside(walk: Walk, like: Value, axis: int, known: Tensor) -> Value:
    """A constant as a value, to be joined to one along an axis: an entry of that, times 0, and the constant."""
    entry = simplify.slice_(walk.steps, like, axis - 1, slice(0, 1), layer=walk.layer)
    return walk.affine(each(walk, entry, axis, known.shape[axis]), 0.0, known)


def stack(walk: Walk, values: Sequence[Any], axis: int = 0) -> Value | Stacked:
    """Values one after the other along an axis of their own."""
    joined = [walk.value(value) for value in values]
    shape = list(joined[0].shape)
    axis = axis % (len(shape) + 2)
    if axis == 0:
        return Stacked(tuple(joined))
    shape.insert(axis - 1, 1)
    apart = [simplify.reshape(walk.steps, value, tuple(shape), layer=walk.layer) for value in joined]
    return concat(walk, apart, axis)


def repeat(walk: Walk, value: Any, *_: Any, **__: Any) -> Value:
    """The same again along each axis, as often as the shape that the trace says has it."""
    made, shape = walk.value(value), images_shape(walk)
    if len(shape) != len(made.shape):
        raise walk.refuse(f"repeats a value of shape {made.shape} along new axes: give it those by unsqueeze first")
    for axis, size in enumerate(shape, start=1):
        times = size // made.shape[axis - 1]
        if times > 1:
            made = each(walk, made, axis, times) if made.shape[axis - 1] == 1 else concat(walk, [made] * times, axis)
    return made


def each(walk: Walk, value: Value, axis: int, times: int) -> Value:
    """Every entry of an axis so many times in a row: means over windows of one entry, more windows than entries."""
    if times == 1:
        return value
    shape = list(value.shape)
    is_image = len(shape) == 3 and axis > 1
    image = shape if is_image else [math.prod(shape[: axis - 1]), shape[axis - 1], math.prod(shape[axis:])]
    size = [long * times if place == (axis if is_image else 2) else long for place, long in enumerate(image[1:], 2)]
    flat = simplify.reshape(walk.steps, value, tuple(image), layer=walk.layer)
    made = walk.steps.add("adaptive_avg_pool", flat, layer=walk.layer, size=size)
    shape[axis - 1] *= times
    return simplify.reshape(walk.steps, made, tuple(shape), layer=walk.layer)


def pixel_shuffle(walk: Walk, value: Any, factor: int) -> Value:
    """Channels dealt out to the pixels of a finer image."""
    channels, rows, columns = _image(walk, value).shape
    return _dealt(walk, value, (channels // factor**2, factor, factor, rows, columns), (0, 3, 1, 4, 2))


def pixel_unshuffle(walk: Walk, value: Any, factor: int) -> Value:
    """The pixels of each square of an image as channels of a coarser one."""
    channels, rows, columns = _image(walk, value).shape
    return _dealt(walk, value, (channels, rows // factor, factor, columns // factor, factor), (0, 2, 4, 1, 3))


def _dealt(walk: Walk, value: Value, parts: tuple[int, ...], axes: tuple[int, ...]) -> Value:
    """An image taken apart into so many axes, and put together again in another order of them."""
    apart = walk.steps.reshape(value, parts, layer=walk.layer)
    turned = walk.steps.add("permute", apart, layer=walk.layer, axes=axes)
    return walk.steps.reshape(turned, images_shape(walk), layer=walk.layer)


def channel_shuffle(walk: Walk, value: Any, groups: int) -> Value:
    """The channels of each group dealt out to all."""
    return walk.steps.add("channel_shuffle", walk.value(value), layer=walk.layer, groups=groups)


def _image(walk: Walk, value: Any) -> Value:
    found = walk.value(value)
    if len(found.shape) != 3:
        raise walk.refuse(f"takes a value of shape {found.shape} for an image: it must have channels, rows and columns")
    return found


def images_shape(walk: Walk) -> tuple[int, ...]:
    """The shape that the node at hand gives, without the batch."""
    if walk.shape == (walk.batch,):
        raise walk.refuse("gives one number alone for each image: keep an axis, as keepdim=True and slices do")
    if walk.shape is None or len(walk.shape) < 2 or walk.shape[0] != walk.batch:
        raise walk.refuse(f"gives a value of shape {walk.shape} for {walk.batch} images: the batch must stay first")
    return walk.shape[1:]


RULES: dict[str, Rule] = {
    "permute.default": permute,
    "transpose.int": transpose,
    "slice.Tensor": slice_,
    "narrow.default": narrow,
    "select.int": select,
    "unbind.int": unbind,
    "stack.default": stack,
    "split.Tensor": split,
    "split.sizes": split,
    "split_with_sizes.default": split,
    "chunk.default": chunk,
    "cat.default": concat,
    "concat.default": concat,
    "concatenate.default": concat,
    "hstack.default": lambda walk, values: concat(walk, values, 1),
    "column_stack.default": lambda walk, values: concat(walk, values, 1),
    "channel_shuffle.default": channel_shuffle,
    "pixel_shuffle.default": pixel_shuffle,
    "pixel_unshuffle.default": pixel_unshuffle,
}
RULES |= dict.fromkeys(("swapaxes.default", "swapdims.default", "mT.default"), transpose)
RULES |= dict.fromkeys((f"move{what}.{how}" for what in ("dim", "axis") for how in ("int", "intlist")), move)
RULES |= dict.fromkeys((f"{name}.default" for name in ("repeat", "tile", "expand", "expand_as")), repeat)
_RESHAPES = "view view_as reshape reshape_as _unsafe_view unsqueeze squeeze"
RULES |= dict.fromkeys((f"{name}.default" for name in _RESHAPES.split()), reshape)
RULES |= dict.fromkeys(("flatten.using_ints", "unflatten.int", "squeeze.dim", "squeeze.dims"), reshape)
