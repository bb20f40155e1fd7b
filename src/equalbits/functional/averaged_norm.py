"""A 1×1 convolution, batch norm and 2×2 average pool, computed on averages alone.

Convolution and average commute, and a batch norm has the mean of the averages. Its variance, over all positions,
follows from the covariance of the input's channels. So the outputs at all positions, four times the averages, are
neither computed nor kept for the backward pass.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nnf

from equalbits.functional.conv_as_matmul import convolve
from equalbits.functional.fused_norm import as_rows, from_rows
from equalbits.functional.packed_bits import operator
from equalbits.functional.precision import at_least_float32, autocast_disabled, autocast_dtype


def average_of_norm(
    inputs: Tensor, weight: Tensor, gain: Tensor, bias: Tensor, *, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``avg_pool2d(batch_norm(conv2d(inputs, weight)), 2)``, and the batch's mean and biased variance.

    ``weight`` has a 1×1 kernel, ``inputs`` an even height and width; ``gain`` and ``bias`` are the norm's. Mean and
    variance are those at all positions.

    >>> inputs, one = torch.tensor([[[[0.0, 1.0], [1.0, 2.0]]]]), torch.ones(1)
    >>> _, mean, variance = average_of_norm(inputs, torch.full((1, 1, 1, 1), 2.0), one, one)
    >>> float(mean), float(variance)
    (2.0, 2.0)
    """
    products = convolve(nnf.avg_pool2d(inputs, 2), weight, None, stride=(1, 1), padding=(0, 0))
    dtype = autocast_dtype(inputs)
    with autocast_disabled(inputs.device):  # it also reaches into operators
        covariance, _ = _covariance_op(inputs)
        rows = weight.flatten(1).to(dtype).to(covariance.dtype)
        variance = ((rows @ covariance) * rows).sum(dim=1).clamp(min=0)
        wide = products.to(covariance.dtype)  # once, so that its gradients are added before they are rounded
        mean = wide.mean(dim=(0, 2, 3))
        scale = gain * (variance + eps).rsqrt()
        shift = bias - mean * scale
        outputs = wide * scale[:, None, None] + shift[:, None, None]
    return outputs.to(products.dtype), mean, variance


def _covariance(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the biased covariance of the channels, and their means, in at least float32."""
    rows, wide = as_rows(inputs), at_least_float32(inputs.dtype)
    mean = rows.mean(dim=0, dtype=wide)
    if rows.dtype != wide and rows.is_cuda and hasattr(torch.ops.aten.mm, "dtype"):
        products = torch.mm(rows.t(), rows, out_dtype=wide)
    else:
        products = rows.to(wide).t() @ rows.to(wide)
    return products / len(rows) - mean[:, None] * mean, mean


def _covariance_gradient(gradient: Tensor, inputs: Tensor, mean: Tensor) -> Tensor:
    rows = as_rows(inputs)
    both = (gradient + gradient.t()) / len(rows)
    return from_rows(torch.addmm(-(mean @ both).to(rows.dtype), rows, both.to(rows.dtype)), inputs)


_covariance_op = operator("channel_covariance", "(Tensor inputs) -> (Tensor, Tensor)", _covariance)
_gradient_op = operator(
    "channel_covariance_backward", "(Tensor gradient, Tensor inputs, Tensor mean) -> Tensor", _covariance_gradient
)


def _setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs, output[1])


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> Tensor:
    return _gradient_op(gradient, *ctx.saved_tensors)  # type: ignore[no-any-return]


_covariance_op.register_autograd(_backward, setup_context=_setup_context)
