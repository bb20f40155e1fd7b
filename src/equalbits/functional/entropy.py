"""Share of +1, entropy, and flips between two sets of symbols.

Symbols are −1, 0 and +1 with the filter as first axis; 0 is a pruned connection and is not counted.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from equalbits.functional.optimal_transport import as_filters, positive_count
from equalbits.functional.precision import at_least_float32


class Flips(NamedTuple):
    """Number of flipped symbols per filter, by direction."""

    to_positive: Tensor
    to_negative: Tensor


def binary_entropy(share: Tensor) -> Tensor:
    """Return the entropy in bits of a share of +1: ``−p log2 p − (1−p) log2 (1−p)``.

    >>> binary_entropy(torch.tensor([0.0, 0.25, 0.5, 1.0]))
    tensor([0.0000, 0.8113, 1.0000, 0.0000])
    """
    share = share.to(at_least_float32(share.dtype))
    nats: Tensor = torch.special.entr(share) + torch.special.entr(1 - share)
    return nats / math.log(2)


def filter_entropy(symbols: Tensor) -> Tensor:
    """Return the entropy of each filter's symbols, in bits. The entropy of a layer is the mean over its filters.

    Pooling the weights of a layer first would hide filters that are biased in opposite directions. A filter without
    nonzero symbols has NaN.
    """
    rows = as_filters(symbols)
    return binary_entropy((rows > 0).sum(dim=1) / (rows != 0).sum(dim=1))


def attainable_entropy(connections: int, p_pos: float = 0.5) -> float:
    """Return the entropy of a filter with exactly the share ``p_pos``; below 1 bit for an odd filter at one half.

    >>> round(attainable_entropy(27), 6), attainable_entropy(576)
    (0.99901, 1.0)
    """
    share = torch.tensor(positive_count(connections, p_pos) / connections, dtype=torch.float64, device="cpu")
    return float(binary_entropy(share))


def count_flips(before: Tensor, after: Tensor) -> Flips:
    """Count the flips of each filter between two sets of symbols; changes from or to 0 are not flips.

    >>> count_flips(torch.tensor([[1.0, -1.0, -1.0]]), torch.tensor([[-1.0, 1.0, 1.0]]))
    Flips(to_positive=tensor([2]), to_negative=tensor([1]))
    """
    old, new = as_filters(before), as_filters(after)
    return Flips(((old < 0) & (new > 0)).sum(dim=1), ((old > 0) & (new < 0)).sum(dim=1))
