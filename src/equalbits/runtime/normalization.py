"""Normalize raw pixels by the mean and standard deviation that a packed file stores."""

import numpy as np

from equalbits.runtime.network import Network
from equalbits.runtime.op_specs import Array, Floats


def byte_table(network: Network) -> Floats:
    """Return the normalized value of every byte per channel, ``(byte / 255 − mean) / std``, shape (channel, 256)."""
    mean, std = (np.asarray(numbers, np.float32)[:, None] for numbers in (network.mean, network.std))
    table: Floats = (np.arange(256, dtype=np.float32) / np.float32(255) - mean) / std
    return table


def normalize(network: Network, images: Array) -> Floats:
    """Return uint8 images (image, channel, row, column) as the float32 values that the first operation reads."""
    values: Floats = byte_table(network)[np.arange(images.shape[1])[:, None, None], images]
    return values


def unnormalized_hint(network: Network, images: Array) -> str:
    """Return a line of advice for floats from 0 to 1, which look like pixels that nothing normalized, else nothing."""
    if network.mean is None or images.dtype == np.uint8 or not images.size:
        return ""
    if not 0 <= images.min() < images.max() <= 1:
        return ""
    return (
        "images are floats from 0 to 1, which are not normalized by the file's mean and std: give uint8, or "
        "(image - mean) / std"
    )
