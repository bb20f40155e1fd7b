"""Convolutions and linear maps of ±1 inputs that keep the input for the backward pass as bits.

The gradient of the weight needs the input. Torch keeps it as it is, 2 or 4 bytes per value; here it is one bit, and
the backward pass unpacks it. Values and gradients equal torch's to the bit. Call these functions only where
:func:`saves_signs` is True; elsewhere torch's own serve.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nnf

from equalbits.functional.estimators import ScaledSymbols, with_gradient
from equalbits.functional.gradients_from_bits import ConvSettings, product_gradients
from equalbits.functional.packed_bits import BitLayout, SignBits, keeps_bits, mask_by_bits, sign_bits


def sign_as_bits(inputs: Tensor) -> tuple[Tensor, SignBits]:
    """Return the clipped sign of the inputs, cast as autocast would, and its bits, in plain execution.

    >>> sign_as_bits(torch.tensor([[0.5, -2.0, 0.0]]))[0]
    tensor([[ 1., -1.,  1.]])
    """
    layout, dtype = BitLayout.of(inputs), autocast_dtype(inputs)
    if torch.is_grad_enabled() and inputs.requires_grad:
        signs, packed, link = _ClippedSign.apply(inputs, layout, dtype)  # type: ignore[no-untyped-call]
        return signs, SignBits(packed, layout, link)
    signs, packed, _ = sign_bits(inputs, layout, dtype)
    return signs, SignBits(packed, layout)


def saves_signs(signs: Tensor, weight: Tensor) -> bool:
    """Return whether the backward pass needs the input, and bits can replace it."""
    return torch.is_grad_enabled() and weight.requires_grad and keeps_bits(signs) and keeps_bits(weight)


def convolve_signs(
    signs: Tensor,
    weight: Tensor | ScaledSymbols,
    bias: Tensor | None,
    settings: ConvSettings,
    *,
    bits: SignBits | None = None,
) -> Tensor:
    """Compute ``torch.convolution`` of a batch of ±1 inputs, whose ``bits`` may be known.

    >>> signs = torch.tensor([[[[1.0, -1.0, 1.0]]]])
    >>> weight = torch.ones(1, 1, 1, 2, requires_grad=True)
    >>> convolve_signs(signs, weight, None, ConvSettings((1, 1), (0, 0))).sum().backward()
    >>> weight.grad
    tensor([[[[0., 0.]]]])
    """
    return _product(signs, weight, bias, settings, bits)


def linear_of_signs(
    signs: Tensor, weight: Tensor | ScaledSymbols, bias: Tensor | None, *, bits: SignBits | None = None
) -> Tensor:
    """Compute ``torch.nn.functional.linear`` of ±1 inputs, whose ``bits`` may be known.

    >>> weight = torch.ones(1, 2, requires_grad=True)
    >>> linear_of_signs(torch.tensor([[1.0, -1.0], [1.0, -1.0]]), weight, None).sum().backward()
    >>> weight.grad
    tensor([[ 2., -2.]])
    """
    return _product(signs, weight, bias, None, bits)


def _product(
    signs: Tensor,
    weight: Tensor | ScaledSymbols,
    bias: Tensor | None,
    settings: ConvSettings | None,
    bits: SignBits | None,
) -> Tensor:
    signs, source, symbols, bias = as_operands(signs, weight, bias)
    if bits is None:
        layout, linked = BitLayout.of(signs), signs.requires_grad and not torch.compiler.is_compiling()
        link = _Link.apply(signs) if linked else None  # type: ignore[no-untyped-call]
        bits = SignBits(layout.pack(signs > 0), layout, link)
    kept = bits.packed, symbols, bits.layout, settings
    return _Product.apply(signs, bits.link, source, bias, *kept)  # type: ignore[no-any-return, no-untyped-call]


def as_operands(
    signs: Tensor, weight: Tensor | ScaledSymbols, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, ScaledSymbols | None, Tensor | None]:
    """Return the signs, what the gradient of the weight passes to, the symbols, and the bias, cast as autocast would.

    They are cast outside the autograd functions: autocast does not reach their backward.
    """
    values = weight.values if isinstance(weight, ScaledSymbols) else weight
    signs, values = signs.to(autocast_dtype(signs)), values.to(autocast_dtype(values))
    bias = None if bias is None else bias.to(autocast_dtype(bias))
    if isinstance(weight, ScaledSymbols):
        return signs, weight.latents, weight._replace(values=values), bias
    return signs, values, None, bias


def autocast_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype to which autocast casts an operand of a product."""
    device = tensor.device.type
    if device == "meta" or not torch.is_autocast_enabled(device) or tensor.dtype == torch.float64:
        return tensor.dtype
    return torch.get_autocast_dtype(device)


class _ClippedSign(torch.autograd.Function):
    """The clipped sign, its bits, and zeros as :class:`_Link` returns them."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, layout: BitLayout, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        signs, packed, near = sign_bits(inputs, layout, dtype)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(packed)
        ctx.save_for_backward(near)
        ctx.form = layout, inputs.dtype
        return signs, packed, signs.new_zeros(()).expand(signs.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: None, of_link: Tensor | None) -> tuple[Tensor | None, ...]:
        if of_link is not None:
            gradient = of_link if gradient is None else gradient + of_link
        if gradient is None:
            return None, None, None
        layout, dtype = ctx.form
        return mask_by_bits(gradient, ctx.saved_tensors[0], layout, dtype), None, None


class _Link(torch.autograd.Function):
    """Zeros without memory through which the gradient of a gradient reaches the signs; not in compiled code."""

    @staticmethod
    def forward(ctx: Any, signs: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return signs.new_zeros(()).expand(signs.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> Tensor | None:
        return gradient


class _Product(torch.autograd.Function):
    """A convolution, or without settings a linear map."""

    @staticmethod
    def forward(
        ctx: Any, signs: Tensor, link: Tensor | None, source: Tensor, bias: Tensor | None, *kept: Any
    ) -> Tensor:
        packed, ctx.symbols, ctx.layout, ctx.settings = kept
        values = source if ctx.symbols is None else ctx.symbols.values
        ctx.link = link
        ctx.save_for_backward(packed, values)
        if ctx.settings is not None:
            return torch.convolution(signs, values, bias, *ctx.settings)
        if ctx.symbols is not None:
            values.requires_grad_()  # torch.linear chooses its matrix product by whether the weight requires a gradient
        return nnf.linear(signs, values, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        packed, weight = ctx.saved_tensors
        if torch.is_grad_enabled() and ctx.symbols is not None:
            weight = with_gradient(ctx.symbols)
        of_signs, _, of_weight, of_bias = ctx.needs_input_grad[:4]
        bits, wanted = SignBits(packed, ctx.layout, ctx.link), (of_signs, of_weight, of_bias)
        g_signs, g_weight, g_bias = product_gradients(gradient, bits, weight, ctx.settings, wanted)
        if g_weight is not None and ctx.symbols is not None:
            g_weight = ctx.symbols.of_latents(g_weight)
        return g_signs, None, g_weight, g_bias, None, None, None, None
