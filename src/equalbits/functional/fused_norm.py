"""PReLU, batch norm, shortcut and sign between two binary convolutions, as one operation with its backward.

Compiled from separate operations these take a dozen passes over memory, longer than the convolutions around them. Here
they are two torch operators, opaque to compile and CUDA graphs. The reference functions below define them and run
anywhere; a GPU uses the kernels of ``kernels/prelu_norm_add_sign.py``. The backward keeps the input and one bit per
output, not the output itself; the signs are written as bits, too, for the convolution that reads them.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from equalbits.functional.binarize import sign_symbols
from equalbits.functional.execution_mode import is_plain, is_plain_execution, plain_twin
from equalbits.functional.gradients_from_bits import ANY_LAYOUT
from equalbits.functional.packed_bits import pack_bits, unpack_bits
from equalbits.functional.precision import at_least_float32

#: Rows of the statistics, one value per channel: of the PReLU output, then sums over its inputs up to 0.
MEAN, VARIANCE, INVERSE_DEVIATION, LOW_SUM, LOW_SQUARES = range(5)

_Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
_Gradients = tuple[Tensor, Tensor, Tensor, Tensor]
_FORWARD = "(Tensor c, Tensor? slope, Tensor weight, Tensor bias, Tensor? residual, float eps, bool signs)"
_FORWARD += " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
_BACKWARD = "(Tensor? g_y, Tensor? g_s, Tensor c, Tensor? slope, Tensor weight, Tensor near, Tensor stats)"
_BACKWARD += " -> (Tensor, Tensor, Tensor, Tensor)"
# Given, since torch 2.6 cannot infer it for lists of tensors.
_UPDATE = "(Tensor(a0!)[] running, Tensor(a1!)[] counts, Tensor[] latest, float[] factors, float momentum) -> ()"


def prelu_norm_add_sign(
    c: Tensor,
    slope: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None = None,
    *,
    eps: float = 1e-5,
    signs: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor]:
    """Return ``y = batch_norm(prelu(c)) + residual``, its signs, their bits, and the batch's mean and variance.

    ``c`` is (batch, channel, …); ``slope`` has one entry per channel or one for all; None means no PReLU. With
    ``signs`` the second result is +1 where ``y ≥ 0``, −1 elsewhere, and its gradient passes where ``|y| < 1``
    (:func:`~equalbits.functional.clipped`); the third holds ``y ≥ 0`` as bits, (position, byte of 8 channels), for
    :func:`~equalbits.functional.convolve_signs`. Without it both are None. ``y`` has the dtype of ``c`` and is channels
    last. The variance is biased, as used for normalization; mean and variance have no gradient. For the running
    variance multiply it by ``n / (n − 1)``, with ``n = c.numel() / channels``.
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
    function = _PlainNorm.apply if is_plain(c) else _forward_op
    y, s, positive, _, stats = function(c, slope, weight, bias, residual, eps, signs)
    return y, s if signs else None, positive if signs else None, stats[MEAN], stats[VARIANCE]


def as_rows(tensor: Tensor) -> Tensor:
    """Return the tensor as contiguous (position, channel): a view if it is channels last, else a copy."""
    return tensor.movedim(1, -1).reshape(-1, tensor.shape[1]).contiguous()


def from_rows(rows: Tensor, c: Tensor) -> Tensor:
    """View rows of (position, channel) as a channels-last tensor of the shape of ``c``."""
    return rows.view(c.shape[0], *c.shape[2:], c.shape[1]).movedim(-1, 1)


def reference_forward(
    c: Tensor,
    slope: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    eps: float,
    signs: bool,
) -> _Outputs:
    """Return ``y``, its signs, the bits of ``y ≥ 0`` and of ``|y| < 1``, and the statistics.

    Without ``signs`` the second, third and fourth are empty.
    """
    rows = wide_rows(c)
    z = rows if slope is None else torch.where(rows > 0, rows, slope * rows)
    variance, mean = torch.var_mean(z, dim=0, correction=0)
    inverse = (variance + eps).rsqrt()
    wide_y = (z - mean) * inverse * weight + bias
    y = (wide_y if residual is None else wide_y + wide_rows(residual)).to(c.dtype)
    low = rows.clamp(max=0)
    stats = torch.stack((mean, variance, inverse, low.sum(dim=0), low.square().sum(dim=0)))
    if not signs:
        no_bits = (c.new_empty(0, dtype=torch.uint8) for _ in range(2))
        return from_rows(y, c), c.new_empty(0), *no_bits, stats  # type: ignore[return-value]
    return from_rows(y, c), from_rows(sign_symbols(y), c), pack_bits(y >= 0), pack_bits(y.abs() < 1), stats


