"""What stands between two binary convolutions, as one operation: PReLU, batch norm, shortcut, sign; and its backward.

Left to a compiler these become a dozen passes over memory, and take longer than the convolutions they join. Here they
are two torch operators, opaque to compile and CUDA graphs: the plain ones below say what is meant and run anywhere,
and a GPU gets the few passes of ``kernels``. Between forward and backward they keep the input and one bit for
each output, not the output itself.
"""

from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nnf

from equalbits.functional.binarize import sign_symbols
from equalbits.functional.precision import at_least_float32

#: What the statistics hold for each channel, by row: of the PReLU's output, then sums over its inputs at or below 0.
MEAN, VARIANCE, INVERSE_DEVIATION, LOW_SUM, LOW_SQUARES = range(5)

_FOUR = " -> (Tensor, Tensor, Tensor, Tensor)"
_Four = tuple[Tensor, Tensor, Tensor, Tensor]
_FORWARD = "(Tensor c, Tensor? slope, Tensor weight, Tensor bias, Tensor? residual, float eps, bool signs)" + _FOUR
_BACKWARD = "(Tensor? g_y, Tensor? g_s, Tensor c, Tensor? slope, Tensor weight, Tensor near, Tensor stats)" + _FOUR
# Said, since torch 2.6 cannot read it off lists of tensors.
_MOVE = "(Tensor(a0!)[] running, Tensor(a1!)[] counts, Tensor[] latest, float[] factors, float momentum) -> ()"


