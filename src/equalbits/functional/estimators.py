"""What flows back through a binarizer: each estimator joins given symbols to the reals they came from.

The forward value is the symbols to the last bit. ``x + (symbols - x).detach()`` would not do: its sum rounds, and a
few per cent of the "bits" come out as something other than ±1.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


class _StraightThrough(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(reals: Tensor, symbols: Tensor) -> Tensor:
        return symbols.view_as(symbols)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Weighted(torch.autograd.Function):
    """Symbols forward; backward the gradient times a given slope."""

    generate_vmap_rule = True

    @staticmethod
    def forward(reals: Tensor, symbols: Tensor, slope: Tensor) -> Tensor:
        return symbols.view_as(symbols)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        wide = torch.promote_types(gradient.dtype, slope.dtype)  # said, since a slope without axes widens nothing
        return gradient.to(wide) * slope, None, None


def carries_tangents() -> bool:
    """Whether torch differentiates forwards now, as ``torch.func.jvp`` does.

    The functions above have no rule for that: torch compiles none that has.

    >>> carries_tangents()
    False
    """
    return forward_ad._current_level >= 0


def joined(reals: Tensor, symbols: Tensor, slope: Tensor | float = 1.0) -> Tensor:
    """What :func:`weighted` means in torch's own operations, for a pass that carries tangents forward.

    A 0 that has the reals' derivative is added, so the symbols stay what they are to the last bit, whatever the reals.
    """
    return symbols + (slope * (reals - reals.detach())).nan_to_num().to(symbols.dtype)


def straight_through(reals: Tensor, symbols: Tensor) -> Tensor:
    """Pass the gradient on unchanged (identity), the paper's choice for weights.

    >>> latents = torch.tensor([0.2, -3.0], requires_grad=True)
    >>> straight_through(latents, torch.tensor([1.0, -1.0])).backward(torch.tensor([5.0, 7.0]))
    >>> latents.grad
    tensor([5., 7.])
    """
    if carries_tangents():
        return joined(reals, symbols)
    return _StraightThrough.apply(reals, symbols)  # type: ignore[no-any-return, no-untyped-call]


def weighted(reals: Tensor, symbols: Tensor, slope: Tensor) -> Tensor:
    """Multiply the gradient by ``slope``, any tensor that fits the reals: the form all other estimators share.

    Symbols that hold a scale already need it as their slope; they may be of another dtype than the reals.
    """
    if carries_tangents():
        return joined(reals, symbols, slope)
    return _Weighted.apply(reals, symbols, slope)  # type: ignore[no-any-return, no-untyped-call]


def clipped(reals: Tensor, symbols: Tensor) -> Tensor:
    """Pass the gradient on where ``|x| < 1``, nothing beyond (Hubara et al. 2016): the paper's choice for inputs.

    >>> inputs = torch.tensor([0.2, -3.0], requires_grad=True)
    >>> clipped(inputs, torch.tensor([1.0, -1.0])).sum().backward()
    >>> inputs.grad
    tensor([1., 0.])
    """
    return weighted(reals, symbols, reals.detach().abs() < 1)


def polynomial(reals: Tensor, symbols: Tensor) -> Tensor:
    """ApproxSign (Liu et al. 2018): slope ``2 − 2|x|`` inside ±1, the derivative of a piecewise parabola.

    >>> inputs = torch.tensor([0.25, -3.0], requires_grad=True)
    >>> polynomial(inputs, torch.tensor([1.0, -1.0])).sum().backward()
    >>> inputs.grad
    tensor([1.5000, 0.0000])
    """
    return weighted(reals, symbols, (2 - 2 * reals.detach().abs()).clamp(min=0))


def decaying(reals: Tensor, symbols: Tensor, sharpness: Tensor) -> Tensor:
    """EDE (Qin et al. 2020): slope ``k·t·(1 − tanh²(t·x))`` with ``k = max(1/t, 1)``.

    The slope is near 1 everywhere while ``t`` is small and closes in on the sign function's as ``t`` grows; see
    :func:`ede_sharpness` for its schedule.

    >>> inputs = torch.tensor([0.0, 1.0], requires_grad=True)
    >>> decaying(inputs, torch.tensor([1.0, 1.0]), torch.tensor(10.0)).sum().backward()
    >>> inputs.grad.round(decimals=4)
    tensor([10.,  0.])
    """
    return weighted(reals, symbols, ede_slope(reals.detach(), sharpness))


def ede_slope(reals: Tensor, sharpness: Tensor) -> Tensor:
    """The slope of :func:`decaying` at ``reals``."""
    return (sharpness * reals).tanh().square().neg().add(1) * sharpness.clamp(min=1.0)  # k·t = max(1, t)


def ede_sharpness(progress: Tensor, t_min: float = 0.1, t_max: float = 10.0) -> Tensor:
    """EDE's ``t`` when the share ``progress`` of training is done: from ``t_min`` to ``t_max``, even in the logarithm.

    >>> [round(float(ede_sharpness(torch.tensor(p))), 3) for p in (0.0, 0.5, 1.0)]
    [0.1, 1.0, 10.0]
    """
    return t_min * (t_max / t_min) ** progress
