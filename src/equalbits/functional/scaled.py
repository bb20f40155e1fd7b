"""Signs times a scale that is read off the latents: BinaryConnect, XNOR-Net, DoReFa, Bi-Real, least squares, ABC-Net.

They differ in what the scale is a mean of, whether the gradient flows through it, and where it is cut off. Each gives
the values a layer multiplies with; :func:`~equalbits.functional.sign_symbols` gives their symbols.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from equalbits.functional.binarize import sign_symbols
from equalbits.functional.estimators import straight_through, weighted
from equalbits.functional.optimal_transport import as_filters
from equalbits.functional.precision import at_least_float32, outside_autocast


def bounded(latents: Tensor, values: Tensor) -> Tensor:
    """``values`` forward; backward the gradient where ``|w| ≤ 1``.

    The bound is counted in, unlike for inputs: a latent that was clipped to ±1 must be able to come back.

    >>> latents = torch.tensor([0.2, -1.0, 3.0], requires_grad=True)
    >>> bounded(latents, torch.tensor([1.0, -1.0, 1.0])).sum().backward()
    >>> latents.grad
    tensor([1., 1., 0.])
    """
    return weighted(latents, values, latents.detach().abs() <= 1)


def binaryconnect(latents: Tensor) -> Tensor:
    """BinaryConnect (Courbariaux et al. 2015), deterministic: the sign, gradient inside ``|w| ≤ 1``.

    The published method passes the gradient everywhere and clips the latents to ±1 after each step; a latent at the
    bound then moves inwards alone. This is that rule in the gradient. BNN (Hubara et al. 2016) takes the same weights.
    """
    return bounded(latents, sign_symbols(latents))


def stochastic_symbols(latents: Tensor) -> Tensor:
    """+1 with probability ``(w + 1)/2`` cut to [0, 1], else −1: BinaryConnect's stochastic rule, by torch's generator.

    >>> stochastic_symbols(torch.tensor([-1.0, 1.0]))
    tensor([-1.,  1.])
    """
    chance = latents.detach().add(1).div(2)
    return torch.where(torch.rand_like(chance) < chance, 1.0, -1.0).to(latents.dtype)


def xnor(latents: Tensor, *, centre: bool = False) -> Tensor:
    """XNOR-Net (Rastegari et al. 2016): each filter's signs times its mean ``|w|``.

    The scale is part of the graph: ``dw = A · g · [|w| ≤ 1] + sign(w) · mean(sign(w) · g)``, the mean over the filter.
    The sources then multiply by ``n(1 − 1/C)``, a choice of learning rate, left out here. ``centre`` first takes off
    the mean over the input axis, for each kernel position; the sources do so in place before each step, here it is
    part of the graph.

    >>> xnor(torch.tensor([[0.5, -1.5], [0.0, 2.0]]))
    tensor([[ 1., -1.],
            [ 1.,  1.]])
    """
    rows = as_filters(centred_over_inputs(latents) if centre else latents)
    symbols = sign_symbols(rows)
    scale = (rows * symbols).mean(dim=1, keepdim=True)  # the mean |w|, with slope sign(w) at 0 too
    return (scale * bounded(rows, symbols)).view(latents.shape)


def centred_over_inputs(latents: Tensor) -> Tensor:
    """Latents less their mean over the second axis, the input channel."""
    if latents.dim() < 2 or latents.shape[1] < 2:
        raise ValueError(
            f"latents have shape {tuple(latents.shape)}: centring needs two input channels or more, else all become 0; "
            f"leave depthwise layers out or pass centre=False"
        )
    return latents - latents.mean(dim=1, keepdim=True)


def dorefa(latents: Tensor) -> Tensor:
    """DoReFa-Net's 1-bit weights (Zhou et al. 2016): the signs times the layer's mean ``|w|``, gradient unchanged.

    >>> dorefa(torch.tensor([[0.5, -1.0], [0.5, 2.0]]))
    tensor([[ 1., -1.],
            [ 1.,  1.]])
    """
    return straight_through(latents, sign_symbols(latents) * latents.detach().abs().mean())


def bireal(latents: Tensor) -> Tensor:
    """Bi-Real Net (Liu et al. 2018): each filter's signs times its mean ``|w|``, the gradient not.

    Forward as XNOR-Net; backward ``dw = g · [|w| ≤ 1]``, free of the scale ("magnitude-aware"). ReActNet's weights are
    the same.
    """
    rows = as_filters(latents)
    return bounded(rows, sign_symbols(rows) * _mean_magnitude(rows)).view(latents.shape)


def least_squares(latents: Tensor) -> Tensor:
    """Least squares in one bit (Pouransari et al. 2020): the signs and scale nearest to each filter in squared error.

    The answer is the sign and the mean ``|w|``; greedy and exact agree in one bit. The authors' code holds the scale
    fixed: ``dw = A · g · [|w| ≤ 1]``, the first term of XNOR-Net's gradient.
    """
    rows = as_filters(latents)
    return (_mean_magnitude(rows) * bounded(rows, sign_symbols(rows))).view(latents.shape)


class Bases(NamedTuple):
    """Binary bases of each filter, (filter, connection, base), and what each is multiplied by, (filter, base)."""

    symbols: Tensor
    weights: Tensor


def abcnet_bases(latents: Tensor, bases: int = 1) -> Bases:
    """ABC-Net (Lin et al. 2017): ``sign(w − mean + u · std)`` for ``u`` spread over ±1, weighed by least squares.

    One base has ``u = 0``. Mean, standard deviation (of all its weights, not of a sample) and the bases' weights are
    each filter's own, the paper's channel-wise form. Bases that coincide share their weight.

    >>> abcnet_bases(torch.tensor([[-3.0, -1.0, 1.0, 3.0]]), 2).weights
    tensor([[1.5000, 1.5000]])
    """
    check_bases(bases)
    rows = as_filters(latents.detach())
    shifts = torch.linspace(-1, 1, bases, dtype=rows.dtype, device=rows.device) if bases > 1 else rows.new_zeros(1)
    centred, spread = rows - rows.mean(dim=1, keepdim=True), rows.std(dim=1, keepdim=True, correction=0)
    symbols = sign_symbols(centred[..., None] + shifts * spread[..., None])  # (filter, connection, base)
    projected = (symbols * rows[..., None]).mean(dim=1)
    if bases == 1:
        return Bases(symbols, projected)
    precise = symbols.to(at_least_float32(rows.dtype))
    with outside_autocast(rows.device):
        gram = precise.transpose(1, 2) @ precise / rows.shape[1]
        weights = torch.linalg.pinv(gram, hermitian=True) @ projected[..., None].to(gram.dtype)
    return Bases(symbols, weights[..., 0].to(rows.dtype))


def check_bases(bases: int) -> None:
    """Refuse a number of bases that is none."""
    if not isinstance(bases, int) or bases < 1:
        raise ValueError(f"bases={bases!r}: there must be a whole number of them, at least one")


def abcnet(latents: Tensor, bases: int = 1) -> Tensor:
    """``Σ a_m B_m`` of :func:`abcnet_bases`; backward ``dw = (Σ a_m) · g``, straight through each base."""
    found = abcnet_bases(latents, bases)
    values = (found.symbols * found.weights[:, None]).sum(dim=2)
    slope = found.weights.sum(dim=1, keepdim=True)
    return weighted(as_filters(latents), values, slope.expand_as(values)).view(latents.shape)


def _mean_magnitude(rows: Tensor) -> Tensor:
    """The mean ``|w|`` of each row, a constant."""
    return rows.detach().abs().mean(dim=1, keepdim=True)
