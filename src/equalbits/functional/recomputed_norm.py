"""A convolution of ±1 inputs and the fused norm behind it, keeping bits alone for the backward pass.

The fused norm keeps its input, the convolution's output, 2 or 4 bytes per value. Here the backward pass computes that
output again from the bits of the convolution's input. One more convolution per layer saves most of the memory.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equalbits.functional import fused_norm, fused_rprelu
from equalbits.functional.estimators import ScaledSymbols
from equalbits.functional.execution_mode import is_plain
from equalbits.functional.fused_norm import MEAN, VARIANCE, wanted
from equalbits.functional.fused_rprelu import RPReLUParameters
from equalbits.functional.gradients_from_bits import (
    ANY_LAYOUT,
    SETTINGS,
    ConvSettings,
    conv_gradients,
    in_format,
)
from equalbits.functional.inputs_as_bits import as_autocast
from equalbits.functional.packed_bits import BitLayout, SignBits


class NormSettings(NamedTuple):
    """Tensors and settings of :func:`~equalbits.functional.prelu_norm_add_sign` besides its input."""

    slope: Tensor | None
    weight: Tensor
    bias: Tensor
    residual: Tensor | None = None
    eps: float = 1e-5
    signs: bool = False


class RPReLUSettings(NamedTuple):
    """Tensors and settings of :func:`~equalbits.functional.norm_add_rprelu_sign` besides its input."""

    affine: tuple[Tensor, Tensor]
    activation: RPReLUParameters
    residual: Tensor | None = None
    shift: Tensor | None = None
    eps: float = 1e-5


def convolve_and_norm(
    signs: Tensor,
    bits: SignBits | None,
    weight: Tensor | ScaledSymbols,
    convolution: ConvSettings,
    norm: NormSettings | RPReLUSettings,
    *,
    recompute: bool = True,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor]:
    """Return a fused norm of the convolution of ±1 inputs; it keeps only bits, and before an RPReLU the residual.

    The norm is ``prelu_norm_add_sign`` or ``norm_add_rprelu_sign``, by the type of its settings. ``bits``
    are those of ``signs`` if they are known. There is no second gradient. Without ``recompute``, in plain execution, it
    keeps the output of the convolution, too.
    """
    symbols, weight = (weight, weight.values) if isinstance(weight, ScaledSymbols) else (None, weight)
    signs, values = as_autocast((signs, weight))
    layout = BitLayout.of(signs) if bits is None else bits.layout
    packed = layout.pack(signs > 0) if bits is None else bits.packed
    residual = None if norm.residual is None else norm.residual.to(signs.dtype)
    if isinstance(norm, NormSettings):
        wants_signs = norm.signs
        form: tuple[Any, ...] = _PRELU, layout, convolution, (norm.eps, norm.signs)
        tensors: tuple[Tensor | None, ...] = norm.slope, norm.weight, norm.bias, residual
    else:
        wants_signs = norm.shift is not None
        form = _RPRELU, layout, convolution, (norm.eps,)
        tensors = residual, *norm.affine, *norm.activation, norm.shift
    form = *form, wants_signs
    if is_plain(signs):
        source = values if symbols is None else symbols.latents
        kept = packed, values, symbols, recompute, form
        found = _PlainConvNorm.apply(signs, source, kept, *tensors)  # type: ignore[no-untyped-call]
    else:
        found = _Recomputed.apply(signs, packed, values, form, *tensors)  # type: ignore[no-untyped-call]
    y, s, positive, *_, stats = found
    return y, s if wants_signs else None, positive if wants_signs else None, stats[MEAN], stats[VARIANCE]


class _FusedNorm(NamedTuple):
    """Functions of one of the fused norms; the first two are for plain execution."""

    plain_forward: Callable[..., tuple[Tensor, ...]]
    plain_backward: Callable[..., tuple[Tensor, ...]]
    forward: Callable[..., tuple[Tensor, ...]]
    saved: Callable[..., tuple[Tensor | None, ...]]
    backward: Callable[..., tuple[Tensor, ...]]  # from packed inputs
    backward_op: Callable[..., tuple[Tensor, ...]]  # as an operator that compiled code does not look into
    input_gradients: Callable[..., tuple[Tensor | None, ...]]


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(signs: Tensor, packed: Tensor, weight: Tensor, form: Any, *tensors: Tensor | None) -> Any:
        norm, _, convolution, settings, _ = form
        return norm.forward(torch.convolution(signs, weight, None, *convolution), *tensors, *settings)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, packed, weight, ctx.form, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(() if ctx.form[-1] else output[1:2]), *output[2:])
        ctx.save_for_backward(packed, weight, *ctx.form[0].saved(tensors, output))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g_y: Tensor | None, g_s: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if g_y is None and g_s is None:
            return (None,) * len(ctx.needs_input_grad)
        packed, weight, *saved = ctx.saved_tensors
        norm, layout, convolution, _, wants_signs = ctx.form
        g_s = g_s if wants_signs else None  # compiled code passes zeros for an output without elements
        backward = norm.backward_op if torch.compiler.is_compiling() else norm.backward
        found = backward(g_y, g_s, packed, weight, *saved, *layout, *convolution)
        # In an operator of its own, so that the gradients given may be freed before.
        of_signs, _, of_weight, _, *needed = ctx.needs_input_grad
        asked = of_signs, of_weight, False
        g_signs, g_weight = conv_gradients(found[1], packed, weight, layout, convolution, asked)[:2]
        return g_signs, None, g_weight, None, *wanted(norm.input_gradients(g_y, g_s, saved, found), needed)


class _PlainConvNorm(torch.autograd.Function):
    """:class:`_Recomputed` in plain execution, with the gradient of the symbols and the choice to keep the output."""

    @staticmethod
    def forward(ctx: Any, signs: Tensor, source: Tensor, kept: Any, *tensors: Tensor | None) -> Any:
        packed, values, ctx.symbols, recompute, ctx.form = kept
        norm, _, convolution, settings, wants_signs = ctx.form
        outputs = torch.convolution(signs, values, None, *convolution)
        found = norm.plain_forward(outputs, *tensors, *settings)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(() if wants_signs else found[1:2]), *found[2:])
        ctx.save_for_backward(packed, values, None if recompute else outputs, *norm.saved(tensors, found))
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g_y: Tensor | None, g_s: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if g_y is None and g_s is None:
            return (None,) * len(ctx.needs_input_grad)
        packed, weight, outputs, *saved = ctx.saved_tensors
        norm, layout, convolution, _, _ = ctx.form
        if outputs is None:
            found = norm.backward(g_y, g_s, packed, weight, *saved, *layout, *convolution)
        else:
            found = norm.plain_backward(g_y, g_s, outputs, *saved)
        of_signs, of_weight, _, *needed = ctx.needs_input_grad
        asked = of_signs, of_weight, False
        g_signs, g_weight = conv_gradients(found[1], packed, weight, layout, convolution, asked)[:2]
        if g_weight is not None and ctx.symbols is not None:
            g_weight = ctx.symbols.of_latents(g_weight)
        return g_signs, g_weight, None, *wanted(norm.input_gradients(g_y, g_s, saved, found), needed)


def _recomputing(module: Any, name: str, tensors: str, results: int) -> _FusedNorm:
    """Return a fused norm whose backward pass computes the convolution again; ``tensors`` are those it saves."""
    count = tensors.count(",") + 1

    def backward(
        g_y: Tensor | None, g_s: Tensor | None, packed: Tensor, weight: Tensor, *others: Any
    ) -> tuple[Tensor, ...]:
        saved, (shape, channels_last, *form) = others[:count], others[count:]
        signs = BitLayout(tuple(shape), channels_last).unpack(packed, weight.dtype)
        outputs = torch.convolution(signs, weight, None, *ConvSettings(*form))
        del signs
        g_residual, g_outputs, *rest = module.gradients_over_input(g_y, g_s, outputs, *saved)
        return g_residual, in_format(g_outputs, channels_last=True), *rest

    def fake(
        g_y: Tensor | None, g_s: Tensor | None, packed: Tensor, weight: Tensor, *others: Any
    ) -> tuple[Tensor, ...]:
        like = g_y if g_s is None else g_s
        assert like is not None  # as backward checks
        outputs = weight.new_empty(like.shape).contiguous(memory_format=torch.channels_last)
        return module._backward_op(g_y, g_s, outputs, *others[:count])  # type: ignore[no-any-return]

    schema = f"(Tensor? g_y, Tensor? g_s, Tensor packed, Tensor weight, {tensors}, SymInt[] shape, "
    schema += f"bool channels_last, {SETTINGS}) -> ({', '.join(results * ['Tensor'])})"
    operator = torch.library.custom_op(f"equalbits::{name}", backward, schema=schema, **ANY_LAYOUT)
    operator.register_fake(fake)
    plain = module.norm_forward, module.norm_backward
    return _FusedNorm(*plain, module._forward_op, module.saved_tensors, backward, operator, module.input_gradients)


_PRELU = _recomputing(
    fused_norm,
    "recomputed_norm_backward",
    "Tensor? slope, Tensor gain, Tensor near, Tensor stats",
    results=4,
)
_RPRELU = _recomputing(
    fused_rprelu,
    "recomputed_rprelu_backward",
    "Tensor? residual, Tensor gain, Tensor bias, Tensor? before, Tensor slope, Tensor? after, Tensor? shift, "
    "Tensor stats",
    results=3,
)