def reference_backward(
    g_y: Tensor | None, g_s: Tensor | None, c: Tensor, slope: Tensor | None, weight: Tensor, near: Tensor, stats: Tensor
) -> _Gradients:
    """Return the gradients of ``y`` (empty if equal to ``g_y``), of ``c``, of (weight, bias), and of the slope."""
    g = torch.zeros((), dtype=c.dtype, device=c.device) if g_y is None else as_rows(g_y)
    total = c.new_empty(0)
    if g_s is not None:
        g = (g + wide_rows(g_s) * unpack_bits(near, c.shape[1])).to(c.dtype)
        total = from_rows(g, c)
    g, rows, count = g.to(stats.dtype), wide_rows(c), c.numel() // c.shape[1]
    z = rows if slope is None else torch.where(rows > 0, rows, slope * rows)
    normed = (z - stats[MEAN]) * stats[INVERSE_DEVIATION]
    g_bias, g_weight = g.sum(dim=0), (g * normed).sum(dim=0)
    g_z = weight * stats[INVERSE_DEVIATION] * (g - g_bias / count - normed * g_weight / count)
    g_c = g_z if slope is None else torch.where(rows > 0, g_z, slope * g_z)
    g_slope = stats.new_empty(0) if slope is None else (g_z * rows.clamp(max=0)).sum(dim=0)
    return total, from_rows(g_c.to(c.dtype), c), torch.stack((g_weight, g_bias)), g_slope


def wide_rows(tensor: Tensor) -> Tensor:
    """Return :func:`as_rows` in at least float32."""
    return as_rows(tensor).to(at_least_float32(tensor.dtype))


_forward_op = torch.library.custom_op(
    "equalbits::prelu_norm_add_sign", reference_forward, schema=_FORWARD, **ANY_LAYOUT
)
_backward_op = torch.library.custom_op(
    "equalbits::prelu_norm_add_sign_backward", reference_backward, schema=_BACKWARD, **ANY_LAYOUT
)


@_forward_op.register_kernel("cuda")
def norm_forward(c: Tensor, *others: Any) -> _Outputs:
    """Return :func:`reference_forward`, computed by the kernels on a GPU."""
    gpu = _gpu_for(c)
    return gpu.forward(c, *others) if gpu else reference_forward(c, *others)


@_backward_op.register_kernel("cuda")
def norm_backward(g_y: Tensor | None, g_s: Tensor | None, c: Tensor, *others: Any) -> _Gradients:
    """Return :func:`reference_backward`, computed by the kernels on a GPU."""
    gpu = _gpu_for(c)
    return gpu.backward(g_y, g_s, c, *others) if gpu else reference_backward(g_y, g_s, c, *others)


def gradients_over_input(g_y: Tensor | None, g_s: Tensor | None, c: Tensor, *others: Any) -> _Gradients:
    """Return :func:`reference_backward`; a GPU writes the gradient of ``c`` into its memory."""
    gpu = _gpu_for(c)
    return gpu.backward(g_y, g_s, c, *others, overwrite=True) if gpu else reference_backward(g_y, g_s, c, *others)


def kernels_for(name: str, c: Tensor) -> ModuleType | None:
    """Import kernels when first needed; None on another device, without Triton or for an unsupported dtype."""
    if c.device.type != "cuda":
        return None
    try:
        gpu = import_module(f"equalbits.functional.kernels.{name}")
    except ImportError:
        return None
    return gpu if c.dtype in gpu.DTYPES else None


_gpu_for = partial(kernels_for, "prelu_norm_add_sign")


