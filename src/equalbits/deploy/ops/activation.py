"""Activations that are not piecewise linear, and powers."""

import math

from equalbits.deploy.ops.elementwise import clamp, multiply
from equalbits.deploy.traced_values import Value
from equalbits.deploy.tracer import Tracer, rule


@rule("hardsigmoid.default", batch="anywhere")
def hardsigmoid(tracer: Tracer, value: Value) -> Value:
    """Clamp ``value / 6 + ½`` to [0, 1]."""
    return clamp(tracer, tracer.affine(value, 1 / 6, 0.5), 0.0, 1.0)


@rule("hardswish.default", batch="anywhere")
def hardswish(tracer: Tracer, value: Value) -> Value:
    """Multiply by the hard sigmoid."""
    return multiply(tracer, value, hardsigmoid(tracer, value))


@rule("gelu.default", batch="anywhere")
def gelu(tracer: Tracer, value: Value, *, approximate: str = "none") -> Value:
    """Apply GELU, exact or approximated by tanh."""
    return tracer.add("gelu_tanh" if approximate == "tanh" else "gelu", value)


@rule("elu.default")
def elu(tracer: Tracer, value: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    """Apply ELU or SELU: ``scale · elu(value)``, below 0 of ``value · input_scale``."""
    if input_scale == 1:
        made = tracer.add("elu", value, alpha=alpha)
    else:  # above 0 the input is not scaled: α' · elu(x · s) with α' = 1 / s has the slope 1 there
        made = tracer.add("elu", tracer.affine(value, input_scale), alpha=alpha * input_scale)
        made = tracer.affine(made, 1 / input_scale)
    return made if scale == 1 else tracer.affine(made, scale)


@rule("celu.default")
def celu(tracer: Tracer, value: Value, alpha: float = 1.0) -> Value:
    """Apply CELU, an ELU of the value divided by alpha."""
    return elu(tracer, value, alpha, 1.0, 1 / alpha)


@rule("softplus.default")
def softplus(tracer: Tracer, value: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    """Apply softplus; what torch passes unchanged above its threshold differs by less than float32 rounds."""
    if threshold < 17:
        raise tracer.refuse(f"has a softplus with threshold={threshold}: keep torch's default of 20")
    if beta == 1:
        return tracer.add("softplus", value)
    return tracer.affine(tracer.add("softplus", tracer.affine(value, beta)), 1 / beta)


@rule("rsqrt.default")
def rsqrt(tracer: Tracer, value: Value) -> Value:
    """Divide 1 by the root."""
    return tracer.add("reciprocal", tracer.add("sqrt", value))


@rule("pow.Tensor_Scalar")
def power(tracer: Tracer, value: Value, exponent: float) -> Value:
    """Raise to a whole or half power, by products, a root and a reciprocal."""
    twice = abs(exponent) * 2
    if twice != math.floor(twice) or not 1 <= twice <= 16:
        raise tracer.refuse(f"raises to the power {exponent}: a packed network has whole and half ones up to 8")
    made = tracer.add("sqrt", value) if twice % 2 else value
    for _ in range(int(twice) // 2 - (0 if twice % 2 else 1)):
        made = multiply(tracer, made, value)
    return tracer.add("reciprocal", made) if exponent < 0 else made
