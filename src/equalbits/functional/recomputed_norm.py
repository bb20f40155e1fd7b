"""A convolution of ±1 inputs and the fused norm behind it, keeping bits alone for the backward pass.

The fused norm keeps its input, the convolution's output, 2 or 4 bytes per value. Here the backward pass computes that
output again from the bits of the convolution's input. One more convolution per layer saves most of the memory.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from equalbits.functional.estimators import ScaledSymbols
from equalbits.functional.fused_norm import MEAN, VARIANCE, wanted
from equalbits.functional.fused_prelu import PRELU
from equalbits.functional.fused_rprelu import RPRELU, RPReLUParameters
from equalbits.functional.packed_bits import BitLayout, SignBits
from equalbits.functional.products_of_signs import ConvSettings, as_operands, product_gradients


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

    The norm is ``prelu_norm_add_sign`` or ``norm_add_rprelu_sign``, by the type of its settings. ``bits`` are those of
    ``signs`` if they are known. Pass the signs that it returns to a convolution alone: on a GPU the backward pass
    overwrites their gradient, which a hook, a sum or another reader may share. There is no second gradient. Without
    ``recompute``, in plain execution, it keeps the output of the convolution, too.
    """
    signs, source, symbols, _ = as_operands(signs, weight)
    layout = BitLayout.of(signs) if bits is None else bits.layout
    packed = layout.pack(signs > 0) if bits is None else bits.packed
    residual = None if norm.residual is None else norm.residual.to(signs.dtype)
    if isinstance(norm, NormSettings):
        fused, wants_signs = PRELU, norm.signs
        settings: tuple[float | bool, ...] = norm.eps, norm.signs, False
        tensors: tuple[Tensor | None, ...] = norm.slope, norm.weight, norm.bias, residual
    else:
        fused, settings, wants_signs = RPRELU, (norm.eps,), norm.shift is not None
        tensors = residual, *norm.affine, *norm.activation, norm.shift
    kept = fused, layout, convolution, symbols, settings, wants_signs, recompute
    found = _ConvNorm.apply(signs, source, packed, kept, *tensors)  # type: ignore[no-untyped-call]
    y, s, positive, *_, stats = found
    return y, s if wants_signs else None, positive if wants_signs else None, stats[MEAN], stats[VARIANCE]


class _ConvNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, signs: Tensor, source: Tensor, packed: Tensor, kept: Any, *tensors: Tensor | None) -> Any:
        """Compute both; ``source`` is what the gradient of the weight passes to: the weight, or latents of symbols."""
        ctx.norm, ctx.layout, ctx.convolution, symbols, settings, wants_signs, recompute = kept
        ctx.wants_signs, ctx.scaled = wants_signs, symbols and symbols[1:]
        values = source if symbols is None else symbols.values
        compiling = torch.compiler.is_compiling()
        outputs = torch.convolution(signs, values, None, *ctx.convolution)
        found = (ctx.norm.forward_op if compiling else ctx.norm.forward)(outputs, *tensors, *settings)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(() if wants_signs else found[1:2]), *found[2:])
        kept_outputs = None if compiling or recompute else outputs
        ctx.save_for_backward(packed, values, kept_outputs, *ctx.norm.save(tensors, found))
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g_y: Tensor | None, g_s: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if g_y is None and g_s is None:
            return (None,) * len(ctx.needs_input_grad)
        packed, values, outputs, *saved = ctx.saved_tensors
        g_s = g_s if ctx.wants_signs else None  # compiled code passes zeros for an output without elements
        convolved = packed, values, *saved, *ctx.layout, *ctx.convolution
        if outputs is not None:
            found = ctx.norm.gradients(g_y, g_s, outputs, *saved, overwrite=("g_s",))
        elif torch.compiler.is_compiling():
            found = ctx.norm.recomputed_op(g_y, g_s, *convolved)
        else:
            found = ctx.norm.recomputed_gradients(g_y, g_s, *convolved, overwrite=("g_s",))
        # In an operator of its own, so that the gradients given may be freed before.
        of_signs, of_weight, _, _, *needed = ctx.needs_input_grad
        asked = of_signs, of_weight, False
        bits = SignBits(packed, ctx.layout)
        g_signs, g_weight = product_gradients(found[1], bits, values, ctx.convolution, asked)[:2]
        if g_weight is not None and ctx.scaled is not None:
            g_weight = ScaledSymbols(values, *ctx.scaled).of_latents(g_weight)
        return g_signs, g_weight, None, None, *wanted(ctx.norm.input_gradients(g_y, g_s, saved, found), needed)
