"""Meaning of a bit in packed weights, and conversion between symbols and planes of bits.

* A bit 1 is the symbol +1, a bit 0 is −1. The sign of 0, and of −0, is +1.
* A *plane* holds one bit per connection of each filter, as bytes of shape (filter, ⌈D/8⌉). The connections are in
  torch's order: ``weight.reshape(filters, -1)``. Connection ``i`` is bit ``i % 8`` (0 the lowest) of byte ``i // 8``.
* The bits behind connection ``D − 1`` in the last byte of a row are 0.
* A pruned layer has two planes: *sign*, and *kept* with 1 where the connection remains. The sign bit of a pruned
  connection is 0, so equal symbols always give equal bytes.
* Padding is 0, as in training, while the input inside the image is ±1. A bit cannot be 0, so an engine that multiplies
  bits must skip the padding or subtract its contribution.
"""

import math

import numpy as np
from numpy.typing import NDArray

Plane = NDArray[np.uint8]
Symbols = NDArray[np.int8]
Counts = NDArray[np.int64]

#: Order of bits in a byte, as numpy names it.
BIT_ORDER = "little"
#: Symbols packed at a time, so that a large layer takes little memory beside its planes.
_SYMBOLS_AT_A_TIME = 1 << 24
#: Number of bits set in each byte.
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)


def plane_width(connections: int) -> int:
    """Return the number of bytes of one filter."""
    return (connections + 7) // 8


def pack_bits(ones: NDArray[np.bool_]) -> Plane:
    """Pack bools of shape (filter, connection) into a plane.

    >>> pack_bits(np.array([[True, False, True]]))
    array([[5]], dtype=uint8)
    """
    return np.packbits(ones, axis=1, bitorder="little")


def unpack_bits(plane: Plane, connections: int) -> NDArray[np.bool_]:
    """Return the bools of a plane, shape (filter, connection): the inverse of :func:`pack_bits`."""
    return np.unpackbits(plane, axis=1, count=connections, bitorder="little").view(np.bool_)


def pack_symbols(symbols: NDArray[np.generic]) -> tuple[Plane, Plane | None]:
    """Return the sign plane of symbols −1, 0 and +1, filter first, and the kept plane, None where no symbol is 0.

    >>> pack_symbols(np.array([[1, -1, 1, 0]]))
    (array([[5]], dtype=uint8), array([[7]], dtype=uint8))
    """
    rows = symbols.reshape(symbols.shape[0], math.prod(symbols.shape[1:]))
    shape = len(rows), plane_width(rows.shape[1])
    sign, kept, pruned = np.empty(shape, np.uint8), np.empty(shape, np.uint8), False
    step = max(1, _SYMBOLS_AT_A_TIME // max(1, rows.shape[1]))
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        positive, nonzero = block == 1, block != 0
        if not (positive | (block == -1) | ~nonzero).all():
            value = block[nonzero & ~positive & (block != -1)][0]
            raise ValueError(
                f"a symbol is {value}: it must be -1, +1, or 0 for a pruned connection; leave out the scale"
            )
        sign[start : start + step], kept[start : start + step] = pack_bits(positive), pack_bits(nonzero)
        pruned = pruned or not nonzero.all()
    return sign, kept if pruned else None


def unpack_symbols(sign: Plane, kept: Plane | None, connections: int) -> Symbols:
    """Return the symbols of one or two planes, shape (filter, connection): the inverse of :func:`pack_symbols`.

    >>> unpack_symbols(np.array([[5]], np.uint8), np.array([[7]], np.uint8), 4)
    array([[ 1, -1,  1,  0]], dtype=int8)
    """
    symbols = np.where(unpack_bits(sign, connections), np.int8(1), np.int8(-1))
    return symbols if kept is None else symbols * unpack_bits(kept, connections)


def count_symbols(sign: Plane, kept: Plane | None, connections: int) -> tuple[Counts, Counts, Counts]:
    """Return how many symbols of each filter are −1, 0 and +1, without unpacking them.

    >>> [counts.tolist() for counts in count_symbols(np.array([[5]], np.uint8), None, 5)]
    [[3], [0], [2]]
    """
    positive = _ONES[sign].sum(axis=1, dtype=np.int64)
    total = np.full_like(positive, connections) if kept is None else _ONES[kept].sum(axis=1, dtype=np.int64)
    return total - positive, connections - total, positive


def plane_fault(sign: Plane, kept: Plane | None, connections: int) -> str | None:
    """Describe how the planes of a layer break the rules above; None where they do not."""
    spare = 8 * plane_width(connections) - connections
    unused = np.uint8(256 - (256 >> spare))  # the highest `spare` bits
    for plane in (sign,) if kept is None else (sign, kept):
        if spare and (plane[:, -1] & unused).any():
            return "has a bit set behind its last connection"
    if kept is not None and (sign & ~kept).any():
        return "has a sign bit set on a pruned connection"
    return None


def positive_count(connections: int, p_pos: float) -> int:
    """Return the exact number of +1 among ``connections`` weights for the share ``p_pos``: ``floor(p_pos · D + ½)``.

    >>> positive_count(27, 0.5), positive_count(10, 0.25)
    (14, 3)
    """
    # 1e-9 absorbs float error: 0.15 · 10 is 1.4999999999999998 in binary, and should round as 1.5.
    return min(connections, math.floor(p_pos * connections + 0.5 + 1e-9))
