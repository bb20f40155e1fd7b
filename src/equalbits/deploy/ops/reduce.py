"""Rules for what makes one number of many: means, sums and largest ones over any axes of an image."""

import math
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

from torch import Tensor

from equalbits.deploy import simplify
from equalbits.deploy.graph import Value
from equalbits.deploy.ops.elementwise import add, clamp, neg
from equalbits.deploy.ops.shape import images_shape, repeat
from equalbits.deploy.tracer import Places, Rule, Stacked, Walk


def mean(walk: Walk, value: Any, axes: Sequence[int] | None = None, kept: bool = False, **_: Any) -> Value:
    """The mean over any axes but the batch."""
    if isinstance(value, Stacked):
        return walk.affine(total(walk, value, axes, kept), 1 / len(value.values))
    image, over = _laid_out(walk, walk.value(value), "mean", axes)
    size = [1 if axis in over else image.shape[axis - 1] for axis in (2, 3)]
    made = walk.steps.add("adaptive_avg_pool", image, layer=walk.layer, size=size)
    return walk.steps.reshape(made, images_shape(walk), layer=walk.layer)


def total(walk: Walk, value: Any, axes: Sequence[int] | None = None, kept: bool = False, **_: Any) -> Value:
    """The sum over any axes but the batch: the mean, times how many there are."""
    if isinstance(value, Stacked):
        return reduce(partial(add, walk), _one_by_one(walk, value, axes, kept))
    made = mean(walk, value, axes)
    return walk.affine(made, math.prod(walk.value(value).shape) / math.prod(made.shape))


def largest(walk: Walk, value: Any, axes: Sequence[int] = (), kept: bool = False) -> Value:
    """The largest over any axes but the batch."""
    if isinstance(value, Stacked):
        return reduce(partial(larger, walk), _one_by_one(walk, value, axes, kept))
    image, over = _laid_out(walk, walk.value(value), "largest", axes)
    kernel = [image.shape[axis - 1] if axis in over else 1 for axis in (2, 3)]
    made = walk.steps.add("max_pool", image, layer=walk.layer, kernel=kernel)
    return walk.steps.reshape(made, images_shape(walk), layer=walk.layer)


def smallest(walk: Walk, value: Any, axes: Sequence[int] = (), kept: bool = False) -> Value:
    """The smallest: the largest of the opposites."""
    if isinstance(value, Stacked):
        return reduce(partial(smaller, walk), _one_by_one(walk, value, axes, kept))
    return neg(walk, largest(walk, neg(walk, value), axes))


def larger(walk: Walk, first: Any, second: Any) -> Value:
    """The larger of two values, number by number, or of a value and one number."""
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        known, value = (first, second) if isinstance(first, Tensor) else (second, first)
        return clamp(walk, repeat(walk, value), _one_number(walk, known))
    first, second = repeat(walk, first), repeat(walk, second)
    shape = first.shape
    rows = [simplify.reshape(walk.steps, value, (1, math.prod(shape)), layer=walk.layer) for value in (first, second)]
    both = walk.steps.add("concat", *rows, layer=walk.layer)
    image = simplify.reshape(walk.steps, both, (1, 2, math.prod(shape)), layer=walk.layer)
    made = walk.steps.add("max_pool", image, layer=walk.layer, kernel=(2, 1))
    return walk.steps.reshape(made, shape, layer=walk.layer)


def smaller(walk: Walk, first: Any, second: Any) -> Value:
    """The smaller of two values: the larger of the opposites."""
    opposites = [-known if isinstance(known, Tensor) else neg(walk, known) for known in (first, second)]
    return neg(walk, larger(walk, *opposites))


def with_places(rule: Rule) -> Rule:
    """A reduction that torch gives with the places of what it found; those no packed network knows."""

    def placed(walk: Walk, value: Any, axis: int, kept: bool = False) -> tuple[Value, Places]:
        inner = value.values[0] if isinstance(value, Stacked) else walk.value(value)
        shape = [walk.batch, *inner.shape]
        place = axis % len(shape)
        if not isinstance(value, Stacked):
            shape[place : place + 1] = [1] if kept else []
        walk.shape = tuple(shape)  # of a pair the trace says none
        return rule(walk, value, [axis], kept), Places()

    return placed


def _one_by_one(walk: Walk, stacked: Stacked, axes: Sequence[int] | None, kept: bool) -> tuple[Value, ...]:
    """The values that stand before the batch, where that axis alone is gone over, and goes."""
    rank = len(stacked.values[0].shape) + 2
    if kept or [axis % rank for axis in axes or ()] != [0]:
        walk.value(stacked)  # which refuses it
    return stacked.values


def _one_number(walk: Walk, known: Tensor) -> float:
    if not bool((known == known.flatten()[0]).all()):
        raise walk.refuse("compares with constants of several sizes: a packed network has one edge for all")
    return float(known.flatten()[0])


def _laid_out(walk: Walk, value: Value, what: str, axes: Sequence[int] | None) -> tuple[Value, set[int]]:
    """An image and those of its axes 2 and 3 to go over, which are ``axes`` of the value: moved there if need be."""
    rank = len(value.shape)
    over = sorted({axis % (rank + 1) for axis in axes or range(rank + 1)})
    if 0 in over:
        raise walk.refuse(f"takes the {what} over axes {axes}, the batch too: a packed network answers each by itself")
    if rank == 3 and 1 not in over:
        return value, set(over)
    kept = [axis for axis in range(1, rank + 1) if axis not in over]
    turned = simplify.permute(walk.steps, value, [axis - 1 for axis in (*kept, *over)], layer=walk.layer)
    sizes = [math.prod(value.shape[axis - 1] for axis in group) for group in (kept, over)]
    return simplify.reshape(walk.steps, turned, (sizes[0], 1, sizes[1]), layer=walk.layer), {3}


RULES: dict[str, Rule] = {
    "mean.dim": mean,
    "sum.dim_IntList": total,
    "amax.default": largest,
    "amin.default": smallest,
    "max.dim": with_places(largest),
    "min.dim": with_places(smallest),
    "maximum.default": larger,
    "max.other": larger,
    "minimum.default": smaller,
    "min.other": smaller,
}
