"""Flip rules of the latent-free optimizers: which bits change sign, given the moving average of the gradient."""

import torch
from torch import Tensor

from equalbits.functional import as_filters


def bop_flips(bits: Tensor, momentum: Tensor, tau: float) -> Tensor:
    """Return True where Bop flips a bit: ``b · m > tau`` (Helwegen et al. 2019).

    The average gradient then opposes the bit consistently and strongly enough. At ``b · m = tau`` nothing flips.

    >>> bop_flips(torch.tensor([1.0, 1.0, -1.0, -1.0]), torch.tensor([0.5, -0.5, 0.5, -0.5]), 0.25)
    tensor([ True, False, False,  True])
    """
    return bits * momentum > tau


def balanced_flips(bits: Tensor, momentum: Tensor, tau: float) -> Tensor:
    """Return the flips of each filter with as many up as down, so that its count of +1 never changes.

    The candidates are Bop's: ``b · m > tau``. In each filter let ``n`` be the smaller of the numbers of candidates to
    rise (−1 → +1) and to fall. The ``n`` candidates with the largest ``b · m`` of either kind flip; the others keep
    their average. Ties go to the lower index. The first axis is the filter; a vector is one filter.

    >>> bits, momentum = torch.tensor([1.0, 1.0, -1.0, -1.0]), torch.tensor([0.5, 0.7, -0.1, -0.6])
    >>> balanced_flips(bits, momentum, 0.25)  # two may fall, one may rise: the stronger one falls
    tensor([False,  True, False,  True])
    """
    rows, strength = as_filters(bits), as_filters(bits * momentum)  # (filter, connection)
    candidate = strength > tau
    rising, falling = candidate & (rows < 0), candidate & (rows > 0)
    pairs = torch.minimum(rising.sum(dim=1, keepdim=True), falling.sum(dim=1, keepdim=True))
    flips = _strongest(strength, rising, pairs) | _strongest(strength, falling, pairs)
    return flips.view(bits.shape)


def _strongest(strength: Tensor, among: Tensor, count: Tensor) -> Tensor:
    """Mark the ``count`` strongest of each row ``among`` the candidates; ties go to the lower index."""
    order = strength.masked_fill(~among, -torch.inf).sort(dim=1, descending=True, stable=True).indices
    positions = torch.arange(strength.shape[1], device=strength.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, positions) < count
