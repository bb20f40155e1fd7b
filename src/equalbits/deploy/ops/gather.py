"""Gather entries: of an axis by constant indices, as flips and padding by entries do, or of a table by ids."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as nnf

from equalbits.deploy.ops.shape import concat, repeat_entries
from equalbits.deploy.traced_values import BatchView, Known, Value
from equalbits.deploy.tracer import Tracer, rule

_REFUSAL = "reorders the batch: a packed network treats each image by itself"


def take(tracer: Tracer, value: Value, axis: int, indices: Sequence[int]) -> Value:
    """Gather entries of an axis as concatenated slices; the batch is axis 0."""
    size = value.shape[axis - 1]
    times = len(indices) // size
    if list(indices) == [index for index in range(size) for _ in range(times)]:
        return repeat_entries(tracer, value, axis, times)
    first = tracer.move_axis(value, axis - 1, 0)
    parts = [tracer.slice_axis(first, 0, cut) for cut in _slices(indices)]
    return tracer.move_axis(concat(tracer, parts, 1), 0, axis - 1)


def _slices(indices: Sequence[int]) -> Iterator[slice]:
    """Split indices into the longest slices of constant step."""
    start = 0
    while start < len(indices):
        step = max(1, indices[start + 1] - indices[start]) if start + 1 < len(indices) else 1
        end = start + 1
        while end < len(indices) and indices[end] - indices[end - 1] == step:
            end += 1
        yield slice(indices[start], indices[end - 1] + 1, step)
        start = end


@rule("flip.default")
def flip(tracer: Tracer, value: Value, axes: Sequence[int]) -> Value:
    """Reverse axes."""
    for axis in axes:
        axis = tracer.image_axis(value, axis, _REFUSAL)
        value = take(tracer, value, axis, range(value.shape[axis - 1])[::-1])
    return value


@rule("index_select.default", axes_at=1)
def index_select(tracer: Tracer, value: Value, axis: int, index: Known) -> Value:
    """Gather entries at constant indices."""
    axis = tracer.image_axis(value, axis, _REFUSAL)
    if not isinstance(index, Tensor) or index.dim() != 1 or index.dtype is torch.bool or not index.numel():
        raise tracer.refuse("gathers by indices that are not a constant list of integers: register them as a buffer")
    return take(tracer, value, axis, (index % value.shape[axis - 1]).tolist())


@rule("embedding.default")
def embedding(tracer: Tracer, table: Known, ids: Known, *_: object) -> Value:
    """Look up rows of a constant table; ids that are an input are bounded by it."""
    value, rows = tracer.value(ids), tracer.weights(table)
    number = tracer.graph.input_of.get(value.number)
    if number is not None:
        tracer.graph.below[number] = min(len(rows), tracer.graph.below.get(number, len(rows)))
    return tracer.add("embedding", value, layer=tracer.tensor_layer(table), arrays={"table": rows})


@rule("unfold.default", axes_at=1)
def windows(tracer: Tracer, value: Value, axis: int, size: int, step: int) -> Value:
    """Copy the windows of ``size`` entries along an axis, ``step`` apart, to a new last axis."""
    axis = tracer.image_axis(value, axis, _REFUSAL)
    count = (value.shape[axis - 1] - size) // step + 1
    by_window = count <= size  # whichever takes fewer slices
    places = torch.arange(count)[:, None] * step + torch.arange(size)
    places = places if by_window else places.T
    gathered = take(tracer, value, axis, places.flatten().tolist())
    apart = tracer.reshape(gathered, (*value.shape[: axis - 1], *places.shape, *value.shape[axis:]))
    return tracer.move_axis(apart, axis - 1 + by_window, len(value.shape))


@rule("index.Tensor")
def index(tracer: Tracer, value: Value, indices: Sequence[Known]) -> Value:
    """Gather entries of one axis at constant indices."""
    first, *rest = indices
    each_image = isinstance(first, Tensor) and torch.equal(first.flatten(), torch.arange(tracer.batch))
    if each_image and len(rest) == 1 and isinstance(rest[0], Tensor):
        return tracer.reshape(index_select(tracer, value, 1, rest[0].flatten()), tracer.output_shape())
    axes = [axis for axis, places in enumerate(indices) if places is not None]
    if len(axes) != 1:
        raise tracer.refuse("gathers along several axes at once: index one axis at a time")
    return index_select(tracer, value, axes[0], indices[axes[0]])


@rule("repeat_interleave.self_int")
def repeat_interleave(
    tracer: Tracer, value: Value, times: int, axis: int | None = None, **_: object
) -> Value | BatchView:
    """Repeat every entry of an axis; that of the batch is then folded with the repetitions."""
    if axis is not None and axis % (len(value.shape) + 1) == 0:
        once = tracer.reshape(value, (1, *value.shape))
        return BatchView(repeat_entries(tracer, once, 1, times), folded=True)
    return repeat_entries(tracer, value, tracer.image_axis(value, axis or 0, _REFUSAL), times)


@rule("pad.default", batch="pad")
def pad(tracer: Tracer, value: Value, sizes: Sequence[int], mode: str = "constant", fill: float | None = None) -> Value:
    """Pad, or crop where a size is negative. Torch lists the sizes of the last axis first."""
    rank = len(value.shape)
    if any(sizes[2 * rank :]):
        raise tracer.refuse(f"pads the batch ({list(sizes)}): a packed network treats each image by itself")
    if mode != "constant":
        return _pad_by_entries(tracer, value, sizes, mode)
    both = [*sizes[: 2 * rank], *[0] * (2 * rank - len(sizes))]
    before, after = (both[side::2][::-1] for side in (0, 1))
    for axis, (first, last) in enumerate(zip(before, after, strict=True), start=1):
        value = tracer.slice_axis(value, axis - 1, slice(max(0, -first), value.shape[axis - 1] - max(0, -last)))
    before, after = ([max(0, size) for size in side] for side in (before, after))
    if not any((*before, *after)):
        return value
    largest = torch.finfo(torch.float32).max  # a file holds no infinity; the maximum of a pool is the same
    return tracer.add("pad", value, before=before, after=after, value=min(max(float(fill or 0), -largest), largest))


@rule("constant_pad_nd.default", batch="pad")
def constant_pad(tracer: Tracer, value: Value, sizes: Sequence[int], fill: float = 0.0) -> Value:
    """Pad with a constant."""
    return pad(tracer, value, sizes, "constant", fill)


def _pad_by_entries(tracer: Tracer, value: Value, sizes: Sequence[int], mode: str) -> Value:
    """Pad by reflecting, replicating or wrapping. A sign moves behind the padding, where the engine fuses it."""
    maker = tracer.maker(value)
    sign = maker if maker is not None and maker.kind == "sign" else None
    value = value if sign is None else tracer.source(sign)
    for number, (before, after) in enumerate(zip(sizes[::2], sizes[1::2], strict=True)):
        axis = len(value.shape) - number
        indices = torch.arange(float(value.shape[axis - 1]))[None, None]
        value = take(tracer, value, axis, nnf.pad(indices, (before, after), mode).flatten().int().tolist())
    return value if sign is None else tracer.add("sign", value)
