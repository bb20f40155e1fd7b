"""A convolution of ±1 inputs and the fused norm behind it, keeping bits alone for the backward pass.

The fused norm keeps its input, the convolution's output, 2 or 4 bytes per value. Here the backward pass computes that
output again from the bits of the convolution's input. One more convolution per layer saves most of the memory.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from equalbits.functional.fused_norm import MEAN, VARIANCE, _forward_op, gradients_over_input
from equalbits.functional.gradients_from_bits import (
    ANY_LAYOUT,
    SETTINGS,
    ConvSettings,
    conv_gradients,
    in_format,
)
from equalbits.functional.inputs_as_bits import as_autocast
from equalbits.functional.packed_bits import BitLayout


class NormSettings(NamedTuple):
    """Tensors and settings of :func:`~equalbits.functional.prelu_norm_add_sign` besides its input."""

    slope: Tensor | None
    weight: Tensor
    bias: Tensor
    residual: Tensor | None = None
    eps: float = 1e-5
    signs: bool = False


def convolve_and_norm(
    signs: Tensor,
    packed: Tensor | None,
    weight: Tensor,
    convolution: ConvSettings,
    norm: NormSettings,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor]:
    """Return ``prelu_norm_add_sign`` of the convolution of ±1 inputs, which keeps only bits.

    ``packed`` holds the bits of ``signs`` if they are known, as (position, byte of 8 channels). There is no second
    gradient.
    """
    signs, weight, _ = as_autocast((signs, weight, None))
    layout = BitLayout.of(signs) if packed is None else BitLayout(tuple(signs.shape), channels_last=True)
    packed = layout.pack(signs > 0) if packed is None else packed
    residual = None if norm.residual is None else norm.residual.to(signs.dtype)
    form = layout, convolution, norm.eps, norm.signs
    y, s, positive, _, stats = _Recomputed.apply(  # type: ignore[no-untyped-call]
        signs, packed, weight, norm.slope, norm.weight, norm.bias, residual, form
    )
    return y, s if norm.signs else None, positive if norm.signs else None, stats[MEAN], stats[VARIANCE]


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(
        signs: Tensor, packed: Tensor, weight: Tensor, slope: Tensor | None, *others: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        gain, bias, residual, (_, convolution, eps, wanted) = others
        outputs = torch.convolution(signs, weight, None, *convolution)
        return _forward_op(outputs, slope, gain, bias, residual, eps, wanted)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, packed, weight, slope, gain, _, _, ctx.form = inputs
        _, s, positive, near, stats = output
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(() if ctx.form[3] else (s,)), positive, near, stats)
        ctx.save_for_backward(packed, weight, slope, gain, near, stats)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g_y: Tensor | None, g_s: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if g_y is None and g_s is None:
            return (None,) * 8
        packed, weight, slope, gain, near, stats = ctx.saved_tensors
        layout, convolution, _, wanted = ctx.form
        g_s = g_s if wanted else None  # compiled code passes zeros for an output without elements
        of_signs, _, of_weight, _, _, _, of_residual, _ = ctx.needs_input_grad
        norm_backward = _norm_backward_op if torch.compiler.is_compiling() else _norm_backward
        total, g_outputs, (g_gain, g_bias), g_slope = norm_backward(
            g_y, g_s, packed, weight, slope, gain, near, stats, *layout, *convolution
        )
        # In an operator of its own, so that the gradients given may be freed before.
        wanted = (of_signs, of_weight, False)
        g_signs, g_weight = conv_gradients(g_outputs, packed, weight, layout, convolution, wanted)[:2]
        if slope is not None and slope.shape[0] == 1:
            g_slope = g_slope.sum(dim=0, keepdim=True)
        g_residual = (g_y if g_s is None else total) if of_residual else None
        return g_signs, None, g_weight, g_slope if slope is not None else None, g_gain, g_bias, g_residual, None


def _norm_backward(
    g_y: Tensor | None, g_s: Tensor | None, packed: Tensor, weight: Tensor, slope: Tensor | None, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of ``y`` (empty if equal to ``g_y``), the convolution's output, (gain, bias) and slope."""
    gain, near, stats, shape, channels_last, *form = others
    signs = BitLayout(tuple(shape), channels_last).unpack(packed, weight.dtype)
    outputs = torch.convolution(signs, weight, None, *ConvSettings(*form))
    del signs
    total, g_outputs, g_affine, g_slope = gradients_over_input(g_y, g_s, outputs, slope, gain, near, stats)
    return total, in_format(g_outputs, channels_last=True), g_affine, g_slope


_norm_backward_op = torch.library.custom_op(
    "equalbits::recomputed_norm_backward",
    _norm_backward,
    schema="(Tensor? g_y, Tensor? g_s, Tensor packed, Tensor weight, Tensor? slope, Tensor gain, Tensor near, "
    f"Tensor stats, SymInt[] shape, bool channels_last, {SETTINGS}) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    **ANY_LAYOUT,
)


@_norm_backward_op.register_fake
def _(
    g_y: Tensor | None, g_s: Tensor | None, packed: Tensor, weight: Tensor, slope: Tensor | None, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    stats, form = others[2], torch.channels_last
    like = g_y if g_s is None else g_s
    assert like is not None  # as backward checks
    g_outputs = weight.new_empty(like.shape).contiguous(memory_format=form)
    channels = stats.shape[1]
    total = weight.new_empty(0) if g_s is None else torch.empty_like(g_outputs)
    return total, g_outputs, stats.new_empty(2, channels), stats.new_empty(0 if slope is None else channels)
