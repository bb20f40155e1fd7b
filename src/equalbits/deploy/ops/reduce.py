"""Reductions over any axes but the batch: mean, sum, maximum and minimum; and elementwise maximum and minimum."""

import math
from collections.abc import Sequence
from functools import partial, reduce

import torch
from torch import Tensor

from equalbits.deploy.ops.elementwise import add, clamp, neg
from equalbits.deploy.ops.shape import expand
from equalbits.deploy.traced_values import Indices, Known, Operand, Stacked, Value
from equalbits.deploy.tracer import Tracer, rule

Axes = Sequence[int] | None


@rule("mean.dim", axes_at=1)
def mean(tracer: Tracer, value: Known, axes: Axes = None, keepdim: bool = False, **_: object) -> Value:
    """Reduce by the mean: an adaptive pooling."""
    if isinstance(value, Stacked):
        return tracer.affine(total(tracer, value, axes, keepdim), 1 / len(value.values))
    image, reduced = _as_image(tracer, tracer.value(value), "mean", axes)
    size = [1 if axis in reduced else image.shape[axis - 1] for axis in (2, 3)]
    made = tracer.add("adaptive_avg_pool", image, size=size)
    return tracer.reshape(made, tracer.output_shape())


@rule("sum.dim_IntList", axes_at=1)
def total(tracer: Tracer, value: Known, axes: Axes = None, keepdim: bool = False, **_: object) -> Value:
    """Reduce by the sum: the mean times the number of entries. As a bool, it is true where any entry is."""
    if isinstance(value, Stacked):
        return reduce(partial(add, tracer), _unstack(tracer, value, axes, keepdim))
    made = mean(tracer, value, axes)
    made = tracer.affine(made, math.prod(tracer.value(value).shape) / math.prod(made.shape))
    return clamp(tracer, made, 0.0, 1.0) if tracer.dtype is torch.bool else made


@rule("amax.default", axes_at=1)
def amax(tracer: Tracer, value: Known, axes: Axes = (), keepdim: bool = False) -> Value:
    """Reduce by the maximum: a max pooling."""
    if isinstance(value, Stacked):
        return reduce(partial(maximum, tracer), _unstack(tracer, value, axes, keepdim))
    image, reduced = _as_image(tracer, tracer.value(value), "maximum", axes)
    kernel = [image.shape[axis - 1] if axis in reduced else 1 for axis in (2, 3)]
    made = tracer.add("max_pool", image, kernel=kernel)
    return tracer.reshape(made, tracer.output_shape())


@rule("amin.default")
def amin(tracer: Tracer, value: Known, axes: Axes = (), keepdim: bool = False) -> Value:
    """Reduce by the minimum: the negated maximum of the negated value."""
    if isinstance(value, Stacked):
        return reduce(partial(minimum, tracer), _unstack(tracer, value, axes, keepdim))
    return neg(tracer, amax(tracer, neg(tracer, tracer.value(value)), axes))


@rule("max.dim")
def max_with_indices(tracer: Tracer, value: Known, axis: int, keepdim: bool = False) -> tuple[Value, Indices]:
    """Reduce one axis by the maximum; the indices cannot be read."""
    return amax(tracer, value, [axis], keepdim), Indices()


@rule("min.dim")
def min_with_indices(tracer: Tracer, value: Known, axis: int, keepdim: bool = False) -> tuple[Value, Indices]:
    """Reduce one axis by the minimum; the indices cannot be read."""
    return amin(tracer, value, [axis], keepdim), Indices()


@rule("maximum.default")
def maximum(tracer: Tracer, first: Operand, second: Operand) -> Value:
    """Take the larger of two values elementwise, or of a value and one number."""
    if not isinstance(first, Value):
        first, second = second, first
    values = [expand(tracer, tracer.value(first))]
    if isinstance(second, Tensor):
        if not bool((second == second.flatten()[0]).all()):
            raise tracer.refuse("takes the maximum or minimum with several constants: a packed network clamps to one")
        return clamp(tracer, values[0], float(second.flatten()[0]))
    values.append(expand(tracer, tracer.value(second)))
    shape, length = values[0].shape, math.prod(values[0].shape)
    both = tracer.add("concat", *[tracer.reshape(value, (1, length)) for value in values])
    made = tracer.add("max_pool", tracer.reshape(both, (1, 2, length)), kernel=(2, 1))
    return tracer.reshape(made, shape)


@rule("minimum.default")
def minimum(tracer: Tracer, first: Operand, second: Operand) -> Value:
    """Take the smaller of two values elementwise: the negated maximum of the negated values."""
    negated = [-known if isinstance(known, Tensor) else neg(tracer, tracer.value(known)) for known in (first, second)]
    return neg(tracer, maximum(tracer, *negated))


def _unstack(tracer: Tracer, stacked: Stacked, axes: Axes, keepdim: bool) -> tuple[Value, ...]:
    """Return stacked values, where their axis alone is reduced and dropped."""
    rank = len(stacked.values[0].shape) + 2
    if keepdim or [axis % rank for axis in axes or ()] != [0]:
        tracer.value(stacked)  # raises
    return stacked.values


def _as_image(tracer: Tracer, value: Value, what: str, axes: Axes) -> tuple[Value, set[int]]:
    """Return an image, and which of its axes 2 and 3 to reduce for ``axes`` of the value; permute where needed."""
    rank = len(value.shape)
    reduced = sorted({axis % (rank + 1) for axis in axes or range(rank + 1)})
    if 0 in reduced:
        raise tracer.refuse(
            f"takes the {what} over axes {axes}, the batch included: name all axes but the batch, a packed network "
            f"treats each image by itself"
        )
    if rank == 3 and 1 not in reduced:
        return value, set(reduced)
    kept = [axis for axis in range(1, rank + 1) if axis not in reduced]
    permuted = tracer.permute(value, [axis - 1 for axis in (*kept, *reduced)])
    sizes = [math.prod(value.shape[axis - 1] for axis in group) for group in (kept, reduced)]
    return tracer.reshape(permuted, (sizes[0], 1, sizes[1])), {3}
