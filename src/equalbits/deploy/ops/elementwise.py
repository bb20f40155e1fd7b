"""Elementwise operations: sums, products with constants, batch norm, activations, casts and copies."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equalbits.deploy.ops.shape import expand
from equalbits.deploy.traced_values import Known, Mask, Operand, StepFunction, Value
from equalbits.deploy.tracer import Tracer, rule


@rule("add.Tensor", batch="anywhere")
def add(tracer: Tracer, first: Operand, second: Operand, *, alpha: float = 1) -> Value:
    """Add two values, or a value and a constant. A sum of bools is true where any of them is."""
    made = _add(tracer, first, second, alpha)
    return tracer.add("clamp", made, min=0.0, max=1.0) if tracer.dtype is torch.bool else made


def _add(tracer: Tracer, first: Operand, second: Operand, alpha: float) -> Value:
    if not isinstance(first, Value):
        return tracer.affine(_spread(tracer, tracer.value(second), first), alpha, first)
    if not isinstance(second, Value):
        return tracer.affine(_spread(tracer, first, second), 1.0, second * alpha)
    if first.shape != second.shape:
        first, second = expand(tracer, first), expand(tracer, second)
    return tracer.add("add", first, second if alpha == 1 else tracer.affine(second, alpha))


@rule("sub.Tensor", batch="anywhere")
def sub(tracer: Tracer, first: Operand, second: Operand, *, alpha: float = 1) -> Value:
    """Subtract."""
    return add(tracer, first, second, alpha=-alpha)


@rule("rsub.Scalar", batch="anywhere")
def subtract_from(tracer: Tracer, value: Value, constant: float) -> Value:
    """Subtract a value from a constant."""
    return sub(tracer, constant, value)


@rule("mul.Tensor", batch="anywhere")
def mul(tracer: Tracer, first: Operand, second: Operand) -> Value:
    """Multiply two values, or a value by a constant."""
    if not isinstance(first, Value):
        return tracer.affine(_spread(tracer, tracer.value(second), first), first)
    if not isinstance(second, Value):
        return tracer.affine(_spread(tracer, first, second), second)
    return multiply(tracer, first, second)


def _spread(tracer: Tracer, value: Value, constant: Operand) -> Value:
    """Repeat axes of size 1 of a value that is combined with a larger constant."""
    larger = isinstance(constant, Tensor) and any(
        size > own == 1 for size, own in zip(reversed(constant.shape), reversed(value.shape), strict=False)
    )
    return expand(tracer, value) if larger else value


def multiply(tracer: Tracer, first: Value, second: Value) -> Value:
    """Multiply two values; an axis of size 1 is repeated."""
    if len(first.shape) != len(second.shape):
        raise tracer.refuse(f"multiplies values of shape {first.shape} and {second.shape}: give both as many axes")
    return tracer.add("mul", first, second)


@rule("div.Tensor", batch="anywhere")
def div(tracer: Tracer, first: Operand, second: Operand) -> Value:
    """Divide by a constant, or multiply by the reciprocal of a value."""
    if isinstance(second, Value):
        return mul(tracer, first, tracer.add("reciprocal", second))
    return tracer.affine(tracer.value(first), 1 / second)


@rule("neg.default", batch="anywhere")
def neg(tracer: Tracer, value: Value) -> Value:
    """Negate."""
    return tracer.affine(value, -1.0)


@rule("batch_norm.default", batch="norm")
def batch_norm(
    tracer: Tracer,
    value: Value,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
    *_: bool,
) -> Value:
    """Normalize by running statistics: an affine computed in float64 and rounded once."""
    if training:
        return norm_of_input(tracer)
    gain = (var.double() + eps).rsqrt()
    gain = gain if weight is None else gain * weight.double()
    shift = -mean.double() * gain
    shift = shift if bias is None else shift + bias.double()
    tail = (1,) * (len(value.shape) - 1)
    return tracer.affine(value, gain.reshape(-1, *tail), shift.reshape(-1, *tail))


@rule("_native_batch_norm_legit_no_training.default", batch="norm")
def decomposed_batch_norm(tracer: Tracer, value: Value, *given: Any) -> tuple[Value]:
    """Normalize by running statistics: the form of a decomposed program, which returns a tuple."""
    return (batch_norm(tracer, value, *given[:4], False, *given[4:]),)


@rule("_native_batch_norm_legit.no_stats", "_native_batch_norm_legit_functional.default")
def norm_of_input(tracer: Tracer, *_: object, **__: object) -> Value:
    """Refuse a norm that computes its statistics from its input."""
    raise tracer.refuse("computes mean and variance from its input: use batch norm with running ones, in eval")


@rule("prelu.default")
def prelu(tracer: Tracer, value: Value, slope: Tensor) -> Value:
    """Apply a learned slope below 0."""
    arrays = {"slope": tracer.weights(slope).reshape(-1)}
    return tracer.add("prelu", value, layer=tracer.tensor_layer(slope), arrays=arrays)


@rule("leaky_relu.default", batch="anywhere")
def leaky_relu(tracer: Tracer, value: Value, slope: float = 0.01) -> Value:
    """Apply a constant slope below 0."""
    return tracer.add("prelu", value, arrays={"slope": np.array([slope], np.float32)})


@rule("abs.default")
def absolute(tracer: Tracer, value: Value) -> Value:
    """Return the absolute value: a slope of −1 below 0."""
    return leaky_relu(tracer, value, -1.0)


@rule("clamp.default", batch="anywhere")
def clamp(tracer: Tracer, value: Value, low: Known = None, high: Known = None) -> Value:
    """Clamp to constant bounds; an infinite bound is none."""
    bounds: dict[str, Any] = {}
    for name, bound, none in (("min", low, -math.inf), ("max", high, math.inf)):
        if bound is not None and not isinstance(bound, int | float):
            raise tracer.refuse("clamps to a bound that is not a number: pass a float")
        bounds[name] = None if bound == none else bound
    return tracer.add("clamp", value, **bounds)


@rule("hardtanh.default", batch="anywhere")
def hardtanh(tracer: Tracer, value: Value, low: float = -1.0, high: float = 1.0) -> Value:
    """Clamp to ±1 by default."""
    return clamp(tracer, value, low, high)


@rule("clone.default", "alias.default", "detach.default", "_to_copy.default", batch="anywhere")
def copy(tracer: Tracer, value: Known, **_: object) -> Value | Mask | StepFunction:
    """Copy, and cast where that does not round."""
    is_input = isinstance(value, Value) and value.number in tracer.graph.input_of  # an integer
    if tracer.dtype is torch.bool and isinstance(value, Value) and is_input:
        return Mask(tracer.add("clamp", tracer.add("mul", value, value), min=0.0, max=1.0))
    is_bool = isinstance(value, StepFunction) and {*value.levels} == {0.0, 1.0}
    exact = (
        is_bool
        or (tracer.dtype is torch.int64 and is_input)
        or (tracer.dtype is torch.bool and isinstance(value, Mask))
    )
    if not exact and tracer.dtype not in (None, torch.float32, torch.float64):
        raise tracer.refuse(f"casts to {tracer.dtype}, which rounds: remove the cast, packed values are float32")
    if tracer.operation == "_to_copy.default" and isinstance(value, StepFunction) and not is_bool:
        return value
    return tracer.value(value)


@rule("full_like.default")
def full_like(tracer: Tracer, value: Value, level: float, **_: object) -> Tensor:
    """Return a constant in the shape of a value."""
    return torch.full(tracer.shape, level, dtype=tracer.dtype)