@_forward_op.register_fake
def _(
    c: Tensor,
    slope: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    eps: float,
    signs: bool,
) -> _Outputs:
    rows, channels = c.numel() // c.shape[1], c.shape[1]
    y, s = (from_rows(c.new_empty(rows, channels), c) for _ in range(2))
    positive, near = (c.new_empty((rows, (channels + 7) // 8) if signs else 0, dtype=torch.uint8) for _ in range(2))
    stats = c.new_empty(5, channels, dtype=at_least_float32(c.dtype))
    return y, s if signs else c.new_empty(0), positive, near, stats


@_backward_op.register_fake
def _(
    g_y: Tensor | None, g_s: Tensor | None, c: Tensor, slope: Tensor | None, weight: Tensor, near: Tensor, stats: Tensor
) -> _Gradients:
    rows, channels = c.numel() // c.shape[1], c.shape[1]
    total, g_c = (from_rows(c.new_empty(rows, channels), c) for _ in range(2))
    g_slope = stats.new_empty(0 if slope is None else channels)
    return total if g_s is not None else c.new_empty(0), g_c, stats.new_empty(2, channels), g_slope


def saved_tensors(inputs: Sequence[Any], output: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Return what the backward operator needs besides the gradients and ``c``; ``inputs`` are those after ``c``."""
    return inputs[0], inputs[1], *output[3:]


def input_gradients(
    g_y: Tensor | None, g_s: Tensor | None, saved: Sequence[Any], found: _Gradients
) -> tuple[Tensor | None, ...]:
    """Return the gradients of slope, weight, bias and residual, from the results of the backward operator."""
    total, _, g_affine, g_slope = found
    g_weight, g_bias = g_affine.unbind()
    if saved[0] is not None and saved[0].shape[0] == 1:
        g_slope = g_slope.sum(dim=0, keepdim=True)
    return g_slope, g_weight, g_bias, g_y if g_s is None else total


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: _Outputs) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*(() if inputs[-1] else output[1:2]), *output[2:])
    ctx.save_for_backward(inputs[0], *saved_tensors(inputs[1:], output))


def _backward(ctx: Any, g_y: Tensor | None, g_s: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if g_y is None and g_s is None:
        return (None,) * 7
    c, *saved = ctx.saved_tensors
    found = (norm_backward if is_plain(c) else _backward_op)(g_y, g_s, c, *saved)
    return found[1], *wanted(input_gradients(g_y, g_s, saved, found), ctx.needs_input_grad[1:]), None, None


def wanted(gradients: Iterable[Tensor | None], needed: Iterable[bool]) -> list[Tensor | None]:
    """Return the gradients that are needed, else None."""
    return [gradient if need else None for gradient, need in zip(gradients, needed, strict=False)]


class _Norm(torch.autograd.Function):
    forward = staticmethod(norm_forward)
    setup_context = staticmethod(_setup_context)
    backward = staticmethod(torch.autograd.function.once_differentiable(_backward))  # type: ignore[assignment]


_forward_op.register_autograd(_backward, setup_context=_setup_context)
_PlainNorm = plain_twin(_Norm)


def update_running_stats(
    running: list[Tensor], counts: list[Tensor], latest: list[Tensor], factors: list[float], momentum: float
) -> None:
    """Update running statistics by those of a batch times their factors, and count the batch, in a few launches."""
    update = _update if is_plain_execution() else _update_op
    update(running, counts, latest, factors, momentum)


def _update(
    running: list[Tensor], counts: list[Tensor], latest: list[Tensor], factors: list[float], momentum: float
) -> None:
    wide = [tensor.to(mine.dtype) for tensor, mine in zip(latest, running, strict=True)]
    torch._foreach_lerp_(running, torch._foreach_mul(wide, factors), momentum)
    torch._foreach_add_(counts, 1)


_update_op = torch.library.custom_op(
    "equalbits::update_running_stats", _update, mutates_args=("running", "counts"), schema=_UPDATE
)


@_update_op.register_fake
def _(running: list[Tensor], counts: list[Tensor], latest: list[Tensor], factors: list[float], momentum: float) -> None:
    return None