def prelu_norm_add_sign(
    c: Tensor,
    slope: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None = None,
    *,
    eps: float = 1e-5,
    signs: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """``y = batch_norm(prelu(c)) + residual`` over the batch, its signs, and the batch's mean and variance.

    ``c`` is (batch, channel, …); ``slope`` has an entry for each channel or one for all, and None means no PReLU. With
    ``signs`` the second result is +1 where ``y ≥ 0``, −1 elsewhere, and its gradient passes where ``|y| < 1``
    (:func:`~equalbits.functional.clipped`); else it is None. ``y`` has the dtype of ``c`` and lies channels last. The
    variance is the biased one that normalised, and neither it nor the mean carries a gradient. For the running
    variance multiply it by ``n / (n − 1)``, with ``n = c.numel() / channels``.

    >>> c = torch.tensor([[-8.0], [2.0]])
    >>> slope, weight, bias = torch.tensor([0.25]), torch.ones(1), torch.zeros(1)
    >>> y, s, mean, var = prelu_norm_add_sign(c, slope, weight, bias, eps=0.0, signs=True)
    >>> y.T, s.T, mean, var
    (tensor([[-1.,  1.]]), tensor([[-1.,  1.]]), tensor([0.]), tensor([4.]))
    """
    _check(c, slope, weight, bias, residual)
    residual = None if residual is None else residual.to(c.dtype)
    y, s, _, stats = _forward_op(c, slope, weight, bias, residual, eps, signs)
    return y, s if signs else None, stats[MEAN], stats[VARIANCE]


def _check(c: Tensor, slope: Tensor | None, weight: Tensor, bias: Tensor, residual: Tensor | None) -> None:
    if c.dim() < 2 or not c.is_floating_point():
        raise ValueError(f"c is {c.dtype} of shape {tuple(c.shape)}: it must be floating point and (batch, channel, …)")
    channels = c.shape[1]
    if c.numel() < 2 * channels or channels == 0:
        raise ValueError(f"c has shape {tuple(c.shape)}: a batch norm in training needs two values for each channel")
    for name, tensor in (("slope", slope), ("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.shape != (channels,) and not (name == "slope" and tensor.shape == (1,)):
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}: c has {channels} channels, so give it that many")
    if residual is not None and residual.shape != c.shape:
        raise ValueError(f"residual has shape {tuple(residual.shape)}: it must be that of c, {tuple(c.shape)}")


def as_rows(tensor: Tensor) -> Tensor:
    """The tensor as contiguous (position, channel): a view if it lies channels last, else a copy."""
    return tensor.movedim(1, -1).reshape(-1, tensor.shape[1]).contiguous()


def from_rows(rows: Tensor, c: Tensor) -> Tensor:
    """Rows of (position, channel) as a tensor shaped like ``c`` that lies channels last: a view."""
    return rows.view(c.shape[0], *c.shape[2:], c.shape[1]).movedim(-1, 1)


def reference_forward(
    c: Tensor, slope: Tensor | None, weight: Tensor, bias: Tensor, residual: Tensor | None, eps: float, signs: bool
) -> _Four:
    """As the definition reads: ``y``; its signs and the bits of ``|y| < 1``, both empty if unwanted; the statistics."""
    rows = _wide(c)
    z = rows if slope is None else torch.where(rows > 0, rows, slope * rows)
    variance, mean = torch.var_mean(z, dim=0, correction=0)
    inverse = (variance + eps).rsqrt()
    wide_y = (z - mean) * inverse * weight + bias
    y = (wide_y if residual is None else wide_y + _wide(residual)).to(c.dtype)
    low = rows.clamp(max=0)
    stats = torch.stack((mean, variance, inverse, low.sum(dim=0), low.square().sum(dim=0)))
    if not signs:
        return from_rows(y, c), c.new_empty(0), c.new_empty(0, dtype=torch.uint8), stats
    return from_rows(y, c), from_rows(sign_symbols(y), c), _pack(y.abs() < 1), stats


def reference_backward(
    g_y: Tensor | None, g_s: Tensor | None, c: Tensor, slope: Tensor | None, weight: Tensor, near: Tensor, stats: Tensor
) -> _Four:
    """The gradients of the sum ``y`` (empty if that is ``g_y``), of ``c``, of (weight, bias), and of the slope."""
    g = torch.zeros((), dtype=c.dtype, device=c.device) if g_y is None else as_rows(g_y)
    total = c.new_empty(0)
    if g_s is not None:
        g = (g + _wide(g_s) * _unpack(near, c.shape[1])).to(c.dtype)
        total = from_rows(g, c)
    g, rows, count = g.to(stats.dtype), _wide(c), c.numel() // c.shape[1]
    z = rows if slope is None else torch.where(rows > 0, rows, slope * rows)
    normed = (z - stats[MEAN]) * stats[INVERSE_DEVIATION]
    g_bias, g_weight = g.sum(dim=0), (g * normed).sum(dim=0)
    g_z = weight * stats[INVERSE_DEVIATION] * (g - g_bias / count - normed * g_weight / count)
    g_c = g_z if slope is None else torch.where(rows > 0, g_z, slope * g_z)
    g_slope = stats.new_empty(0) if slope is None else (g_z * rows.clamp(max=0)).sum(dim=0)
    return total, from_rows(g_c.to(c.dtype), c), torch.stack((g_weight, g_bias)), g_slope


def _wide(tensor: Tensor) -> Tensor:
    return as_rows(tensor).to(at_least_float32(tensor.dtype))


def _pack(bits: Tensor) -> Tensor:
    """(position, byte) of (position, channel): eight channels to a byte, the first in the lowest bit."""
    padded = nnf.pad(bits.to(torch.uint8), (0, -bits.shape[1] % 8))
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return (padded.view(len(padded), -1, 8) << places).sum(dim=2, dtype=torch.uint8)


def _unpack(packed: Tensor, channels: int) -> Tensor:
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[:, :, None] >> places) & 1).flatten(1)[:, :channels]


# A compiler may hand over what lies channels last as it is, and need not copy it to what it traced; before 2.8 it does.
_ANY_LAYOUT: dict[str, Any] = {"mutates_args": ()}
if "tags" in signature(torch.library.custom_op).parameters:
    _ANY_LAYOUT["tags"] = (torch.Tag.flexible_layout,)
