"""Rules for what takes entries of an axis in another order, or again: flips, rolls, padding by what is there."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from equalbits.deploy import simplify
from equalbits.deploy.graph import Value
from equalbits.deploy.ops.shape import concat, each, slice_
from equalbits.deploy.tracer import Rule, Walk


def take(walk: Walk, value: Value, axis: int, places: Sequence[int]) -> Value:
    """The entries of an axis at these places: slices, one after the other; the batch is axis 0."""
    size = value.shape[axis - 1]
    times = len(places) // size
    if list(places) == [place for place in range(size) for _ in range(times)]:
        return each(walk, value, axis, times)
    first = simplify.to_front(walk.steps, value, axis - 1, layer=walk.layer)
    parts = [simplify.slice_(walk.steps, first, 0, cut, layer=walk.layer) for cut in _runs(places)]
    return simplify.from_front(walk.steps, concat(walk, parts, 1), axis - 1, layer=walk.layer)


def _runs(places: Sequence[int]) -> Iterator[slice]:
    """Places as slices: the longest that goes on by one step, then the next."""
    start = 0
    while start < len(places):
        step = max(1, places[start + 1] - places[start]) if start + 1 < len(places) else 1
        end = start + 1
        while end < len(places) and places[end] - places[end - 1] == step:
            end += 1
        yield slice(places[start], places[end - 1] + 1, step)
        start = end


def flip(walk: Walk, value: Any, axes: Sequence[int]) -> Value:
    """Axes from their end to their start."""
    made = walk.value(value)
    for axis in axes:
        place = _within(walk, made, axis)
        made = take(walk, made, place, range(made.shape[place - 1])[::-1])
    return made


def roll(walk: Walk, value: Any, shifts: Sequence[int], axes: Sequence[int] = ()) -> Value:
    """Axes turned so far, what leaves one end coming in at the other."""
    made = walk.value(value)
    for shift, axis in zip(shifts, axes or [0], strict=True):
        axis = _within(walk, made, axis)
        size = made.shape[axis - 1]
        made = take(walk, made, axis, [(place - shift) % size for place in range(size)])
    return made


def index_select(walk: Walk, value: Any, axis: int, index: Any) -> Value:
    """Entries at constant places."""
    value = walk.value(value)
    axis = _within(walk, value, axis)
    if not isinstance(index, Tensor) or index.dim() != 1 or index.dtype is torch.bool or not index.numel():
        raise walk.refuse("takes entries at places that are no constant row of whole numbers: give them as a buffer")
    return take(walk, value, axis, (index % value.shape[axis - 1]).tolist())


def index(walk: Walk, value: Any, indices: Sequence[Any]) -> Value:
    """Entries of one axis at constant places, the other axes whole."""
    axes = [axis for axis, places in enumerate(indices) if places is not None]
    if len(axes) != 1:
        raise walk.refuse("takes entries of several axes by places at once: take them axis by axis")
    return index_select(walk, value, axes[0], indices[axes[0]])


def interleave(walk: Walk, value: Any, times: int, axis: int | None = None, **_: Any) -> Value:
    """Every entry of an axis so many times in a row."""
    value = walk.value(value)
    return each(walk, value, _within(walk, value, axis or 0), times)


def pad(walk: Walk, value: Any, sizes: Sequence[int], mode: str = "constant", fill: float | None = None) -> Value:
    """More around, constants or what is there; below 0, less. Torch lists the last axis first."""
    made = walk.value(value)
    rank = len(made.shape)
    if any(sizes[2 * rank :]):
        raise walk.refuse(f"pads by {list(sizes)}, the batch too: a packed network answers each image by itself")
    if mode != "constant":
        return _pad_by_entries(walk, made, sizes, mode)
    both = [*sizes[: 2 * rank], *[0] * (2 * rank - len(sizes))]
    before, after = (both[side::2][::-1] for side in (0, 1))
    for axis, (first, last) in enumerate(zip(before, after, strict=True), start=1):
        made = slice_(walk, made, axis, max(0, -first), made.shape[axis - 1] - max(0, -last))
    before, after = ([max(0, size) for size in side] for side in (before, after))
    if not any((*before, *after)):
        return made
    return walk.steps.add("pad", made, layer=walk.layer, before=before, after=after, value=float(fill or 0))


def _pad_by_entries(walk: Walk, value: Value, sizes: Sequence[int], mode: str) -> Value:
    """Entries of each axis again around it. A sign is taken behind, where a convolution sees it."""
    if mode == "circular" and min(sizes) < 0:  # torch then goes round what is left, not what was there
        raise walk.refuse(f"pads by {list(sizes)}, going round and taking off at once: take a slice first, then pad")
    sign = walk.steps.maker(value)
    signed = sign is not None and sign.kind == "sign"
    value = walk.steps.source(sign) if sign is not None and signed else value
    for number, (before, after) in enumerate(zip(sizes[::2], sizes[1::2], strict=True)):
        axis = len(value.shape) - number
        size = value.shape[axis - 1]
        value = take(walk, value, axis, [_place(place, size, mode) for place in range(-before, size + after)])
    return walk.steps.add("sign", value, layer=walk.layer) if signed else value


def _place(place: int, size: int, mode: str) -> int:
    """Which entry stands at a place before the first or behind the last.

    >>> [_place(place, 3, "reflect") for place in range(-2, 5)]
    [2, 1, 0, 1, 2, 1, 0]
    """
    if mode == "circular":
        return place % size
    if mode == "reflect":
        return abs(place) if place < size else 2 * (size - 1) - place
    return min(max(place, 0), size - 1)


def constant_pad(walk: Walk, value: Any, sizes: Sequence[int], fill: float = 0.0) -> Value:
    """Constants around."""
    return pad(walk, value, sizes, "constant", fill)


def _within(walk: Walk, value: Value, axis: int) -> int:
    """An axis counted from 0, the batch."""
    axis = axis % (len(value.shape) + 1)
    if axis == 0:
        raise walk.refuse("takes images of the batch in another order: a packed network answers each by itself")
    return axis


RULES: dict[str, Rule] = {
    "pad.default": pad,
    "constant_pad_nd.default": constant_pad,
    "flip.default": flip,
    "roll.default": roll,
    "index_select.default": index_select,
    "index.Tensor": index,
    "repeat_interleave.self_int": interleave,
}
