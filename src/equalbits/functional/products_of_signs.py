"""Convolutions and linear maps of ±1 inputs that keep the input for the backward pass as bits.

The gradient of the weight needs the input. Torch keeps it as it is, 2 or 4 bytes per value; here it is one bit, and
the backward pass unpacks it. Values and gradients equal torch's to the bit. Call these functions only where
:func:`saves_signs` is True; elsewhere torch's own serve.

In compiled code the gradients are torch operators, which unpack the bits themselves. Separate operations would let a
compiler unpack all layers at the start of the backward pass, as nothing but the order of the code makes it wait for a
gradient: the memory that bits save would be lost again.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as nnf

from equalbits.functional.estimators import ScaledSymbols, with_gradient
from equalbits.functional.packed_bits import (
    LAYOUT,
    BitLayout,
    SignBits,
    in_format,
    keeps_bits,
    mask_by_bits,
    operator,
    sign_bits,
)
from equalbits.functional.precision import autocast_dtype


class ConvSettings(NamedTuple):
    """Settings of a convolution of any number of axes, in the order of ``torch.convolution``."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int] = (1, 1)
    transposed: bool = False
    output_padding: Sequence[int] = (0, 0)
    groups: int = 1


SETTINGS = (
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups"
)


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
        packed, symbols, ctx.layout, ctx.settings = kept
        values = source if symbols is None else symbols.values
        ctx.link, ctx.scaled = link, symbols and symbols[1:]  # saved tensors alone are freed in the backward pass
        ctx.save_for_backward(packed, values)
        if ctx.settings is not None:
            return torch.convolution(signs, values, bias, *ctx.settings)
        if symbols is not None:
            values.requires_grad_()  # torch.linear chooses its matrix product by whether the weight requires a gradient
        return nnf.linear(signs, values, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        packed, weight = ctx.saved_tensors
        symbols = ctx.scaled and ScaledSymbols(weight, *ctx.scaled)
        if torch.is_grad_enabled() and symbols is not None:
            weight = with_gradient(symbols)
        of_signs, _, of_weight, of_bias = ctx.needs_input_grad[:4]
        bits, wanted = SignBits(packed, ctx.layout, ctx.link), (of_signs, of_weight, of_bias)
        g_signs, g_weight, g_bias = product_gradients(gradient, bits, weight, ctx.settings, wanted)
        if g_weight is not None and symbols is not None:
            g_weight = symbols.of_latents(g_weight)
        return g_signs, None, g_weight, g_bias, None, None, None, None


def convolution_gradients(
    gradient: Tensor, signs: list[Tensor], weight: Tensor, settings: ConvSettings, wanted: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the ``wanted`` gradients of input, weight and bias; empty the list that holds the ±1 input.

    Where input and output have one shape the input is freed before its gradient is allocated.
    """
    of_signs, of_weight, of_bias = wanted
    filters = weight.shape[1] * settings.groups if settings.transposed else weight.shape[0]
    backward = torch.ops.aten.convolution_backward
    sizes = [filters] if of_bias else None
    inputs = signs.pop()
    alike = inputs.shape == gradient.shape and inputs.stride() == gradient.stride()
    if not (of_signs and alike):
        found: tuple[Tensor | None, ...] = backward(gradient, inputs, weight, sizes, *settings, list(wanted))
        return found[0], found[1], found[2]
    _, g_weight, g_bias = backward(gradient, inputs, weight, sizes, *settings, [False, of_weight, of_bias])
    del inputs
    # The gradient of the input depends on its shape and layout alone: those of ``gradient``.
    g_signs, _, _ = backward(gradient, gradient, weight, None, *settings, [True, False, False])
    return g_signs, g_weight, g_bias


def product_gradients(
    gradient: Tensor, bits: SignBits, weight: Tensor, settings: ConvSettings | None, wanted: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the ``wanted`` gradients of input, weight and bias of a convolution, from the bits of its input.

    Without ``settings`` it is a linear map, whose weight always gets one. A link makes the gradients differentiable.
    """
    rows = gradient if settings else gradient.reshape(-1, gradient.shape[-1])  # it copies what is channels last
    if torch.compiler.is_compiling():
        if settings is not None:
            found = _convolution_op(gradient, bits.packed, weight, *bits.layout, *settings, *wanted)
            return tuple(each if want else None for each, want in zip(found, wanted, strict=True))  # type: ignore[return-value]
        g_weight = _weight_of_linear_op(rows, bits.packed, weight, *bits.layout)
    else:
        signs = [bits.layout.unpack(bits.packed, weight.dtype)]
        if torch.is_grad_enabled() and bits.link is not None:
            signs[0] = signs[0] + bits.link
        if settings is not None:
            return convolution_gradients(gradient, signs, weight, settings, wanted)
        g_weight = rows.t().mm(signs[0].reshape(-1, weight.shape[1]))
    g_signs = rows.mm(weight).view(bits.layout.shape) if wanted[0] else None
    return g_signs, g_weight, rows.sum(dim=0) if wanted[2] else None


def _weight_of_linear(
    rows: Tensor, packed: Tensor, weight: Tensor, shape: Sequence[int], channels_last: bool
) -> Tensor:
    signs = BitLayout(tuple(shape), channels_last).unpack(packed, weight.dtype)
    return rows.t().mm(signs.reshape(-1, shape[-1]))


def _convolution(
    gradient: Tensor, packed: Tensor, weight: Tensor, shape: Sequence[int], channels_last: bool, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    settings, wanted = ConvSettings(*others[:6]), others[6:]
    layout = BitLayout(tuple(shape), channels_last)
    signs = [layout.unpack(packed, weight.dtype)]
    found = convolution_gradients(gradient, signs, weight, settings, wanted)
    kept = [gradient.new_empty(0) if each is None else each for each in found]
    return in_format(kept[0], layout.channels_last), in_format(kept[1], BitLayout.of(weight).channels_last), kept[2]


_convolution_op = operator(
    "convolution_of_bits_backward",
    f"(Tensor gradient, Tensor packed, Tensor weight, {LAYOUT}, {SETTINGS}, bool of_signs, bool of_weight, "
    "bool of_bias) -> (Tensor, Tensor, Tensor)",
    _convolution,
)
_weight_of_linear_op = operator(
    "linear_of_bits_backward",
    f"(Tensor rows, Tensor packed, Tensor weight, {LAYOUT}) -> Tensor",
    _weight_of_linear,
)
