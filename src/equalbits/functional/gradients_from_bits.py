"""Gradients of convolutions, linear maps and clipped signs, from the bits of their input.

Compiled code calls them as torch operators, which unpack the bits themselves. Separate operations would let a compiler
unpack all layers at the start of the backward pass, as nothing but the order of the code makes it wait for a gradient:
the memory that bits save would be lost again.
"""

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equalbits.functional.packed_bits import BitLayout, SignBits, mask_by_bits

# Lets a compiler pass channels-last tensors without copying them to the traced layout; torch before 2.8 copies.
_ANY_LAYOUT: dict[str, Any] = {"mutates_args": ()}
if "tags" in signature(torch.library.custom_op).parameters:
    _ANY_LAYOUT["tags"] = (torch.Tag.flexible_layout,)


def operator(name: str, schema: str, function: Callable[..., Any]) -> Any:
    """Return a function of torch's operations as an operator; a compiler infers shapes by the function itself."""
    made = torch.library.custom_op(f"equalbits::{name}", function, schema=schema, **_ANY_LAYOUT)
    made.register_fake(function)
    return made


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
    rows = gradient.reshape(-1, gradient.shape[-1])
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


def masked_gradient(gradient: Tensor, packed: Tensor, layout: BitLayout) -> Tensor:
    """Return the gradient where a bit is set, and 0 elsewhere."""
    if torch.compiler.is_compiling():
        passed: Tensor = _masked_op(gradient, packed, *layout)
        return passed
    return mask_by_bits(gradient, packed, layout, gradient.dtype)


def _masked(gradient: Tensor, packed: Tensor, shape: Sequence[int], channels_last: bool) -> Tensor:
    bits = BitLayout(tuple(shape), channels_last).unpack(packed, torch.bool)
    return in_format(gradient * bits, channels_last)


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


def in_format(tensor: Tensor, channels_last: bool) -> Tensor:
    """Return a tensor in channels last or contiguous: the layout that the compiler assumes."""
    strided = channels_last and tensor.dim() == 4
    return tensor.contiguous(memory_format=torch.channels_last if strided else torch.contiguous_format)


_LAYOUT = "SymInt[] shape, bool channels_last"
_convolution_op = operator(
    "convolution_of_bits_backward",
    f"(Tensor gradient, Tensor packed, Tensor weight, {_LAYOUT}, {SETTINGS}, bool of_signs, bool of_weight, "
    "bool of_bias) -> (Tensor, Tensor, Tensor)",
    _convolution,
)
_weight_of_linear_op = operator(
    "linear_of_bits_backward",
    f"(Tensor rows, Tensor packed, Tensor weight, {_LAYOUT}) -> Tensor",
    _weight_of_linear,
)
_masked_op = operator("masked_gradient", f"(Tensor gradient, Tensor packed, {_LAYOUT}) -> Tensor", _masked)
