"""Comparisons with constants, and choices between constants by them: signs and other step functions."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from equalbits.deploy.ops.shape import expand_to
from equalbits.deploy.traced_values import Known, Mask, StepFunction, Value
from equalbits.deploy.tracer import Tracer, rule


def _compare(tracer: Tracer, first: Known, second: Known, *, above: bool, strict: bool) -> StepFunction:
    """Compare a value with a constant threshold, on either side: a step from 0 to 1, or from 1 to 0."""
    value, threshold = first, second
    if isinstance(first, Tensor | float | int):  # t ≤ x is x ≥ t
        value, threshold, above, strict = second, first, not above, not strict
    if not isinstance(threshold, Tensor | float | int):
        raise tracer.refuse("compares with a value computed from the image: a packed network has constant thresholds")
    if isinstance(threshold, Tensor) and threshold.dtype is torch.bool:
        threshold = threshold.float()
    # x ≥ t and its negation x < t put the threshold above; x > t and x ≤ t put it below.
    return StepFunction(tracer.value(value), ((threshold, strict),), (0.0, 1.0) if above else (1.0, 0.0))


for _name, _above, _strict in (("ge", True, False), ("gt", True, True), ("lt", False, False), ("le", False, True)):
    rule(f"{_name}.Scalar", f"{_name}.Tensor", batch="anywhere")(partial(_compare, above=_above, strict=_strict))


@rule("bitwise_not.default", "logical_not.default")
def logical_not(tracer: Tracer, condition: Known) -> StepFunction | Mask:
    """Negate a comparison or a mask."""
    if isinstance(condition, Mask):
        return Mask(tracer.affine(condition.value, -1.0, 1.0))
    if not isinstance(condition, StepFunction) or not _is_bool(condition) or tracer.dtype is not torch.bool:
        raise tracer.refuse("negates numbers as bools: compare them with a constant instead")
    return replace(condition, levels=condition.levels[::-1])


@rule("bitwise_and.Tensor", "logical_and.default")
def logical_and(tracer: Tracer, first: Known, second: Known) -> Mask:
    """Combine masks: a product of 0 and 1."""
    bools = [known for known in (first, second) if _is_bool(known)]
    constant = second if _is_bool(first) else first
    if tracer.dtype is not torch.bool or not bools or (len(bools) == 1 and not isinstance(constant, Tensor)):
        raise tracer.refuse("combines numbers as bools: compare them with a constant instead")
    made = [expand_to(tracer, tracer.value(known), tracer.output_shape()) for known in bools]
    if len(made) == 2:
        return Mask(tracer.add("mul", *made))
    assert isinstance(constant, Tensor)
    return Mask(made[0] if bool(constant.all()) else tracer.affine(made[0], constant.bool()))


def _is_bool(known: Known) -> bool:
    """Return whether a value is 0 or 1 everywhere, as a comparison is; a step function may have other levels."""
    return isinstance(known, Mask) or (isinstance(known, StepFunction) and sorted(known.levels) == [0.0, 1.0])


@rule("_assert_tensor_metadata.default")
def assert_metadata(tracer: Tracer, *_: object, **__: object) -> None:
    """Do nothing: the trace has these dtypes."""


@rule("where.self")
def where(tracer: Tracer, condition: Known, yes: Known, no: Known) -> StepFunction | Value:
    """Choose between constants by a comparison; nested choices with rising thresholds make one step function."""
    if isinstance(condition, Mask):
        base = _number(tracer, no)
        made = expand_to(tracer, condition.value, tracer.output_shape())
        return tracer.affine(made, _number(tracer, yes) - base, base)
    if not isinstance(condition, StepFunction):
        raise tracer.refuse("chooses between values by something other than a comparison with a constant")
    low, high = (no, yes) if condition.levels[0] == 0 else (yes, no)
    (threshold,) = condition.thresholds
    if isinstance(low, StepFunction) and replace(condition, thresholds=low.thresholds, levels=low.levels) == low:
        last = low.thresholds[-1][0]
        several = isinstance(last, Tensor) and last.numel() != 1
        if not several and float(last) < _number(tracer, threshold[0]):
            levels = (*low.levels, _number(tracer, high))
            return replace(low, thresholds=(*low.thresholds, threshold), levels=levels)
    return replace(condition, levels=(_number(tracer, low), _number(tracer, high)))


def _number(tracer: Tracer, known: Known) -> float:
    if isinstance(known, Tensor) and known.numel() and bool((known == known.flatten()[0]).all()):
        return float(known.flatten()[0])
    if isinstance(known, int | float):
        return float(known)
    raise tracer.refuse("chooses between values that are not numbers: a packed network has step functions of constants")
