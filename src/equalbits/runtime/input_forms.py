"""Form in which the native engine reads the input of a layer: bits of a sign, bytes of a rounding, or floats."""

import numpy as np
from numpy.typing import DTypeLike

from equalbits.runtime.network import Network
from equalbits.runtime.op_specs import EXACT, Array


def input_form(network: Network, place: int, byte_weights: tuple[DTypeLike, ...]) -> str:
    """Return how an operation reads its input: as ``bits`` of a sign, ``bytes``, or ``floats``.

    ``byte_weights`` are the dtypes of weights that are multiplied by bytes.
    """
    operation = network.operations[place]
    if operation.kind not in ("conv", "linear") or not operation.inputs[0]:
        return "floats"
    source, settings = network.operations[operation.inputs[0] - 1], operation.settings
    shape, weight = network.shapes[place + 1], network.arrays(operation)["weight"]
    if not many_filters(shape[0], settings.get("groups", 1)):
        return "floats"
    if source.kind == "sign":
        one_row = operation.kind == "conv" or len(shape) == 1
        return "bits" if weight.dtype == np.uint8 and one_row and settings.get("input_bits") != 8 else "floats"
    if source.kind != "quantize" or operation.kind != "conv" or weight.dtype not in byte_weights:
        return "floats"
    largest = max(-source.settings["min"], source.settings["max"])
    return "bytes" if exact_products(weight, largest, network.connections(operation)) else "floats"


def exact_products(weight: Array, largest: int, width: int = 0) -> bool:
    """Return whether float32 adds weights times whole numbers up to ``largest`` exactly, in every filter.

    Weights are int8, or bits of ``width`` connections.
    """
    if weight.dtype == np.int8:
        width = int(np.abs(weight.reshape(len(weight), -1).astype(np.int64)).sum(axis=1).max())
    return largest * width < EXACT


def many_filters(filters: int, groups: int) -> bool:
    """Return whether filters of one group are so many that integers are faster than floats."""
    return groups == 1 or filters // groups >= 16
