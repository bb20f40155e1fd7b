"""Rules for what works number by number: sums, products with constants, activations, comparisons."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equalbits.deploy.graph import Value
from equalbits.deploy.ops.shape import repeat
from equalbits.deploy.simplify import batch_norm, scaled_by_channel
from equalbits.deploy.tracer import Compare, Rule, Stair, Walk


def add(walk: Walk, first: Any, second: Any, *, alpha: float = 1) -> Value:
    """A sum of two values, or of a value and a constant."""
    if isinstance(first, Value) and isinstance(second, Value):
        if first.shape != second.shape:
            first, second = repeat(walk, first), repeat(walk, second)
        return walk.steps.add("add", first, second if alpha == 1 else walk.affine(second, alpha), layer=walk.layer)
    if isinstance(first, Value):
        return walk.affine(first, 1.0, second * alpha)
    return walk.affine(walk.value(second), alpha, first)


def sub(walk: Walk, first: Any, second: Any, *, alpha: float = 1) -> Value:
    """A difference."""
    return add(walk, first, second, alpha=-alpha)


def rsub(walk: Walk, first: Any, second: Any, alpha: float = 1) -> Value:
    """``second − alpha · first``."""
    return add(walk, second, first, alpha=-alpha)


def mul(walk: Walk, first: Any, second: Any) -> Value:
    """A product with a constant."""
    if isinstance(first, Value) and isinstance(second, Value):
        raise walk.refuse(
            "multiplies two values that come of the image: a packed network multiplies by constants alone"
        )
    return walk.affine(first, second) if isinstance(first, Value) else walk.affine(walk.value(second), first)


def div(walk: Walk, first: Any, second: Any) -> Value:
    """A quotient by a constant."""
    if isinstance(second, Value):
        raise walk.refuse("divides by a value that comes of the image: a packed network divides by constants alone")
    return walk.affine(walk.value(first), 1 / second)


def neg(walk: Walk, value: Any) -> Value:
    """The same with the other sign."""
    return walk.affine(walk.value(value), -1.0)


def norm(walk: Walk, value: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *rest: Any) -> Value:
    """Batch norm in eval; or an instance norm that keeps running statistics, which is the same."""
    if training or mean is None or var is None:
        raise walk.refuse("takes its mean and variance from its input: it must keep running ones, and be in eval")
    eps = rest[1]
    gain, shift = batch_norm(mean, var, eps, weight, bias)
    return scaled_by_channel(walk.steps, walk.value(value), gain, shift, layer=walk.layer)


def relu(walk: Walk, value: Any) -> Value:
    """The larger of the value and 0."""
    return walk.steps.add("relu", walk.value(value), layer=walk.layer)


def prelu(walk: Walk, value: Any, slope: Any) -> Value:
    """A learned slope below 0."""
    arrays = {"slope": walk.vector(slope).reshape(-1)}
    return walk.steps.add("prelu", walk.value(value), layer=walk.tensor_layer(slope), arrays=arrays)


def leaky_relu(walk: Walk, value: Any, slope: float = 0.01) -> Value:
    """A constant slope below 0."""
    arrays = {"slope": np.array([slope], np.float32)}
    return walk.steps.add("prelu", walk.value(value), layer=walk.layer, arrays=arrays)


def absolute(walk: Walk, value: Any) -> Value:
    """The value without its sign: a slope of −1 below 0."""
    return leaky_relu(walk, value, -1.0)


def clamp(walk: Walk, value: Any, low: Any = None, high: Any = None, *, min: Any = None, max: Any = None) -> Value:
    """Not below, not above; an infinite bound is none."""
    bounds = {"min": low if min is None else min, "max": high if max is None else max}
    for name, none in (("min", -math.inf), ("max", math.inf)):
        if isinstance(bounds[name], Value | Tensor):
            raise walk.refuse("clamps to a bound that is no plain number: give one as a float")
        bounds[name] = None if bounds[name] == none else bounds[name]
    return walk.steps.add("clamp", walk.value(value), layer=walk.layer, **bounds)


def hardtanh(walk: Walk, value: Any, low: float = -1.0, high: float = 1.0) -> Value:
    """Cut to ±1."""
    return clamp(walk, value, low, high)


def relu6(walk: Walk, value: Any) -> Value:
    """Cut to 0 and 6."""
    return clamp(walk, value, 0.0, 6.0)


def clamp_max(walk: Walk, value: Any, high: Any) -> Value:
    """Not above."""
    return clamp(walk, value, None, high)


def hardsigmoid(walk: Walk, value: Any) -> Value:
    """``clamp(x + 3, 0, 6) / 6``."""
    return walk.affine(relu6(walk, walk.affine(walk.value(value), 1.0, 3.0)), 1 / 6)


def dropout(walk: Walk, value: Any, share: float = 0.5, train: bool = False) -> Value:
    """Nothing in eval."""
    if train:
        raise walk.refuse("drops values in eval: a packed network answers the same each time")
    return walk.value(value)


def same(walk: Walk, value: Any, *_: Any, **__: Any) -> Any:
    """What moves no number; a comparison turned into numbers is 0 and 1."""
    if isinstance(value, Compare):
        return where(walk, value, 1.0, 0.0)
    if walk.dtype not in (None, torch.float32, torch.float64):
        raise walk.refuse(
            f"turns numbers into {walk.dtype}, which rounds them: leave that out, packed ones are float32"
        )
    return walk.value(value)


def constant_like(level: float | None = None) -> Rule:
    """A constant in the shape of a value; without a level, the last argument says it."""

    def rule(walk: Walk, value: Any, *rest: Any, **_: Any) -> Tensor:
        assert walk.shape is not None
        return torch.full(walk.shape, rest[-1] if level is None else level, dtype=walk.dtype)

    return rule


def compare(*, above: bool, strict: bool) -> Rule:
    """A comparison with a constant."""

    def rule(walk: Walk, first: Any, second: Any) -> Compare:
        if not isinstance(second, Value):
            return Compare(walk.value(first), second, above, strict)
        if isinstance(first, Value):
            raise walk.refuse(
                "compares with a value that comes of the image: a packed network has constant edges alone"
            )
        return Compare(second, first, not above, not strict)  # e ≤ x is x ≥ e

    return rule


def opposite(walk: Walk, condition: Any) -> Compare:
    """A comparison the other way round."""
    if not isinstance(condition, Compare):
        raise walk.refuse("turns numbers into their opposite as bools: compare them with a constant instead")
    return replace(condition, above=not condition.above)


def where(walk: Walk, condition: Any, yes: Any, no: Any) -> Stair:
    """One of two constants by a comparison; or a stair, where one side is a stair that ends before the edge."""
    if not isinstance(condition, Compare):
        raise walk.refuse("chooses between values other than by comparing one with a constant: this cannot be packed")
    high, low = (yes, no) if condition.above else (no, yes)
    # x ≥ e and its opposite x < e leave the edge above; x > e and x ≤ e leave it below.
    edge = (condition.edge, condition.strict)
    if isinstance(low, Stair) and low.value == condition.value and _last_edge(low) < _as_float(walk, condition.edge):
        return Stair(low.value, (*low.edges, edge), (*low.levels, _as_float(walk, high)))
    return Stair(condition.value, (edge,), (_as_float(walk, low), _as_float(walk, high)))


def _last_edge(stair: Stair) -> float:
    edge = stair.edges[-1][0]
    return float(edge) if not isinstance(edge, Tensor) or edge.numel() == 1 else float("inf")


def _as_float(walk: Walk, known: Any) -> float:
    if isinstance(known, Tensor) and known.numel() and bool((known == known.flatten()[0]).all()):
        return float(known.flatten()[0])
    if isinstance(known, int | float):
        return float(known)
    raise walk.refuse("chooses between values that are no plain numbers: a packed network knows steps of constants")


RULES: dict[str, Rule] = {
    "bitwise_not.default": opposite,
    "logical_not.default": opposite,
    "add.Tensor": add,
    "sub.Tensor": sub,
    "rsub.Scalar": rsub,
    "mul.Tensor": mul,
    "div.Tensor": div,
    "neg.default": neg,
    "batch_norm.default": norm,
    "instance_norm.default": norm,
    "relu.default": relu,
    "prelu.default": prelu,
    "leaky_relu.default": leaky_relu,
    "abs.default": absolute,
    "clamp.default": clamp,
    "clip.default": clamp,
    "clamp_min.default": clamp,
    "clamp_max.default": clamp_max,
    "hardtanh.default": hardtanh,
    "relu6.default": relu6,
    "hardsigmoid.default": hardsigmoid,
    "full_like.default": constant_like(),
    "new_full.default": constant_like(),
}
for _name, _level in (("zeros", 0.0), ("ones", 1.0)):
    RULES |= dict.fromkeys((f"{_name}_like.default", f"new_{_name}.default"), constant_like(_level))
_DROPOUTS = "dropout feature_dropout alpha_dropout feature_alpha_dropout"
RULES |= dict.fromkeys((f"{name}.default" for name in _DROPOUTS.split()), dropout)
_SAME = "detach contiguous clone alias lift_fresh_copy type_as _to_copy positive"
RULES |= dict.fromkeys((f"{name}.default" for name in _SAME.split()), same)
RULES |= dict.fromkeys(("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar"), where)
RULES |= dict.fromkeys(("to.dtype", "to.device", "to.dtype_layout"), same)
for _name, _known in (("negative", "neg"), ("absolute", "abs")):
    RULES[f"{_name}.default"] = RULES[f"{_known}.default"]
for _name, _known in (("multiply", "mul"), ("subtract", "sub"), ("divide", "div"), ("true_divide", "div")):
    RULES[f"{_name}.Tensor"] = RULES[f"{_known}.Tensor"]
for _name, _above, _strict in (("ge", True, False), ("gt", True, True), ("lt", False, False), ("le", False, True)):
    RULES |= dict.fromkeys((f"{_name}.Scalar", f"{_name}.Tensor"), compare(above=_above, strict=_strict))
