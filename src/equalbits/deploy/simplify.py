"""Several of torch's operations as one of the file's: batch norm as an affine, a shuffle, a slice; and what is dead."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from torch import Tensor

from equalbits.deploy.graph import Step, Steps, Value, as_array
from equalbits.runtime.op_specs import Shape


def batch_norm(
    mean: Tensor, var: Tensor, eps: float, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Gain and shift of a batch norm in eval: ``weight/√(var + eps)`` and ``bias − mean · gain``.

    Found in float64 and rounded once; torch's own answer lies within a few units of float32's last place. A negative
    weight turns the order round and a weight of 0 leaves the bias alone, as they must: the sign behind it is taken of
    the affine's value, with no threshold that would need a direction.

    >>> import torch
    >>> gain, shift = batch_norm(torch.tensor([1.0]), torch.tensor([4.0]), 0.0, torch.tensor([-6.0]), None)
    >>> gain, shift
    (tensor([-3.], dtype=torch.float64), tensor([3.], dtype=torch.float64))
    """
    gain = (var.double() + eps).rsqrt()
    gain = gain if weight is None else gain * weight.double()
    shift = -mean.double() * gain
    return gain, shift if bias is None else shift + bias.double()


def scaled_by_channel(steps: Steps, value: Value, gain: Tensor, shift: Tensor, *, layer: str) -> Value:
    """An affine with one gain and one shift for each channel."""
    tail = (1,) * (len(value.shape) - 1)
    return steps.affine(value, *(as_array(vector).reshape(-1, *tail) for vector in (gain, shift)), layer=layer)


def reshape(steps: Steps, value: Value, shape: Shape, *, layer: str) -> Value:
    """A reshape, joined to one before it; or, behind a reshape and a swap of groups, a channel shuffle."""
    last = steps.maker(value)
    if last is not None and last.kind in ("reshape", "flatten"):
        return steps.reshape(steps.source(last), shape, layer=layer)
    if last is not None and last.kind == "permute" and len(last.shape) == 4 and last.settings["axes"] == (1, 0, 2, 3):
        before = steps.maker(steps.source(last))
        whole = before is not None and before.kind == "reshape" and before.shape[2:] == shape[1:]
        if before is not None and whole and steps.source(before).shape == shape:
            return steps.add("channel_shuffle", steps.source(before), layer=layer, groups=before.shape[0])
    return steps.reshape(value, shape, layer=layer)


def permute(steps: Steps, value: Value, axes: Sequence[int], *, layer: str) -> Value:
    """The axes in another order, joined to an order before it; nothing where it is theirs already."""
    last = steps.maker(value)
    if last is not None and last.kind == "permute":
        return permute(steps, steps.source(last), [last.settings["axes"][axis] for axis in axes], layer=layer)
    if list(axes) == sorted(axes):
        return value
    return steps.add("permute", value, layer=layer, axes=list(axes))


def to_front(steps: Steps, value: Value, axis: int, *, layer: str) -> Value:
    """One axis before all others."""
    return permute(steps, value, _with_first(axis, len(value.shape)), layer=layer)


def from_front(steps: Steps, value: Value, axis: int, *, layer: str) -> Value:
    """The first axis back at its place, as it was before :func:`to_front`."""
    order = _with_first(axis, len(value.shape))
    return permute(steps, value, [order.index(place) for place in range(len(order))], layer=layer)


def _with_first(axis: int, rank: int) -> list[int]:
    return [axis, *(other for other in range(rank) if other != axis)]


def slice_(steps: Steps, value: Value, axis: int, cut: slice, *, layer: str) -> Value:
    """A slice along one axis, joined to one along another axis before it."""
    start, stop, step = cut.indices(value.shape[axis])
    if (start, stop, step) == (0, value.shape[axis], 1):
        return value
    last, source = steps.maker(value), value
    starts, stops, strides = [0] * len(value.shape), list(value.shape), [1] * len(value.shape)
    if last is not None and last.kind == "slice":
        before = steps.source(last)
        if last.shape[axis] == before.shape[axis]:
            source = before
            starts, stops, strides = (list(last.settings[name]) for name in ("start", "stop", "step"))
    starts[axis], stops[axis], strides[axis] = start, stop, step
    return steps.add("slice", source, layer=layer, start=starts, stop=stops, step=strides)


def without_dead(steps: Steps, answer: Value) -> Steps:
    """Only what the answer hangs on, numbered anew; the answer is then the last."""
    needed, wanted = set[int](), [answer.number]
    while wanted:
        number = wanted.pop()
        if number and number not in needed:
            needed.add(number)
            wanted.extend(steps.rows[number - 1].inputs)
    numbers = {0: 0} | {old: new for new, old in enumerate(sorted(needed), start=1)}
    rows = [_renumbered(steps.rows[old - 1], numbers) for old in sorted(needed)]
    return Steps(steps.input_shape, rows)


def _renumbered(step: Step, numbers: dict[int, int]) -> Step:
    inputs = tuple(numbers[value] for value in step.inputs)
    return Step(step.kind, inputs, step.arrays, step.settings, step.layer, step.shape, step.node)


def constant(tensor: Tensor, batch: int, rank: int) -> Tensor | None:
    """A constant without its batch axis, to meet values of ``rank`` axes; None where images would differ by it."""
    if tensor.dim() <= rank:
        return tensor
    if tensor.dim() > rank + 1 or tensor.shape[0] not in (1, batch):
        return None
    if not bool((tensor == tensor[:1]).all()):
        return None
    alike = bool((tensor == tensor.flatten()[0]).all())  # as one made in the shape of a value
    return tensor.flatten()[0] if alike else tensor[0]


def stair_parts(levels: list[float]) -> tuple[list[float], float]:
    """A stair's half steps, and what lies under them: ``Σ ±half + base`` takes each level in turn.

    >>> stair_parts([-1.0, 1.0])
    ([1.0], 0.0)
    """
    halves = [(above - below) / 2 for below, above in pairwise(levels)]
    return halves, float(np.float64(levels[0]) + sum(halves))
