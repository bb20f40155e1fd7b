"""Normalization by statistics of the value itself: layer, RMS, group and instance norm; softmax, norm, variance."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from equalbits.deploy.compare import as_array
from equalbits.deploy.graph import Arrays
from equalbits.deploy.ops.elementwise import multiply, sub
from equalbits.deploy.ops.reduce import Axes, total
from equalbits.deploy.traced_values import Known, Value
from equalbits.deploy.tracer import Tracer, rule


@rule("layer_norm.default", batch="anywhere")
def layer_norm(
    tracer: Tracer,
    value: Value,
    shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: object,
) -> Value:
    """Normalize over the last axes."""
    return _normalize(tracer, "layer_norm", value, len(shape), {"scale": weight, "bias": bias}, eps)


@rule("rms_norm.default", batch="anywhere")
def rms_norm(
    tracer: Tracer, value: Value, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Value:
    """Normalize by the root mean square over the last axes."""
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    return _normalize(tracer, "rms_norm", value, len(shape), {"scale": weight}, eps)


def _normalize(
    tracer: Tracer, kind: str, value: Value, axes: int, tensors: dict[str, Tensor | None], eps: float
) -> Value:
    """Add a norm over the last axes; one behind a permutation moves before it, where the engine needs no copy."""
    arrays: Arrays = {part: as_array(tensor).reshape(-1) for part, tensor in tensors.items() if tensor is not None}
    layer = next((tracer.tensor_layer(tensor) for tensor in tensors.values() if tensor is not None), "")
    step = tracer.maker(value)
    if axes == 1 and step is not None and step.kind == "permute":
        order = step.settings["axes"]
        made = tracer.add(kind, tracer.source(step), layer=layer, arrays=arrays, axis=order[-1], eps=eps)
        return tracer.permute(made, order)
    lead = value.shape[: len(value.shape) - axes]
    joined = tracer.reshape(value, (*lead, math.prod(value.shape[len(lead) :])))
    made = tracer.add(kind, joined, layer=layer, arrays=arrays, axis=len(lead), eps=eps)
    return tracer.reshape(made, value.shape)


@rule("group_norm.default")
def group_norm(
    tracer: Tracer,
    value: Value,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: object,
) -> Value:
    """Normalize groups of channels: a layer norm of each group, then an affine per channel."""
    rows = tracer.reshape(value, (groups, math.prod(value.shape) // groups))
    made = tracer.reshape(tracer.add("layer_norm", rows, axis=1, eps=eps), value.shape)
    tail = (1,) * (len(value.shape) - 1)
    gain, shift = (
        1.0 if weight is None else weight.reshape(-1, *tail),
        0.0 if bias is None else bias.reshape(-1, *tail),
    )
    return made if weight is bias is None else tracer.affine(made, gain, shift)


@rule("instance_norm.default")
def instance_norm(tracer: Tracer, value: Value, weight: Tensor | None, bias: Tensor | None, *rest: Known) -> Value:
    """Normalize each channel by itself."""
    *_, eps, _cudnn = rest
    return group_norm(tracer, value, value.shape[0], weight, bias, float(eps))  # type: ignore[arg-type]


@rule("softmax.int", "_softmax.default", axes_at=1)
def softmax(tracer: Tracer, value: Value, axis: int, *_: object, **__: object) -> Value:
    """Apply softmax along an axis."""
    axis = tracer.image_axis(
        value, axis, "takes a softmax over the batch: a packed network treats each image by itself"
    )
    return tracer.add("softmax", value, axis=axis - 1)


@rule("linalg_vector_norm.default", axes_at=2)
def vector_norm(
    tracer: Tracer, value: Value, order: float = 2, axes: Axes = None, keepdim: bool = False, **_: object
) -> Value:
    """Return the root of the sum of squares."""
    if order != 2:
        raise tracer.refuse(f"takes a norm of order {order}: a packed network has that of order 2")
    return tracer.add("sqrt", total(tracer, multiply(tracer, value, value), axes, keepdim))


@rule("var.correction")
def variance(
    tracer: Tracer, value: Value, axes: Axes = None, *, correction: float | None = None, keepdim: bool = False
) -> Value:
    """Return the variance: the sum of squared distances from the mean, divided by the count less the correction."""
    shape, rank = tracer.shape, len(value.shape) + 1
    reduced = {axis % rank for axis in axes or range(rank)}
    tracer.shape = tuple(1 if i in reduced else size for i, size in enumerate((tracer.batch, *value.shape)))
    count = math.prod(value.shape) // math.prod(tracer.shape[1:])
    mean = tracer.affine(total(tracer, value, axes, True), 1 / count)
    tracer.shape = (tracer.batch, *value.shape)
    away = sub(tracer, value, mean)
    tracer.shape = shape
    squares = total(tracer, multiply(tracer, away, away), axes, keepdim)
    return tracer.affine(squares, 1 / (count - (1 if correction is None else correction)))
