"""PReLU, batch norm, shortcut and sign between two binary convolutions, as one operation with its backward.

The reference functions define a :class:`~equalbits.functional.fused_norm.FusedNorm`, which a GPU computes by the
kernels of ``kernels/prelu_norm_add_sign.py``. The backward keeps the input and one bit per output, not the output
itself; the signs are written as bits, too, for the convolution that reads them. It can keep the input in 8 bits, with
its exact sign: it is needed for that and for the small terms of the gradient by which mean and variance follow it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from equalbits.functional.binarize import sign_symbols
from equalbits.functional.fused_norm import (
    INVERSE_DEVIATION,
    MEAN,
    VARIANCE,
    FusedNorm,
    Tensors,
    as_rows,
    from_rows,
    wide_rows,
)
from equalbits.functional.packed_bits import pack_bits, unpack_bits

LOW_SQUARES = 4  # row of the statistics behind those of every norm and the sum of the inputs up to 0


def prelu_norm_add_sign(
    c: Tensor,
    slope: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None = None,
    *,
    eps: float = 1e-5,
    signs: bool = False,
    in_8_bits: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor]:
    """Return ``y = batch_norm(prelu(c)) + residual``, its signs, their bits, and the batch's mean and variance.

    ``c`` is (batch, channel, …); ``slope`` has one entry per channel or one for all; None means no PReLU. With
    ``signs`` the second result is +1 where ``y ≥ 0``, −1 elsewhere, and its gradient passes where ``|y| < 1``
    (:func:`~equalbits.functional.clipped`); the third holds ``y ≥ 0`` as bits, (position, byte of 8 channels), for
    :func:`~equalbits.functional.convolve_signs`. Without it both are None. ``y`` has the dtype of ``c`` and is channels
    last. The variance is biased, as used for normalization; mean and variance have no gradient. For the running
    variance multiply it by ``n / (n − 1)``, with ``n = c.numel() / channels``. ``in_8_bits`` keeps ``c`` for the
    backward pass in 8 bits, 127 for 8 root mean squares of its channel.
    """
    channels = c.shape[1]
    if c.numel() < 2 * channels:
        raise ValueError(f"c has shape {tuple(c.shape)}: a batch norm in training needs two values for each channel")
    fits = weight.shape == (channels,) and bias.shape == (channels,)
    fits = fits and (slope is None or slope.shape == (channels,) or slope.shape == (1,))
    if not fits or (residual is not None and residual.shape != c.shape):
        shapes = [None if tensor is None else tuple(tensor.shape) for tensor in (slope, weight, bias, residual)]
        raise ValueError(f"slope, weight, bias and residual have shapes {shapes}, which do not fit c, {tuple(c.shape)}")
    residual = None if residual is None else residual.to(c.dtype)
    y, s, positive, *_, stats = PRELU(c, slope, weight, bias, residual, eps, signs, in_8_bits)
    return y, s if signs else None, positive if signs else None, stats[MEAN], stats[VARIANCE]


def reference_forward(
    c: Tensor,
    slope: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    eps: float,
    signs: bool,
    in_8_bits: bool,
) -> Tensors:
    """Return ``y``, its signs, the bits of ``y ≥ 0`` and of ``|y| < 1``, ``c`` in 8 bits, and the statistics.

    Without ``signs`` the second, third and fourth are empty, and without ``in_8_bits`` the fifth.
    """
    rows = wide_rows(c)
    z = rows if slope is None else torch.where(rows > 0, rows, slope * rows)
    variance, mean = torch.var_mean(z, dim=0, correction=0)
    inverse = (variance + eps).rsqrt()
    wide_y = (z - mean) * inverse * weight + bias
    y = (wide_y if residual is None else wide_y + wide_rows(residual)).to(c.dtype)
    low = rows.clamp(max=0)
    stats = torch.stack((mean, variance, inverse, low.sum(dim=0), low.square().sum(dim=0)))
    kept = c.new_empty(0, dtype=torch.int8)
    if in_8_bits:
        whole = (rows / _step(slope, stats, len(rows)) + 0.5).floor()
        whole = torch.where(rows > 0, whole.clamp(min=1), whole.clamp(max=0))  # the sign is exact
        kept = from_rows(whole.clamp(-127, 127).to(torch.int8), c)
    if not signs:
        no_bits = (c.new_empty(0, dtype=torch.uint8) for _ in range(2))
        return from_rows(y, c), c.new_empty(0), *no_bits, kept, stats
    return from_rows(y, c), from_rows(sign_symbols(y), c), pack_bits(y >= 0), pack_bits(y.abs() < 1), kept, stats


def _step(slope: Tensor | None, stats: Tensor, count: int) -> Tensor:
    """Return the distance of neighboring inputs in 8 bits, one per channel."""
    square = stats[VARIANCE] + stats[MEAN].square()
    if slope is not None:
        square = square + (1 - slope * slope) * (stats[LOW_SQUARES] / count)
    return square.clamp(min=1e-30).sqrt() * (8 / 127)


def reference_backward(
    g_y: Tensor | None, g_s: Tensor | None, c: Tensor, slope: Tensor | None, weight: Tensor, near: Tensor, stats: Tensor
) -> Tensors:
    """Return the gradients of ``y`` (empty if equal to ``g_y``), of ``c``, of (weight, bias), and of the slope."""
    dtype, count = (g_y if g_s is None else g_s).dtype, c.numel() // c.shape[1]  # type: ignore[union-attr]
    g = torch.zeros((), dtype=dtype, device=c.device) if g_y is None else as_rows(g_y)
    total = c.new_empty(0, dtype=dtype)
    if g_s is not None:
        g = (g + wide_rows(g_s) * unpack_bits(near, c.shape[1])).to(dtype)
        total = from_rows(g, c)
    g, rows = g.to(stats.dtype), as_rows(c).to(stats.dtype)
    if c.dtype == torch.int8:
        rows = rows * _step(slope, stats, count)
    z = rows if slope is None else torch.where(rows > 0, rows, slope * rows)
    normed = (z - stats[MEAN]) * stats[INVERSE_DEVIATION]
    g_bias, g_weight = g.sum(dim=0), (g * normed).sum(dim=0)
    g_z = weight * stats[INVERSE_DEVIATION] * (g - g_bias / count - normed * g_weight / count)
    g_c = g_z if slope is None else torch.where(rows > 0, g_z, slope * g_z)
    g_slope = stats.new_empty(0) if slope is None else (g_z * rows.clamp(max=0)).sum(dim=0)
    return total, from_rows(g_c.to(dtype), c), torch.stack((g_weight, g_bias)), g_slope


def _save(inputs: Sequence[Any], output: Tensors) -> tuple[Tensor | None, ...]:
    return inputs[0], inputs[1], output[3], output[5]


def _keep(c: Tensor, output: Tensors) -> Tensor:
    return output[4] if output[4].numel() else c


def _input_gradients(
    g_y: Tensor | None, g_s: Tensor | None, saved: Sequence[Any], found: Tensors
) -> tuple[Tensor | None, ...]:
    """Return the gradients of slope, weight, bias and residual."""
    total, _, g_affine, g_slope = found
    g_weight, g_bias = g_affine.unbind()
    if saved[0] is not None and saved[0].shape[0] == 1:
        g_slope = g_slope.sum(dim=0, keepdim=True)
    return g_slope, g_weight, g_bias, g_y if g_s is None else total


PRELU = FusedNorm(
    "prelu_norm_add_sign",
    (
        "Tensor? slope, Tensor gain, Tensor bias, Tensor? residual, float eps, bool signs, bool in_8_bits",
        "Tensor? slope, Tensor gain, Tensor near, Tensor stats",
    ),
    forward=(reference_forward, 6),
    backward=(reference_backward, 4),
    save=_save,
    input_gradients=_input_gradients,
)
PRELU.keep = _keep
