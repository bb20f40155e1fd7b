"""How many numbers a packed file takes for what quantizes a layer's input.

A file has gains and shifts, ``gain · x + shift`` with one of each for every channel, and signs. What else a quantizer
does is made of them, and the same gains and shifts of one layer are stored once.
"""

from itertools import pairwise

import numpy as np
from torch import nn

from equalbits.functional import HALFWAVE_LEVELS
from equalbits.nn import HWGQ, AdaBinActivation, BinaryLayer, RSign


def packed_numbers(quantizer: nn.Module, layer: BinaryLayer, held: int) -> int:
    """The numbers a file holds for ``quantizer`` before ``layer``; ``held`` are those the module holds itself.

    A plain sign takes none. ReActNet's shift comes with a gain of 1. AdaBin's two values and the half wave's stair are
    several gains and shifts. Any other quantizer is taken to be stored as it is held.
    """
    if isinstance(quantizer, RSign):
        return 2 * held
    if isinstance(quantizer, AdaBinActivation):
        return 2 * _channels(layer) * len(_two_values(float(quantizer.distance), float(quantizer.centre)))
    if isinstance(quantizer, HWGQ):
        return 2 * _channels(layer) * len(_stair((0.0, *HALFWAVE_LEVELS[quantizer.bits])))
    return held


def _two_values(distance: float, centre: float) -> set[tuple[np.float32, np.float32]]:
    """The gains and shifts of ``a · sign((x − b)/a) + b``: ``x − b``, ``x / a``, ``a · s``, ``s + b``."""
    return _distinct((1, -centre), (1 / np.float64(distance), 0), (distance, 0), (1, centre))


def _stair(levels: tuple[float, ...]) -> set[tuple[np.float32, np.float32]]:
    """The gains and shifts of a stair: one to take each edge to 0, and one for the height of each step."""
    halves = [(above - below) / 2 for below, above in pairwise(levels)]
    edges = [0.0, *((below + above) / 2 for below, above in pairwise(levels[1:]))]
    bases = [levels[0] + sum(halves), *[0.0] * (len(halves) - 1)]
    return _distinct(
        *((-1, edge) for edge in edges), *((-half, base) for half, base in zip(halves, bases, strict=True))
    )


def _distinct(*pairs: tuple[float, float]) -> set[tuple[np.float32, np.float32]]:
    return {(np.float32(gain), np.float32(shift)) for gain, shift in pairs}


def _channels(layer: BinaryLayer) -> int:
    """The channels, or features, of a layer's input."""
    found = getattr(layer, "in_channels", None)
    return int(layer.in_features if found is None else found)  # type: ignore[arg-type]
