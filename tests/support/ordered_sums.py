"""The reference of exported C: numpy, with the sums of real layers in the order in which the C adds.

BLAS adds in an order of its own, which differs from processor to processor. The C adds by kernel row, kernel column and
channel, each product and each sum rounded to float32. All other operations round alike everywhere, or are exact.
"""

from dataclasses import replace

import numpy as np

from equalbits.runtime import Network, Operation
from equalbits.runtime.ops.windows import pad_image, sliding_windows

#: Largest relative error of one rounding to float32.
_ROUNDING = 2.0**-24


def run_in_order(network: Network, images: np.ndarray) -> np.ndarray:
    """Return the logits that exported C gives, to the last bit.

    Each layer is run in numpy too, on the same inputs. Two sums of n products in any two orders differ by at most
    2 · n · 2⁻²⁴ / (1 − n · 2⁻²⁴) times the sum of their magnitudes; a larger difference fails.
    """
    values = {0: network.normalize(images) if images.dtype == np.uint8 else images}
    for place, operation in enumerate(network.operations):
        if operation.kind in ("conv", "linear") and operation.settings.get("input_bits") != 8:
            values[place + 1] = _weighted(network, operation, values, network.shapes[place + 1])
        else:
            values[place + 1] = network.run_operation(operation, values)
    return values[len(network.operations)]


def _weighted(network: Network, operation: Operation, values: dict[int, np.ndarray], shape: tuple[int, ...]):
    plane_names = {part: name for part, name in operation.tensors.items() if part in ("weight", "kept")}
    plain = replace(operation, tensors=plane_names)
    products = _products(network, operation, values[operation.inputs[0]], shape)
    sums, magnitudes, count = 0.0, 0.0, 0
    for product in products:
        sums, magnitudes, count = np.float32(sums) + product, magnitudes + np.abs(product), count + 1
    bound = 2 * count * _ROUNDING / (1 - count * _ROUNDING) * magnitudes
    assert (np.abs(network.run_operation(plain, values) - sums) <= bound).all(), operation
    arrays, tail = network.arrays(operation), (1,) * (len(shape) - 1)
    if "scale" in arrays:
        sums = sums * arrays["scale"].astype(np.float32).reshape(-1, *tail)
    return sums + arrays["bias"].astype(np.float32).reshape(-1, *tail) if "bias" in arrays else sums


def _products(network: Network, operation: Operation, value: np.ndarray, shape: tuple[int, ...]):
    """Yield the products of each connection, for all filters and places at once."""
    weight = network.tensors[operation.tensors["weight"]]
    if weight.dtype == np.uint8:
        weight = network.symbols(network.operations.index(operation))
    weight, filters = weight.astype(np.float32), shape[0]
    if operation.kind == "linear":
        for channel in range(value.shape[1]):
            yield value[:, channel, None] * weight[:, channel]
        return
    settings, groups = operation.settings, operation.settings["groups"]
    windows = sliding_windows(pad_image(value, settings["padding"], 0.0), settings)
    part = value.shape[1] // groups
    weight = weight.reshape(filters, part, *settings["kernel"])
    first = np.arange(filters) // (filters // groups) * part
    for row, column in np.ndindex(*settings["kernel"]):
        for channel in range(part):
            yield windows[..., row, column][:, first + channel] * weight[:, channel, row, column, None, None]
