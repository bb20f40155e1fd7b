"""Comparison of logits and of other values, up to rounding."""

import numpy as np
import torch
from numpy.typing import NDArray

from equalbits.runtime import Floats

#: Tolerance of logits, relative to the largest: float32 sums in another order.
TOLERANCE = 1e-4


def as_array(tensor: torch.Tensor) -> Floats:
    """Return a tensor as a contiguous float32 array."""
    return np.ascontiguousarray(tensor.detach().to("cpu", torch.float32).numpy())


def is_close(found: Floats, expected: Floats) -> bool:
    """Return whether all numbers lie within :data:`TOLERANCE` of the largest."""
    if found.shape != expected.shape:
        return False
    largest = float(np.abs(expected).max(initial=0.0))
    return bool(np.abs(found - expected).max(initial=0.0) <= TOLERANCE * largest + 1e-6)


def largest_change(found: Floats, expected: Floats) -> float:
    """Return the largest difference, relative to the largest number."""
    return float(np.abs(found - expected).max() / max(float(np.abs(expected).max()), 1e-30))


def same_answers(packed: Floats, logits: Floats) -> bool:
    """Return whether all logits are close and every image has the same class."""
    return packed.shape == logits.shape and not differing_images(packed, logits).any()


def differing_images(packed: Floats, logits: Floats) -> NDArray[np.bool_]:
    """Return which images have logits that are not close, or another class."""
    rows, theirs = packed.reshape(len(packed), -1), logits.reshape(len(logits), -1)
    close = np.abs(rows - theirs).max(axis=1, initial=0.0) <= TOLERANCE * np.abs(theirs).max(initial=0.0) + 1e-6
    far: NDArray[np.bool_] = ~close
    return far | other_class(packed, logits)


def other_class(packed: Floats, logits: Floats) -> NDArray[np.bool_]:
    """Return which images have another class; of logits that are equal up to rounding, either is right.

    >>> other_class(np.array([[1.0, 2.0], [1.0, 2.0]]), np.array([[3.0, 3.0], [3.0, 2.0]]))
    array([False,  True])
    """
    rows, theirs = packed.reshape(len(packed), -1), logits.reshape(len(logits), -1)
    gap = theirs.max(axis=1) - theirs[np.arange(len(rows)), rows.argmax(axis=1)]
    other: NDArray[np.bool_] = gap > 2 * TOLERANCE * np.abs(theirs).max()
    return other
