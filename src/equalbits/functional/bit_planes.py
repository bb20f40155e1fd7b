"""Binary weights as bit planes: symbols times scales, whose sum is the weight that a layer multiplies with.

A packed file stores the planes of a layer, and a summary predicts its size from them.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equalbits.functional.optimal_transport import as_filters

Rows = NDArray[np.floating]


@dataclass(frozen=True)
class Plane:
    """Symbols −1, 0 and +1 of shape (filter, connection), and their scale: one number, or one per filter."""

    symbols: NDArray[np.int8]
    scale: NDArray[np.float32]


def to_bit_planes(weight: Tensor, symbols: Tensor) -> tuple[Plane, ...] | None:
    """Decompose a weight, filter first, into planes of its symbols; None if it is not binary.

    Most methods scale the symbols of a filter by one number: one plane, exactly. AdaBin's ``a · symbol + b`` takes two
    planes, the second all +1.

    >>> import torch
    >>> symbols = torch.tensor([[1.0, -1.0], [1.0, 1.0]])
    >>> [plane.scale.tolist() for plane in to_bit_planes(0.5 * symbols, symbols)]
    [[0.5]]
    >>> [plane.scale.tolist() for plane in to_bit_planes(0.5 * symbols + 1, symbols)]
    [[0.5, 1.5], [1.0, 0.0]]
    """
    values, signs = _to_rows(weight), _to_rows(symbols)
    kept = signs != 0
    if not values[~kept].any():
        scale = _constant_value(values * signs, kept)  # solves values = scale · symbols
        if scale is not None:
            empty = np.isnan(scale)
            found = np.unique(scale[~empty])
            if len(found) > 1:
                found = np.where(empty, 0, scale)
            return (_plane(signs, found if len(found) else np.zeros(1)),)
    above, below = (_constant_value(values, signs == symbol) for symbol in (1, -1))
    if not kept.all() or above is None or below is None:
        return None
    above, below = above.astype(np.float64), below.astype(np.float64)  # solve values = a · symbols + b
    above, below = np.where(np.isnan(above), -below, above), np.where(np.isnan(below), -above, below)
    return _plane(signs, (above - below) / 2), _plane(np.ones_like(signs), (above + below) / 2)


def bases_to_bit_planes(symbols: Tensor, weights: Tensor, scale: Tensor) -> tuple[Plane, ...]:
    """Return one plane per base, for bases (filter, connection, base) with weights (filter, base)."""
    scales = (weights * scale).detach().double().cpu().numpy()
    signs = symbols.to(torch.int8).cpu().numpy()
    return tuple(Plane(signs[:, :, i], scales[:, i].astype(np.float32)) for i in range(signs.shape[2]))


def _plane(symbols: Rows, scale: Rows) -> Plane:
    return Plane(symbols.astype(np.int8), scale.astype(np.float32))


def _constant_value(values: Rows, where: NDArray[np.bool_]) -> Rows | None:
    """Return each row's only value at ``where``, NaN if there is none; None if a row has several."""
    high, low = np.where(where, values, -np.inf).max(axis=1), np.where(where, values, np.inf).min(axis=1)
    some = where.any(axis=1)
    return None if (high != low)[some].any() else np.where(some, high, np.nan)


def _to_rows(tensor: Tensor) -> Rows:
    """Convert to numpy: float64 as it is, all else to float32, which is exact for half precision."""
    rows = as_filters(tensor.detach().cpu().contiguous())
    array: Rows = (rows if rows.dtype == torch.float64 else rows.float()).numpy()
    return array
