"""Binary weights as planes: symbols times scales, which add up to what a layer multiplies with.

What a packed file stores of a layer, and what a summary foretells of it, are both these planes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equalbits.functional.optimal_transport import as_filters
from equalbits.functional.scaled import Bases

Rows = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Plane:
    """Symbols −1, 0 and +1 of shape (filter, connection), and what they are multiplied by: one number, or one each."""

    symbols: NDArray[np.int8]
    scale: NDArray[np.float32]


def planes_of(values: Tensor, symbols: Tensor) -> tuple[Plane, ...] | None:
    """The planes of what a layer multiplies with, filter first, held against its symbols; None where it is no bits.

    Most methods scale each filter's symbols by one number, which is exact. AdaBin's ``a · symbol + b`` is two planes,
    the second all +1.

    >>> import torch
    >>> symbols = torch.tensor([[1.0, -1.0], [1.0, 1.0]])
    >>> [plane.scale.tolist() for plane in planes_of(0.5 * symbols, symbols)]
    [[0.5]]
    >>> [plane.scale.tolist() for plane in planes_of(0.5 * symbols + 1, symbols)]
    [[0.5, 1.5], [1.0, 0.0]]
    """
    rows, signs = _rows(values), _rows(symbols)
    return _one_scale(rows, signs) or _two_values(rows, signs)


def planes_of_bases(bases: Bases, scale: Tensor) -> tuple[Plane, ...]:
    """A plane for each of ABC-Net's bases, with a number for each filter."""
    scales = (bases.weights * scale).detach().double().cpu().numpy()
    symbols = bases.symbols.to(torch.int8).cpu().numpy()
    return tuple(Plane(symbols[:, :, i], scales[:, i].astype(np.float32)) for i in range(symbols.shape[2]))


def _one_scale(values: Rows, symbols: Rows) -> tuple[Plane, ...] | None:
    """``values = scale · symbols``, filter by filter, to the last bit."""
    kept = symbols != 0
    if values[~kept].any():
        return None
    signed = values * symbols
    largest, smallest = (
        reduce(np.where(kept, signed, fill), axis=1) for reduce, fill in ((np.max, -np.inf), (np.min, np.inf))
    )
    filled = kept.any(axis=1)
    if (largest != smallest)[filled].any():
        return None
    return (Plane(symbols.astype(np.int8), _shortest(largest, filled)),)


def _shortest(scale: Rows, filled: NDArray[np.bool_]) -> NDArray[np.float32]:
    """One number where all filters that have a connection agree, else one for each; a filter without any has 0."""
    found = np.unique(scale[filled])
    if len(found) <= 1:
        return (found if len(found) else np.zeros(1)).astype(np.float32)
    return np.where(filled, scale, 0).astype(np.float32)


def _two_values(values: Rows, symbols: Rows) -> tuple[Plane, ...] | None:
    """``values = a · symbols + b``, filter by filter: a second plane of +1 carries ``b``."""
    if not symbols.all():
        return None
    above, below = (_constant(values, symbols == symbol) for symbol in (1, -1))
    if above is None or below is None:
        return None
    above, below = above.astype(np.float64), below.astype(np.float64)
    above, below = np.where(np.isnan(above), -below, above), np.where(np.isnan(below), -above, below)
    slope, centre = (above - below) / 2, (above + below) / 2
    planes = (symbols, slope), (np.ones_like(symbols), centre)
    return tuple(Plane(rows.astype(np.int8), scale.astype(np.float32)) for rows, scale in planes)


def _constant(values: Rows, where: NDArray[np.bool_]) -> Rows | None:
    """Each row's value at ``where``, NaN where there is none; None when a row has several."""
    high, low = np.where(where, values, -np.inf).max(axis=1), np.where(where, values, np.inf).min(axis=1)
    some = where.any(axis=1)
    return None if (high != low)[some].any() else np.where(some, high, np.nan)


def _rows(tensor: Tensor) -> Rows:
    """As they are, or in float32, which holds what is less precise: a large layer should not double here."""
    rows = as_filters(tensor.detach().cpu().contiguous())
    found: Rows = (rows if rows.dtype == torch.float64 else rows.float()).numpy()
    return found
