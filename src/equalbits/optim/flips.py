"""Flips without latents: from the moving average of the gradient straight to the bits that change sign."""

import torch
from torch import Tensor

from equalbits.functional import as_filters


def bop_flips(bits: Tensor, momentum: Tensor, tau: float) -> Tensor:
    """True where Bop flips a bit: ``b · m > tau`` (Helwegen et al. 2019).

    The gradient has pointed away from the bit's own sign for long enough and strongly enough. At ``b · m = tau``
    nothing flips.

    >>> bop_flips(torch.tensor([1.0, 1.0, -1.0, -1.0]), torch.tensor([0.5, -0.5, 0.5, -0.5]), 0.25)
    tensor([ True, False, False,  True])
    """
    return bits * momentum > tau


def balanced_flips(bits: Tensor, momentum: Tensor, tau: float) -> Tensor:
    """Flips of each filter with as many up as down, so that its count of +1 never changes.

    The candidates are Bop's: ``b · m > tau``. In each filter let ``n`` be the smaller of the number of candidates to
    rise (−1 → +1) and to fall. The ``n`` with the largest ``b · m`` of either kind flip, the strongest riser with the
    strongest faller and so on; the others wait with their average kept. Of equal ones the lower index goes first. The
    first axis is the filter; a vector is one filter.

    >>> bits, momentum = torch.tensor([1.0, 1.0, -1.0, -1.0]), torch.tensor([0.5, 0.7, -0.1, -0.6])
    >>> balanced_flips(bits, momentum, 0.25)  # two may fall, one may rise: the stronger faller goes
    tensor([False,  True, False,  True])
    """
    rows, strength = as_filters(bits), as_filters(bits * momentum)  # (filter, connection)
    candidate = strength > tau
    rising, falling = candidate & (rows < 0), candidate & (rows > 0)
    pairs = torch.minimum(rising.sum(dim=1, keepdim=True), falling.sum(dim=1, keepdim=True))
    flips = _strongest(strength, rising, pairs) | _strongest(strength, falling, pairs)
    return flips.view(bits.shape)


def _strongest(strength: Tensor, among: Tensor, count: Tensor) -> Tensor:
    """The ``count`` strongest of each row ``among`` those marked; of equal ones the lower index first."""
    order = strength.masked_fill(~among, -torch.inf).sort(dim=1, descending=True, stable=True).indices
    places = torch.arange(strength.shape[1], device=strength.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places) < count
