"""Convolutions and linear maps of ±1 inputs that keep the input for the backward pass as bits.

The gradient of the weight needs the input. Torch keeps it as it is, 2 or 4 bytes per value; here it is one bit, and
the backward pass unpacks it. Values and gradients equal torch's to the bit. Call these functions only where
:func:`saves_signs` is True; elsewhere torch's own serve.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nnf

from equalbits.functional.gradients_from_bits import (
    ConvSettings,
    conv_gradients,
    convolution_gradients,
    linear_gradients,
)
from equalbits.functional.packed_bits import BitLayout, keeps_bits


def saves_signs(signs: Tensor, weight: Tensor) -> bool:
    """Return whether the backward pass needs the input, and bits can replace it."""
    return torch.is_grad_enabled() and weight.requires_grad and keeps_bits(signs) and keeps_bits(weight)


def convolve_signs(
    signs: Tensor, weight: Tensor, bias: Tensor | None, settings: ConvSettings, *, packed: Tensor | None = None
) -> Tensor:
    """Compute ``torch.convolution`` of a batch of ±1 inputs.

    ``packed`` holds their bits if they are known, as (position, byte of 8 channels).

    >>> signs = torch.tensor([[[[1.0, -1.0, 1.0]]]])
    >>> weight = torch.ones(1, 1, 1, 2, requires_grad=True)
    >>> convolve_signs(signs, weight, None, ConvSettings((1, 1), (0, 0))).sum().backward()
    >>> weight.grad
    tensor([[[[0., 0.]]]])
    """
    signs, weight, bias = as_autocast((signs, weight, bias))
    layout = BitLayout.of(signs) if packed is None else BitLayout(tuple(signs.shape), channels_last=True)
    packed = layout.pack(signs > 0) if packed is None else packed
    return _Convolution.apply(signs, _link(signs), weight, bias, packed, (layout, settings))  # type: ignore[no-any-return, no-untyped-call]


def linear_of_signs(signs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute ``torch.nn.functional.linear`` of ±1 inputs.

    >>> weight = torch.ones(1, 2, requires_grad=True)
    >>> linear_of_signs(torch.tensor([[1.0, -1.0], [1.0, -1.0]]), weight, None).sum().backward()
    >>> weight.grad
    tensor([[ 2., -2.]])
    """
    signs, weight, bias = as_autocast((signs, weight, bias))
    layout = BitLayout.of(signs)
    return _Linear.apply(signs, _link(signs), weight, bias, layout.pack(signs > 0), layout)  # type: ignore[no-any-return, no-untyped-call]


def as_autocast(tensors: tuple[Tensor, Tensor, Tensor | None]) -> Any:
    """Cast as autocast would, but outside the autograd functions: it does not reach their backward."""
    device = tensors[0].device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(each if each is None or each.dtype == torch.float64 else each.to(dtype) for each in tensors)


def _link(signs: Tensor) -> Tensor | None:
    """Return zeros without memory through which the gradient of a gradient reaches ``signs``."""
    if torch.compiler.is_compiling() or not signs.requires_grad:  # compiled code has no second gradient
        return None
    return _Link.apply(signs)  # type: ignore[no-any-return, no-untyped-call]


def _differentiable_input(ctx: Any, layout: BitLayout) -> Tensor | None:
    """Return the input in a backward pass that is differentiated again, else None."""
    if ctx.link is None or not torch.is_grad_enabled():
        return None
    packed, weight = ctx.saved_tensors
    return layout.unpack(packed, weight.dtype) + ctx.link  # type: ignore[no-any-return]


class _Link(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, signs: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return signs.new_zeros(()).expand(signs.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> Tensor | None:
        return gradient


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, signs: Tensor, link: Tensor | None, weight: Tensor, bias: Tensor | None, *kept: Any
    ) -> Tensor:
        packed, ctx.form = kept
        ctx.link = link
        ctx.save_for_backward(packed, weight)
        return torch.convolution(signs, weight, bias, *ctx.form[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        layout, settings = ctx.form
        of_signs, _, of_weight, of_bias, _, _ = ctx.needs_input_grad
        wanted = (of_signs, of_weight, of_bias)
        signs, (packed, weight) = _differentiable_input(ctx, layout), ctx.saved_tensors
        if signs is None:
            found = conv_gradients(gradient, packed, weight, layout, settings, wanted)
        else:
            found = convolution_gradients(gradient, [signs], weight, settings, wanted)
        return found[0], None, found[1], found[2], None, None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, signs: Tensor, link: Tensor | None, weight: Tensor, bias: Tensor | None, *kept: Any
    ) -> Tensor:
        packed, ctx.layout = kept
        ctx.link = link
        ctx.save_for_backward(packed, weight)
        return nnf.linear(signs, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_signs, _, _, of_bias, _, _ = ctx.needs_input_grad
        signs, (packed, weight) = _differentiable_input(ctx, ctx.layout), ctx.saved_tensors
        if signs is None:
            found = linear_gradients(gradient, packed, weight, ctx.layout, (of_signs, of_bias))
        else:
            rows = gradient.reshape(-1, gradient.shape[-1])
            g_weight = rows.t().mm(signs.reshape(-1, signs.shape[-1]))
            g_signs = rows.mm(weight).view(signs.shape) if of_signs else None
            found = g_signs, g_weight, rows.sum(dim=0) if of_bias else None
        return found[0], None, found[1], found[2], None, None
