"""Reductions over any axes but the batch: mean, sum, maximum and minimum; and elementwise maximum and minimum."""

import math
from collections.abc import Sequence
from functools import partial, reduce

from torch import Tensor

from equalbits.deploy import simplify
from equalbits.deploy.graph import Value
from equalbits.deploy.ops.elementwise import add, clamp, neg
from equalbits.deploy.ops.shape import expand
from equalbits.deploy.tracer import Indices, Known, Stacked, Tracer, rule

Axes = Sequence[int] | None


@rule("mean.dim")
def mean(tracer: Tracer, value: Known, axes: Axes = None, keepdim: bool = False, **_: object) -> Value:
    """Reduce by the mean: an adaptive pooling."""
    if isinstance(value, Stacked):
        return tracer.affine(total(tracer, value, axes, keepdim), 1 / len(value.values))
    image, reduced = _as_image(tracer, tracer.value(value), "mean", axes)
    size = [1 if axis in reduced else image.shape[axis - 1] for axis in (2, 3)]
    made = tracer.add("adaptive_avg_pool", image, size=size)
    return tracer.graph.reshape(made, tracer.output_shape(), layer=tracer.layer)


@rule("sum.dim_IntList")
def total(tracer: Tracer, value: Known, axes: Axes = None, keepdim: bool = False, **_: object) -> Value:
    """Reduce by the sum: the mean times the number of entries."""
    if isinstance(value, Stacked):
        return reduce(partial(add, tracer), _unstack(tracer, value, axes, keepdim))
    made = mean(tracer, value, axes)
    return tracer.affine(made, math.prod(tracer.value(value).shape) / math.prod(made.shape))


@rule("amax.default")
def amax(tracer: Tracer, value: Known, axes: Axes = (), keepdim: bool = False) -> Value:
    """Reduce by the maximum: a max pooling."""
    if isinstance(value, Stacked):
        return reduce(partial(maximum, tracer), _unstack(tracer, value, axes, keepdim))
    image, reduced = _as_image(tracer, tracer.value(value), "maximum", axes)
    kernel = [image.shape[axis - 1] if axis in reduced else 1 for axis in (2, 3)]
    made = tracer.add("max_pool", image, kernel=kernel)
    return tracer.graph.reshape(made, tracer.output_shape(), layer=tracer.layer)


@rule("amin.default")
def amin(tracer: Tracer, value: Known, axes: Axes = (), keepdim: bool = False) -> Value:
    """Reduce by the minimum: the negated maximum of the negated value."""
    if isinstance(value, Stacked):
        return reduce(partial(minimum, tracer), _unstack(tracer, value, axes, keepdim))
    return neg(tracer, amax(tracer, neg(tracer, value), axes))


@rule("max.dim")
def max_with_indices(tracer: Tracer, value: Known, axis: int, keepdim: bool = False) -> tuple[Value, Indices]:
    """Reduce one axis by the maximum; the indices cannot be read."""
    _set_reduced_shape(tracer, value, axis, keepdim)
    return amax(tracer, value, [axis], keepdim), Indices()


@rule("min.dim")
def min_with_indices(tracer: Tracer, value: Known, axis: int, keepdim: bool = False) -> tuple[Value, Indices]:
    """Reduce one axis by the minimum; the indices cannot be read."""
    _set_reduced_shape(tracer, value, axis, keepdim)
    return amin(tracer, value, [axis], keepdim), Indices()


def _set_reduced_shape(tracer: Tracer, value: Known, axis: int, keepdim: bool) -> None:
    """Set the output shape, which the trace does not record for a pair."""
    inner = value.values[0] if isinstance(value, Stacked) else tracer.value(value)
    shape = [tracer.batch, *inner.shape]
    place = axis % len(shape)
    if not isinstance(value, Stacked):
        shape[place : place + 1] = [1] if keepdim else []
    tracer.shape = tuple(shape)


@rule("maximum.default")
def maximum(tracer: Tracer, first: Known, second: Known) -> Value:
    """Take the larger of two values elementwise, or of a value and one number."""
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        constant, value = (first, second) if isinstance(first, Tensor) else (second, first)
        return clamp(tracer, expand(tracer, value), _uniform(tracer, constant))
    one, other = expand(tracer, first), expand(tracer, second)
    shape = one.shape
    rows = [simplify.reshape(tracer.graph, value, (1, math.prod(shape)), layer=tracer.layer) for value in (one, other)]
    both = tracer.add("concat", *rows)
    image = simplify.reshape(tracer.graph, both, (1, 2, math.prod(shape)), layer=tracer.layer)
    made = tracer.add("max_pool", image, kernel=(2, 1))
    return tracer.graph.reshape(made, shape, layer=tracer.layer)


@rule("minimum.default")
def minimum(tracer: Tracer, first: Known, second: Known) -> Value:
    """Take the smaller of two values elementwise: the negated maximum of the negated values."""
    negated = [-known if isinstance(known, Tensor) else neg(tracer, known) for known in (first, second)]
    return neg(tracer, maximum(tracer, *negated))


def _unstack(tracer: Tracer, stacked: Stacked, axes: Axes, keepdim: bool) -> tuple[Value, ...]:
    """Return stacked values, where their axis alone is reduced and dropped."""
    rank = len(stacked.values[0].shape) + 2
    if keepdim or [axis % rank for axis in axes or ()] != [0]:
        tracer.value(stacked)  # raises
    return stacked.values


def _uniform(tracer: Tracer, constant: Known) -> float:
    if not isinstance(constant, Tensor) or not bool((constant == constant.flatten()[0]).all()):
        raise tracer.refuse("takes the maximum or minimum with several constants: a packed network clamps to one")
    return float(constant.flatten()[0])


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
    order = [axis - 1 for axis in (*kept, *reduced)]
    permuted = simplify.permute(tracer.graph, value, order, layer=tracer.layer)
    sizes = [math.prod(value.shape[axis - 1] for axis in group) for group in (kept, reduced)]
    return simplify.reshape(tracer.graph, permuted, (sizes[0], 1, sizes[1]), layer=tracer.layer), {3}
