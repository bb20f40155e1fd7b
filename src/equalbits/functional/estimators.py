"""Gradient estimators: each returns the given symbols forward and defines the gradient of the reals behind them.

The forward value equals the symbols to the last bit. ``x + (symbols - x).detach()`` does not: the sum rounds, and where
``x`` and its symbol differ in sign, about a quarter of the results are not ±1.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx

from equalbits.functional.execution_mode import in_forward_mode, is_plain_execution, plain_twin
from equalbits.functional.packed_bits import BitLayout, keeps_bits, mask_by_bits


def straight_through(reals: Tensor, symbols: Tensor) -> Tensor:
    """Pass the gradient unchanged, the paper's choice for weights.

    >>> latents = torch.tensor([0.2, -3.0], requires_grad=True)
    >>> straight_through(latents, torch.tensor([1.0, -1.0])).backward(torch.tensor([5.0, 7.0]))
    >>> latents.grad
    tensor([5., 7.])
    """
    return surrogate(reals, symbols, None)


def surrogate(reals: Tensor, symbols: Tensor, slope: Tensor | None) -> Tensor:
    """Multiply the gradient by ``slope``, broadcast against the reals: the form of all estimators.

    Symbols that include a scale need it in their slope too. Symbols and reals may differ in dtype. A boolean slope is
    kept for the backward pass as bits.
    """
    if in_forward_mode():  # in torch's own operations: a zero with the derivative of the reals, so symbols stay exact
        zero = (1.0 if slope is None else slope) * (reals - reals.detach())
        return symbols + zero.nan_to_num().to(symbols.dtype)
    if (
        slope is not None
        and slope.dtype == torch.bool
        and reals.requires_grad
        and torch.is_grad_enabled()
        and keeps_bits(slope)
    ):
        layout = BitLayout.of(slope)
        return _Masked.apply(reals, symbols, layout.pack(slope), layout)  # type: ignore[no-any-return, no-untyped-call]
    function = _PlainSurrogate if is_plain_execution() else _Surrogate
    return function.apply(reals, symbols, slope)  # type: ignore[no-any-return]


class ScaledSymbols(NamedTuple):
    """Symbols times a constant scale, without gradient: that of the latents is theirs times the scale."""

    values: Tensor
    latents: Tensor
    scale: Tensor

    def of_latents(self, gradient: Tensor) -> Tensor:
        """Return the gradient of the latents from that of the values."""
        return gradient.to(self.latents.dtype) * self.scale


def with_gradient(weight: Tensor | ScaledSymbols) -> Tensor:
    """Return a weight with its gradient."""
    return surrogate(weight.latents, weight.values, weight.scale) if isinstance(weight, ScaledSymbols) else weight


def clipped(reals: Tensor, symbols: Tensor, *, inclusive: bool = False) -> Tensor:
    """Pass the gradient where ``|x| < 1`` (Hubara et al. 2016), the paper's choice for inputs.

    With ``inclusive`` it passes at ``|x| = 1`` too, as weights need: a latent clipped to ±1 must be able to move back.

    >>> inputs = torch.tensor([0.2, -1.0, -3.0], requires_grad=True)
    >>> clipped(inputs, torch.tensor([1.0, -1.0, -1.0])).sum().backward()
    >>> inputs.grad
    tensor([1., 0., 0.])
    """
    magnitude = reals.detach().abs()
    return surrogate(reals, symbols, magnitude <= 1 if inclusive else magnitude < 1)


def polynomial(reals: Tensor, symbols: Tensor) -> Tensor:
    """ApproxSign (Liu et al. 2018): slope ``2 − 2|x|`` inside ±1, the derivative of a piecewise parabola.

    The slope is kept for the backward pass in the dtype of the symbols.

    >>> inputs = torch.tensor([0.25, -3.0], requires_grad=True)
    >>> polynomial(inputs, torch.tensor([1.0, -1.0])).sum().backward()
    >>> inputs.grad
    tensor([1.5000, 0.0000])
    """
    return surrogate(reals, symbols, (2 - 2 * reals.detach().abs()).clamp(min=0).to(symbols.dtype))


def triangle_slope(reals: Tensor, sharpness: Tensor) -> Tensor:
    """RBNN's slope (Lin et al. 2020): ``k · max(0, √2·t − t²·|x|)`` with ``k = max(1/t, 1)``, narrower as ``t`` grows.

    >>> triangle_slope(torch.tensor([0.0, 1.0, 2.0]), torch.tensor(1.0))
    tensor([1.4142, 0.4142, 0.0000])
    """
    height = (1 / sharpness).clamp(min=1.0)
    return height * (math.sqrt(2) * sharpness - sharpness.square() * reals.abs()).clamp(min=0)


def swish_sign(reals: Tensor, symbols: Tensor, beta: float = 5.0) -> Tensor:
    """SwishSign, the estimator of BNN+ (Darabi et al. 2018): the slope of ``2σ(βx)(1 + βx(1 − σ(βx))) − 1``.

    That is ``β(2 − βx·tanh(βx/2)) / (1 + cosh(βx))``, written with σ so that it cannot overflow. It is negative beyond
    about ``2.4/β`` and then decays to 0.

    >>> inputs = torch.tensor([0.0, 10.0], requires_grad=True)
    >>> swish_sign(inputs, torch.ones(2)).sum().backward()
    >>> inputs.grad
    tensor([5., -0.])
    """
    scaled = beta * reals.detach()
    share = scaled.sigmoid()
    return surrogate(reals, symbols, 2 * beta * share * (1 - share) * (2 + scaled * (1 - 2 * share)))


def check_beta(beta: float) -> None:
    """Raise unless the steepness of :func:`swish_sign` is above 0 and finite."""
    if not 0 < beta < math.inf:
        raise ValueError(f"beta={beta} gives no slope: it must be above 0 and finite; 5 is usual")


class _Surrogate(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(reals: Tensor, symbols: Tensor, slope: Tensor | None) -> Tensor:
        return symbols.view_as(symbols)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])  # type: ignore[arg-type]

    @staticmethod
    def backward(ctx: BackwardCFunction, gradient: Tensor) -> tuple[Tensor, None, None]:
        slope: Tensor | None = ctx.saved_tensors[0]
        if slope is None:
            return gradient, None, None
        wide = torch.promote_types(gradient.dtype, slope.dtype)  # explicit: a 0-dim slope does not promote
        return gradient.to(wide) * slope, None, None


_PlainSurrogate = plain_twin(_Surrogate.forward, _Surrogate.setup_context, _Surrogate.backward)


class _Masked(torch.autograd.Function):
    """:class:`_Surrogate` with a boolean slope that is kept as bits; not for ``torch.func``."""

    @staticmethod
    def forward(ctx: Any, reals: Tensor, symbols: Tensor, packed: Tensor, layout: BitLayout) -> Tensor:
        ctx.save_for_backward(packed)
        ctx.layout = layout
        return symbols.view_as(symbols)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return mask_by_bits(gradient, ctx.saved_tensors[0], ctx.layout, gradient.dtype), None, None, None
