"""Every operation in plain numpy: slow and sure. The native engine is held against these.

Values are float32 with the batch first. Each step rounds by itself and in the order written here, so an engine that
keeps the order gets the same bits; only the sums of real convolutions and real linear layers may be taken in any order.
Sums of ±1 are whole numbers below 2²⁴, which float32 adds exactly in every order.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from equalbits.runtime import bits

Reals = NDArray[np.float32]
Tensors = Mapping[str, NDArray[Any]]
Settings = Mapping[str, Any]

#: How many numbers of windows a convolution lines up at a time.
_MOST_AT_ONCE = 1 << 25


def weights(tensors: Tensors, connections: int) -> Reals:
    """A layer's weights without their scale, shape (filter, connection): stored reals, or the symbols of its bits."""
    weight = tensors["weight"]
    if weight.dtype == np.uint8:
        return bits.unpack_symbols(weight, tensors.get("kept"), connections).astype(np.float32)
    return weight.astype(np.float32).reshape(len(weight), connections)


def conv(value: Reals, *, tensors: Tensors, settings: Settings) -> Reals:
    """Convolution with zeros around the image; with ±1 on both sides every sum is exact."""
    windows = _windows(_bordered(value, settings["padding"], 0.0), settings)
    batch, channels, rows, columns, *kernel = windows.shape
    groups, part = settings["groups"], channels // settings["groups"]
    width = part * kernel[0] * kernel[1]
    matrix = weights(tensors, width).reshape(groups, -1, width)  # (group, filter, connection)
    result = np.empty((batch, groups, matrix.shape[1], rows, columns), np.float32)
    step = max(1, _MOST_AT_ONCE // (batch * channels * columns * kernel[0] * kernel[1]))
    for row in range(0, rows, step):
        some = windows[:, :, row : row + step].reshape(batch, groups, part, -1, columns, *kernel)
        count = some.shape[3]
        lined_up = some.transpose(0, 1, 3, 4, 2, 5, 6).reshape(batch, groups, count * columns, width)
        sums = (lined_up @ matrix.swapaxes(1, 2)).swapaxes(2, 3)
        result[:, :, :, row : row + step] = sums.reshape(batch, groups, -1, count, columns)
    return _scaled(result.reshape(batch, -1, rows, columns), tensors)


def linear(value: Reals, *, tensors: Tensors, settings: Settings) -> Reals:
    """Every feature to every output; with ``input_bits=8`` each row is rounded to whole numbers first."""
    if settings.get("input_bits", 32) == 8:
        return _scaled(_sums_of_bytes(value, weights(tensors, value.shape[1])), tensors)
    return _scaled(value @ weights(tensors, value.shape[1]).T, tensors)


def round_to_bytes(value: Reals) -> tuple[Reals, Reals]:
    """Each row as whole numbers from −127 to 127, its largest being one of these, and what 1 then stands for.

    A row with a number that is not finite becomes zeros, and 1 stands for NaN.

    >>> round_to_bytes(np.array([[0.5, -2.0, 0.0]], np.float32))[0]
    array([[  32., -127.,    0.]], dtype=float32)
    """
    largest = np.abs(value).max(axis=1, keepdims=True)
    finite = np.isfinite(largest)
    divisor = np.where(finite & (largest > 0), largest, np.float32(1))
    whole = np.rint(np.where(finite, value, np.float32(0)) / divisor * np.float32(127))
    return whole, np.where(finite, largest / np.float32(127), np.float32(np.nan))


def _sums_of_bytes(value: Reals, symbols: Reals) -> Reals:
    """Sums of ±q, exact and rounded once to float32, times what 1 stands for."""
    whole, step = round_to_bytes(value)
    exact = np.float32 if 127 * symbols.shape[1] < 1 << 24 else np.float64
    sums: Reals = (whole.astype(exact) @ symbols.T.astype(exact)).astype(np.float32)
    return sums * step


def affine(value: Reals, *, tensors: Tensors, settings: Settings) -> Reals:
    """``value · gain + shift`` per channel."""
    gain, shift = (_per_channel(row, value) for row in tensors["gain_shift"])
    return value * gain + shift


def prelu(value: Reals, *, tensors: Tensors, settings: Settings) -> Reals:
    """``value`` where it is at least 0, else ``value · slope``."""
    return np.where(value >= 0, value, value * _per_channel(tensors["slope"], value))


def relu(value: Reals, *, tensors: Tensors, settings: Settings) -> Reals:
    """The larger of ``value`` and 0."""
    return np.maximum(value, np.float32(0))


def clamp(value: Reals, *, tensors: Tensors, settings: Settings) -> Reals:
    """Not below ``min``, not above ``max``."""
    low, high = settings["min"], settings["max"]
    value = value if low is None else np.maximum(value, np.float32(low))
    return value if high is None else np.minimum(value, np.float32(high))


def sign(value: Reals, *, tensors: Tensors, settings: Settings) -> Reals:
    """+1 where the value is at least 0, else −1."""
    return np.where(value >= 0, np.float32(1), np.float32(-1))


def add(value: Reals, other: Reals, *, tensors: Tensors, settings: Settings) -> Reals:
    """The sum of two values."""
    return value + other


def concat(*values: Reals, tensors: Tensors, settings: Settings) -> Reals:
    """The channels of all values, one after the other."""
    return np.concatenate(values, axis=1)


def max_pool(value: Reals, *, tensors: Tensors, settings: Settings) -> Reals:
    """The largest of each window; what lies outside never wins."""
    result: Reals = _windows(_bordered(value, settings["padding"], -np.inf), settings).max(axis=(4, 5))
    return result


def avg_pool(value: Reals, *, tensors: Tensors, settings: Settings) -> Reals:
    """The sum of each window, row by row, divided by its size, or by how much of it lies inside."""
    (height, width), padding = settings["kernel"], settings["padding"]
    total = _sum_in_order(_windows(_bordered(value, padding, 0.0), settings))
    if settings["count_padding"]:
        return total / np.float32(height * width)
    inside = _bordered(np.ones((1, 1, *value.shape[2:]), np.float32), padding, 0.0)
    return total / _sum_in_order(_windows(inside, settings))


def adaptive_avg_pool(value: Reals, *, tensors: Tensors, settings: Settings) -> Reals:
    """The mean over a grid of windows that covers the image, as torch lays it."""
    rows, columns = settings["size"]
    result = np.empty((*value.shape[:2], rows, columns), np.float32)
    for row, (top, bottom) in enumerate(grid(value.shape[2], rows)):
        for column, (left, right) in enumerate(grid(value.shape[3], columns)):
            total = _sum_in_order(value[:, :, None, None, top:bottom, left:right])[:, :, 0, 0]
            result[:, :, row, column] = total / np.float32((bottom - top) * (right - left))
    return result


def grid(size: int, parts: int) -> list[tuple[int, int]]:
    """Where the windows of an adaptive pooling start and end along an axis.

    >>> grid(5, 2)
    [(0, 3), (2, 5)]
    """
    return [(i * size // parts, -(-(i + 1) * size // parts)) for i in range(parts)]


def flatten(value: Reals, *, tensors: Tensors, settings: Settings) -> Reals:
    """Channels, rows and columns in a row."""
    return value.reshape(len(value), -1)


def reshape(value: Reals, *, tensors: Tensors, settings: Settings) -> Reals:
    """The same numbers in another shape."""
    return value.reshape(len(value), *settings["shape"])


def permute(value: Reals, *, tensors: Tensors, settings: Settings) -> Reals:
    """The axes in another order."""
    return value.transpose(0, *(axis + 1 for axis in settings["axes"]))


def channel_shuffle(value: Reals, *, tensors: Tensors, settings: Settings) -> Reals:
    """Deal the channels of each group out to all groups, as ShuffleNet does."""
    batch, channels, *rest = value.shape
    grouped = value.reshape(batch, settings["groups"], channels // settings["groups"], *rest)
    return grouped.swapaxes(1, 2).reshape(value.shape)


def slice_(value: Reals, *, tensors: Tensors, settings: Settings) -> Reals:
    """Every ``step``-th entry from ``start`` up to ``stop``, along each axis."""
    ranges = zip(settings["start"], settings["stop"], settings["step"], strict=True)
    return value[(slice(None), *(slice(*entry) for entry in ranges))]


def pad(value: Reals, *, tensors: Tensors, settings: Settings) -> Reals:
    """More entries around, all of one value."""
    widths = ((0, 0), *zip(settings["before"], settings["after"], strict=True))
    return np.pad(value, widths, constant_values=np.float32(settings["value"]))


def _scaled(sums: Reals, tensors: Tensors) -> Reals:
    if "scale" in tensors:
        sums = sums * _per_channel(tensors["scale"], sums)
    return sums + _per_channel(tensors["bias"], sums) if "bias" in tensors else sums


def _per_channel(vector: NDArray[Any], value: Reals) -> Reals:
    return vector.astype(np.float32).reshape(-1, *[1] * (value.ndim - 2))


def _bordered(value: Reals, padding: tuple[int, int, int, int], fill: float) -> Reals:
    top, bottom, left, right = padding
    if padding == (0, 0, 0, 0):
        return value
    return np.pad(value, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=np.float32(fill))


def _windows(value: Reals, settings: Settings) -> Reals:
    """Every window of a bordered image, a view: (batch, channel, row, column, kernel row, kernel column)."""
    (height, width), (down, right) = settings["kernel"], settings["stride"]
    tall, wide = settings.get("dilation", (1, 1))
    reach = (tall * (height - 1) + 1, wide * (width - 1) + 1)
    return sliding_window_view(value, reach, axis=(2, 3))[:, :, ::down, ::right, ::tall, ::wide]


def _sum_in_order(windows: Reals) -> Reals:
    """Add up the last two axes entry by entry, row by row: the order is part of the definition."""
    total = np.zeros(windows.shape[:4], np.float32)
    for row in range(windows.shape[4]):
        for column in range(windows.shape[5]):
            total += windows[..., row, column]
    return total


#: The function of each kind of operation.
RUN: Mapping[str, Callable[..., Reals]] = MappingProxyType(
    {
        "conv": conv,
        "linear": linear,
        "affine": affine,
        "prelu": prelu,
        "relu": relu,
        "clamp": clamp,
        "sign": sign,
        "add": add,
        "concat": concat,
        "max_pool": max_pool,
        "avg_pool": avg_pool,
        "adaptive_avg_pool": adaptive_avg_pool,
        "flatten": flatten,
        "reshape": reshape,
        "permute": permute,
        "channel_shuffle": channel_shuffle,
        "slice": slice_,
        "pad": pad,
    }
)
