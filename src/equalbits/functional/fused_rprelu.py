"""Batch norm, shortcut, RPReLU and RSign between two binary convolutions, as one operation with its backward.

The blocks of ReActNet have them in this order; those with PReLU are in ``fused_prelu``. The backward keeps the two
inputs, the convolution's output and the shortcut, and computes the rest from them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equalbits.functional.binarize import sign_symbols
from equalbits.functional.fused_norm import INVERSE_DEVIATION, MEAN, VARIANCE, FusedNorm, Tensors, from_rows, wide_rows
from equalbits.functional.packed_bits import pack_bits

_INPUTS = "Tensor? residual, Tensor gain, Tensor bias, Tensor? before, Tensor slope, Tensor? after, Tensor? shift"


class RPReLUParameters(NamedTuple):
    """Slope of a PReLU and shifts before and after it, one per channel: ``prelu(x + before) + after``."""

    before: Tensor | None
    slope: Tensor
    after: Tensor | None


def norm_add_rprelu_sign(
    c: Tensor,
    affine: tuple[Tensor, Tensor],
    activation: RPReLUParameters,
    residual: Tensor | None = None,
    shift: Tensor | None = None,
    *,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor]:
    """Return ``y = rprelu(batch_norm(c) + residual)``, the signs of ``y + shift``, their bits, and mean and variance.

    ``c`` is (batch, channel, …); weight and bias of the norm (``affine``), the activation's parameters and ``shift``
    have one entry per channel. With ``shift`` the second result is +1 where ``y + shift ≥ 0``, −1 elsewhere, and its
    gradient is that of :func:`~equalbits.functional.polynomial`; the third holds its bits, (position, byte of 8
    channels), for :func:`~equalbits.functional.convolve_signs`. Without it both are None. ``y`` has the dtype of ``c``
    and is channels last. Mean and variance are those of :func:`~equalbits.functional.prelu_norm_add_sign`.
    """
    channels = c.shape[1]
    if c.numel() < 2 * channels:
        raise ValueError(f"c has shape {tuple(c.shape)}: a batch norm in training needs two values for each channel")
    vectors = *affine, *activation, shift
    fits = all(each is None or each.shape == (channels,) for each in vectors)
    if not fits or (residual is not None and residual.shape != c.shape):
        shapes = [None if each is None else tuple(each.shape) for each in (*vectors, residual)]
        raise ValueError(
            f"weight, bias, before, slope, after, shift and residual have shapes {shapes}, which do not fit c, "
            f"{tuple(c.shape)}"
        )
    residual = None if residual is None else residual.to(c.dtype)
    y, s, positive, stats = RPRELU(c, residual, *affine, *activation, shift, eps)
    signs = (None, None) if shift is None else (s, positive)
    return y, *signs, stats[MEAN], stats[VARIANCE]


def reference_forward(c: Tensor, residual: Tensor | None, *others: Any) -> Tensors:
    """Return ``y``, the signs of ``y + shift``, their bits, and the statistics; without ``shift`` two are empty."""
    weight, bias, *activation, shift, eps = others
    rows = wide_rows(c)
    variance, mean = torch.var_mean(rows, dim=0, correction=0)
    stats = torch.stack((mean, variance, (variance + eps).rsqrt()))
    _, _, y = _recompute(c, residual, weight, bias, *activation, stats)
    if shift is None:
        return from_rows(y, c), c.new_empty(0), c.new_empty(0, dtype=torch.uint8), stats
    shifted = y.to(stats.dtype) + shift
    return from_rows(y, c), from_rows(sign_symbols(shifted).to(c.dtype), c), pack_bits(shifted >= 0), stats


def reference_backward(g_y: Tensor | None, g_s: Tensor | None, c: Tensor, *others: Any) -> Tensors:
    """Return the gradients of the residual, of ``c``, and of weight, bias, before, slope, after; with g_s of shift."""
    residual, weight, bias, before, slope, after, shift, stats = others
    normed, inner, y = _recompute(c, residual, weight, bias, before, slope, after, stats)
    g = torch.zeros_like(normed) if g_y is None else wide_rows(g_y)
    of_shift: tuple[Tensor, ...] = ()
    if g_s is not None:
        through = wide_rows(g_s) * (2 - 2 * (y.to(stats.dtype) + shift).abs()).clamp(min=0)
        g, of_shift = g + through, (through.sum(dim=0),)
    g_after, g_slope = g.sum(dim=0), (g * inner.clamp(max=0)).sum(dim=0)
    g_sum = torch.where(inner > 0, g, slope * g).to(c.dtype)
    g = g_sum.to(stats.dtype)
    g_bias, g_weight, count = g.sum(dim=0), (g * normed).sum(dim=0), c.numel() // c.shape[1]
    g_c = weight * stats[INVERSE_DEVIATION] * (g - g_bias / count - normed * g_weight / count)
    of_vectors = torch.stack((g_weight, g_bias, g_bias, g_slope, g_after, *of_shift))
    return from_rows(g_sum, c), from_rows(g_c.to(c.dtype), c), of_vectors


def _recompute(c: Tensor, residual: Tensor | None, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalized input, the input of the PReLU, and ``y``, as rows."""
    weight, bias, before, slope, after, stats = others
    normed = (wide_rows(c) - stats[MEAN]) * stats[INVERSE_DEVIATION]
    inner = normed * weight + (bias if before is None else bias + before)
    inner = inner if residual is None else inner + wide_rows(residual)
    outer = torch.where(inner > 0, inner, slope * inner)
    return normed, inner, (outer if after is None else outer + after).to(c.dtype)


def _save(inputs: Sequence[Any], output: Tensors) -> tuple[Tensor | None, ...]:
    return *inputs[:7], output[-1]


def _input_gradients(
    g_y: Tensor | None, g_s: Tensor | None, saved: Sequence[object], found: Tensors
) -> tuple[Tensor | None, ...]:
    g_sum, _, of_vectors = found
    return g_sum, *of_vectors[:5], None if g_s is None else of_vectors[5]


RPRELU = FusedNorm(
    "norm_add_rprelu_sign",
    (f"{_INPUTS}, float eps", f"{_INPUTS}, Tensor stats"),
    forward=(reference_forward, 4),
    backward=(reference_backward, 3),
    save=_save,
    input_gradients=_input_gradients,
)
