"""Rules for what moves numbers about: reshapes, transposes, slices, joins, padding."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from equalbits.deploy import fold
from equalbits.deploy.steps import Value
from equalbits.deploy.walk import Rule, Walk


def reshape(walk: Walk, value: Any, *_: Any, **__: Any) -> Value:
    """Every reshape, flatten, squeeze or unsqueeze: the trace says the shape it gives."""
    value = walk.value(value)
    return fold.reshape(walk.steps, value, _images(walk), layer=walk.layer)


def permute(walk: Walk, value: Any, axes: Sequence[int]) -> Value:
    """The axes in another order; the batch stays where it is."""
    source = walk.value(value)
    rank = len(source.shape) + 1
    order = [axis % rank for axis in axes]
    if order[0] != 0:
        raise walk.refuse("moves the batch to another axis: a packed network answers each image by itself")
    if order == sorted(order):
        return source
    return walk.steps.add("permute", source, layer=walk.layer, axes=[axis - 1 for axis in order[1:]])


def transpose(walk: Walk, value: Any, first: int, second: int) -> Value:
    """Two axes swapped."""
    rank = len(walk.value(value).shape) + 1
    axes = list(range(rank))
    axes[first % rank], axes[second % rank] = axes[second % rank], axes[first % rank]
    return permute(walk, value, axes)


def slice_(walk: Walk, value: Any, axis: int = 0, start: Any = None, stop: Any = None, step: int = 1) -> Value:
    """A part of an axis."""
    source = walk.value(value)
    axis = axis % (len(source.shape) + 1)
    if axis == 0:
        if (start or 0, step) == (0, 1) and (stop is None or stop >= walk.batch):
            return source
        raise walk.refuse("takes a part of the batch: a packed network answers every image")
    return fold.slice_(walk.steps, source, axis - 1, slice(start, stop, step), layer=walk.layer)


def select(walk: Walk, value: Any, axis: int, index: int) -> Value:
    """One entry of an axis."""
    value = walk.value(value)
    axis = axis % (len(value.shape) + 1)
    if axis == 0:
        raise walk.refuse("takes one image of the batch: a packed network answers every image")
    place = index % value.shape[axis - 1]
    part = fold.slice_(walk.steps, value, axis - 1, slice(place, place + 1), layer=walk.layer)
    return fold.reshape(walk.steps, part, _images(walk), layer=walk.layer)


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
    return tuple(fold.slice_(walk.steps, value, axis - 1, cut, layer=walk.layer) for cut in cuts)


def chunk(walk: Walk, value: Any, parts: int, axis: int = 0) -> tuple[Value, ...]:
    """An axis in so many parts."""
    shape = (0, *walk.value(value).shape)
    return split(walk, value, -(-shape[axis % len(shape)] // parts), axis)


def concat(walk: Walk, values: Sequence[Any], axis: int = 0) -> Value:
    """Values one after the other; along another axis than the channels, with that axis first for the while."""
    if any(isinstance(value, Tensor) for value in values):
        raise walk.refuse("joins numbers of the image with constants: add those by torch.nn.functional.pad")
    joined = [walk.value(value) for value in values]
    rank = len(joined[0].shape) + 1
    axis = axis % rank
    if axis == 0:
        raise walk.refuse("joins images along the batch: a packed network answers each image by itself")
    if axis == 1:
        return walk.steps.add("concat", *joined, layer=walk.layer)
    order = [axis - 1, *(other for other in range(rank - 1) if other != axis - 1)]
    first = [walk.steps.add("permute", value, layer=walk.layer, axes=order) for value in joined]
    made = walk.steps.add("concat", *first, layer=walk.layer)
    return walk.steps.add("permute", made, layer=walk.layer, axes=[order.index(other) for other in range(rank - 1)])


def pad(walk: Walk, value: Any, sizes: Sequence[int], mode: str = "constant", fill: float | None = None) -> Value:
    """Constants around; torch lists the last axis first."""
    value = walk.value(value)
    if mode != "constant":
        raise walk.refuse(f"pads by {mode}: a packed network pads with a constant; use padding_mode='zeros'")
    if min(sizes) < 0 or len(sizes) > 2 * len(value.shape):
        raise walk.refuse(f"pads by {list(sizes)}: a packed network adds around each image, and takes nothing off")
    spare = [0] * (len(value.shape) - len(sizes) // 2)
    before, after = ([*spare, *reversed(sizes[side::2])] for side in (0, 1))
    return walk.steps.add("pad", value, layer=walk.layer, before=before, after=after, value=float(fill or 0))


def constant_pad(walk: Walk, value: Any, sizes: Sequence[int], fill: float = 0.0) -> Value:
    """Constants around."""
    return pad(walk, value, sizes, "constant", fill)


def channel_shuffle(walk: Walk, value: Any, groups: int) -> Value:
    """The channels of each group dealt out to all."""
    return walk.steps.add("channel_shuffle", walk.value(value), layer=walk.layer, groups=groups)


def _images(walk: Walk) -> tuple[int, ...]:
    """The shape that the node at hand gives, without the batch."""
    if walk.shape is None or len(walk.shape) < 2 or walk.shape[0] != walk.batch:
        raise walk.refuse(f"gives a value of shape {walk.shape} for {walk.batch} images: the batch must stay first")
    return walk.shape[1:]


RULES: dict[str, Rule] = {
    "permute.default": permute,
    "transpose.int": transpose,
    "slice.Tensor": slice_,
    "select.int": select,
    "split.Tensor": split,
    "split.sizes": split,
    "split_with_sizes.default": split,
    "chunk.default": chunk,
    "cat.default": concat,
    "concat.default": concat,
    "pad.default": pad,
    "constant_pad_nd.default": constant_pad,
    "channel_shuffle.default": channel_shuffle,
}
RULES |= dict.fromkeys(("view.default", "reshape.default", "_unsafe_view.default"), reshape)
RULES |= dict.fromkeys(("flatten.using_ints", "unflatten.int", "unsqueeze.default"), reshape)
RULES |= dict.fromkeys(("squeeze.default", "squeeze.dim", "squeeze.dims"), reshape)
