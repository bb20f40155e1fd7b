"""Products of two values, and attention."""

from collections.abc import Sequence

import torch
from torch import Tensor

from equalbits.deploy.ops.conv_linear import linear, plain_convolution
from equalbits.deploy.ops.elementwise import add
from equalbits.deploy.ops.shape import expand_to, permute
from equalbits.deploy.traced_values import Known, Mask, Operand, Value
from equalbits.deploy.tracer import Tracer, rule

#: Added to scores that a mask leaves out: far below any score, and finite, as every number of a file is.
_MASKED = -1e30


@rule("matmul.default", "mm.default", "bmm.default", batch="anywhere")
def matmul(tracer: Tracer, first: Operand, second: Operand) -> Value:
    """Multiply two values, or a value by a constant matrix from either side."""
    if isinstance(first, Value) and isinstance(second, Value):
        return _multiply(tracer, first, second)
    if isinstance(first, Tensor) and isinstance(second, Value) and len(second.shape) == 1:
        raise tracer.refuse("multiplies along the batch: a packed network treats each image by itself")
    if isinstance(first, Tensor) and first.dim() > 1 and isinstance(second, Value):
        turned = [*range(len(second.shape) - 1), -1, -2]  # the transposed product, with the matrix on the right
        return permute(tracer, matmul(tracer, permute(tracer, second, turned), first.mT), turned)
    if isinstance(second, Tensor) and second.dim() == 3 and len(second) == 1:
        second = second[0]
    if isinstance(second, Tensor) and second.dim() == 2:
        return linear(tracer, tracer.value(first), second.T.contiguous())
    value = tracer.value(first)
    if isinstance(second, Tensor) and second.dim() == len(value.shape) == 3 and len(second) == value.shape[0]:
        return _multiply_by_matrices(tracer, value, second)
    raise tracer.refuse("multiplies by several constant matrices at once: a packed network multiplies by one")


def _multiply_by_matrices(tracer: Tracer, value: Value, matrices: Tensor) -> Value:
    """Multiply (group, row, feature) by a constant matrix per group: a convolution in groups of one column."""
    groups, rows, features = value.shape
    image = tracer.reshape(tracer.permute(value, (0, 2, 1)), (groups * features, rows, 1))
    weight = matrices.transpose(1, 2).reshape(-1, features, 1, 1).contiguous()
    made = tracer.value(plain_convolution(tracer, image, weight, groups=groups))
    return tracer.permute(tracer.reshape(made, (groups, matrices.shape[2], rows)), (0, 2, 1))


def _multiply(tracer: Tracer, first: Value, second: Value) -> Value:
    if min(len(first.shape), len(second.shape)) < 2 or len(first.shape) != len(second.shape):
        raise tracer.refuse(f"multiplies values of shape {first.shape} and {second.shape}: give both as many axes")
    lead = tuple(map(max, first.shape[:-2], second.shape[:-2]))
    both = (expand_to(tracer, value, (*lead, *value.shape[-2:])) for value in (first, second))
    return tracer.add("matmul", *both)


@rule("scaled_dot_product_attention.default", batch="anywhere")
def attention(
    tracer: Tracer,
    query: Value,
    key: Known,
    value: Known,
    mask: Known = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """Multiply queries by keys, apply softmax, multiply by values; a mask is added to the scores."""
    queries, keys, values = (tracer.value(known) for known in (query, key, value))
    if enable_gqa and queries.shape[0] != keys.shape[0]:
        shape = (queries.shape[0], *keys.shape[1:])
        keys, values = (_repeat_heads(tracer, known, shape) for known in (keys, values))
    rank, scale = len(keys.shape), queries.shape[-1] ** -0.5 if scale is None else scale
    turned = tracer.permute(keys, [*range(rank - 2), rank - 1, rank - 2])
    scores = _multiply(tracer, tracer.affine(queries, scale), turned)
    if isinstance(mask, Mask):
        mask = tracer.affine(mask.value, -_MASKED, _MASKED)
    elif isinstance(mask, Tensor) and mask.dtype is not torch.bool:
        mask = mask.clamp(min=_MASKED)
    elif isinstance(mask, Tensor):
        lower = not is_causal and bool((mask == torch.ones_like(mask).tril()).all())
        is_causal = is_causal or lower
        mask = None if lower else torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, _MASKED)
    elif mask is not None:
        mask = tracer.value(mask)
    if mask is not None:
        tracer.shape = (tracer.batch, *scores.shape)
        scores = add(tracer, scores, mask)
    made = tracer.add("softmax", scores, axis=rank - 1, causal=is_causal)
    return _multiply(tracer, made, values)


def _repeat_heads(tracer: Tracer, value: Value, shape: Sequence[int]) -> Value:
    heads = value.shape[0]
    apart = tracer.reshape(value, (heads, 1, *value.shape[1:]))
    return tracer.reshape(expand_to(tracer, apart, (heads, shape[0] // heads, *value.shape[1:])), shape)
