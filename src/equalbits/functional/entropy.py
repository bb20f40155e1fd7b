"""Counting bits: the share of +1, its entropy, and the flips between two moments.

Symbols are −1, 0 and +1 with the filter as first axis; 0 is a pruned connection and counts in no share.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from equalbits.functional.optimal_transport import as_filters, positive_count
from equalbits.functional.precision import at_least_float32


class Flips(NamedTuple):
    """How many symbols of each filter flipped, by direction."""

    to_positive: Tensor
    to_negative: Tensor


def positive_share(symbols: Tensor) -> Tensor:
    """The share of +1 among each filter's symbols that are not 0; NaN for a filter with none.

    >>> positive_share(torch.tensor([[1.0, -1.0, 1.0, 0.0], [-1.0, -1.0, -1.0, -1.0]]))
    tensor([0.6667, 0.0000])
    """
    rows = as_filters(symbols)
    return (rows > 0).sum(dim=1) / (rows != 0).sum(dim=1)


def binary_entropy(share: Tensor) -> Tensor:
    """Bits of entropy of a coin that shows +1 with this probability: ``−p log2 p − (1−p) log2 (1−p)``.

    >>> binary_entropy(torch.tensor([0.0, 0.25, 0.5, 1.0]))
    tensor([0.0000, 0.8113, 1.0000, 0.0000])
    """
    share = share.to(at_least_float32(share.dtype))
    nats: Tensor = torch.special.entr(share) + torch.special.entr(1 - share)
    return nats / math.log(2)


def filter_entropy(symbols: Tensor) -> Tensor:
    """The entropy of each filter's symbols, in bits. Take the mean over filters for a layer.

    Pooling a layer's weights before taking the entropy would hide filters that lean in opposite directions.
    """
    return binary_entropy(positive_share(symbols))


def attainable_entropy(connections: int, p_pos: float = 0.5) -> float:
    """The entropy of a filter that holds its prior exactly; below 1 bit for an odd filter even at one half.

    >>> round(attainable_entropy(27), 6), attainable_entropy(576)
    (0.99901, 1.0)
    """
    share = torch.tensor(positive_count(connections, p_pos) / connections, dtype=torch.float64, device="cpu")
    return float(binary_entropy(share))


def count_flips(before: Tensor, after: Tensor) -> Flips:
    """Flips of each filter between two sets of symbols; a pruned connection that comes or goes is no flip.

    >>> count_flips(torch.tensor([[1.0, -1.0, -1.0]]), torch.tensor([[-1.0, 1.0, 1.0]]))
    Flips(to_positive=tensor([2]), to_negative=tensor([1]))
    """
    old, new = as_filters(before), as_filters(after)
    return Flips(((old < 0) & (new > 0)).sum(dim=1), ((old > 0) & (new < 0)).sum(dim=1))