_forward_op = torch.library.custom_op(
    "equalbits::prelu_norm_add_sign", reference_forward, schema=_FORWARD, **_ANY_LAYOUT
)
_backward_op = torch.library.custom_op(
    "equalbits::prelu_norm_add_sign_backward", reference_backward, schema=_BACKWARD, **_ANY_LAYOUT
)


@_forward_op.register_kernel("cuda")
def _(c: Tensor, *others: Any) -> _Four:
    gpu = _gpu_for(c)
    return gpu.forward(c, *others) if gpu else reference_forward(c, *others)


@_backward_op.register_kernel("cuda")
def _(g_y: Tensor | None, g_s: Tensor | None, c: Tensor, *others: Any) -> _Four:
    gpu = _gpu_for(c)
    return gpu.backward(g_y, g_s, c, *others) if gpu else reference_backward(g_y, g_s, c, *others)


def _gpu_for(c: Tensor) -> Any:
    """The module with the kernels, loaded when first needed; None without Triton, or for numbers they do not take."""
    try:
        from equalbits.functional.kernels import prelu_norm_add_sign as gpu
    except ImportError:
        return None
    return gpu if c.dtype in gpu.DTYPES else None


@_forward_op.register_fake
def _(
    c: Tensor, slope: Tensor | None, weight: Tensor, bias: Tensor, residual: Tensor | None, eps: float, signs: bool
) -> _Four:
    rows, channels = c.numel() // c.shape[1], c.shape[1]
    y, s = (from_rows(c.new_empty(rows, channels), c) for _ in range(2))
    near = c.new_empty((rows, (channels + 7) // 8) if signs else 0, dtype=torch.uint8)
    stats = c.new_empty(5, channels, dtype=at_least_float32(c.dtype))
    return y, s if signs else c.new_empty(0), near, stats


@_backward_op.register_fake
def _(
    g_y: Tensor | None, g_s: Tensor | None, c: Tensor, slope: Tensor | None, weight: Tensor, near: Tensor, stats: Tensor
) -> _Four:
    rows, channels = c.numel() // c.shape[1], c.shape[1]
    total, g_c = (from_rows(c.new_empty(rows, channels), c) for _ in range(2))
    g_slope = stats.new_empty(0 if slope is None else channels)
    return total if g_s is not None else c.new_empty(0), g_c, stats.new_empty(2, channels), g_slope


def _remember(ctx: Any, inputs: tuple[Any, ...], output: _Four) -> None:
    c, slope, weight, _, _, _, signs = inputs
    _, s, near, stats = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*((near, stats) if signs else (s, near, stats)))
    ctx.save_for_backward(c, slope, weight, near, stats)


def _differentiate(ctx: Any, g_y: Tensor | None, g_s: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if g_y is None and g_s is None:
        return (None,) * 7
    c, slope, weight, near, stats = ctx.saved_tensors
    total, g_c, (g_weight, g_bias), g_slope = _backward_op(g_y, g_s, c, slope, weight, near, stats)
    if slope is not None and slope.shape[0] == 1:
        g_slope = g_slope.sum(dim=0, keepdim=True)
    g_residual = (g_y if g_s is None else total) if ctx.needs_input_grad[4] else None
    return g_c, g_slope if slope is not None else None, g_weight, g_bias, g_residual, None, None


_forward_op.register_autograd(_differentiate, setup_context=_remember)


@torch.library.custom_op("equalbits::update_running_stats", mutates_args=("running", "counts"), schema=_MOVE)
def update_running_stats(
    running: list[Tensor], counts: list[Tensor], latest: list[Tensor], factors: list[float], momentum: float
) -> None:
    """Move running statistics towards a batch's times their factors, and count the batch, in a few launches for all."""
    wide = [tensor.to(mine.dtype) for tensor, mine in zip(latest, running, strict=True)]
    torch._foreach_lerp_(running, torch._foreach_mul(wide, factors), momentum)
    torch._foreach_add_(counts, 1)


@update_running_stats.register_fake
def _(running: list[Tensor], counts: list[Tensor], latest: list[Tensor], factors: list[float], momentum: float) -> None:
    return None
