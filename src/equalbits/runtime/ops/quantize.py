"""Rounding to whole numbers of 8 bits or fewer, which convolutions add up exactly.

A convolution of ±1 that reads these numbers has sums which float32 adds exactly in every order. The native engine keeps
the numbers as bytes and multiplies them as integers.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from equalbits.runtime import op_specs
from equalbits.runtime.op_specs import Array, ElementwiseOp, Floats, Setting, Settings, Shape, Shapes, Tensors

if TYPE_CHECKING:
    from equalbits.runtime.export.graph import ExportGraph, Node
    from equalbits.runtime.lower import Lowering
    from equalbits.runtime.network import Operation

#: Sums below it are exact in float32.
_EXACT = 1 << 24
#: Groups with fewer filters than this run faster as floats.
_FEWEST_FILTERS = 16


class _Quantize(ElementwiseOp):
    """The number times ``gain``, rounded to the nearest whole number from ``min`` to ``max``."""

    kind = "quantize"
    settings: ClassVar = {
        "gain": Setting(op_specs.positive, required=True),
        "min": Setting(op_specs.level, 0),
        "max": Setting(op_specs.level, 255),
    }

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        low, high = settings["min"], settings["max"]
        if not (low <= 0 <= high and high - low <= 255):
            raise ValueError(f"has min={low} and max={high}: the range must hold 0 and at most 256 whole numbers")
        return inputs[0]

    def run(self, values: Sequence[Floats], tensors: Tensors, settings: Settings) -> Floats:
        whole: Floats = values[0] * np.float32(settings["gain"])
        np.fmax(whole, np.float32(settings["min"]), out=whole)  # a NaN becomes the least
        np.minimum(whole, np.float32(settings["max"]), out=whole)
        np.rint(whole, out=whole)
        whole += np.float32(0)  # no -0
        return whole

    def lower(self, lowering: "Lowering", place: int, operation: "Operation") -> None:
        value, whole = operation.inputs[0], read_as_whole_reals(lowering, place)
        if value == 0 and not whole and lowering.readers[0] == [place]:
            lowering.plan.step("LOAD", IN=lowering.image, **write_bytes(lowering, place))
            return
        fields = {"IN": lowering.as_real(value)}
        if read_as_bytes(lowering, place) and place + 1 not in lowering.bytes:
            fields |= write_bytes(lowering, place)
        if whole:
            fields |= {"OUT": lowering.write_real(place + 1), "ROUND_REAL": 1, "QUANT": _quant(lowering, place)}
        lowering.plan.step("CHAIN", **fields)

    def export(self, graph: "ExportGraph", operation: "Operation", shape: Shape) -> "Node":
        gain, low, high = (float(operation.settings[name]) for name in self.settings)
        return graph.node("Round", graph.node("Clip", graph.node("Mul", *graph.inputs(operation), gain), low, high))


def _quant(lowering: "Lowering", place: int) -> int:
    """Return a tensor of the plan with gain, least and largest number."""
    settings = lowering.network.operations[place].settings
    return lowering.plan.tensor(np.array([settings[name] for name in _Quantize.settings], np.float32))


def write_bytes(lowering: "Lowering", place: int) -> dict[str, int]:
    """Return the fields of a step that writes the numbers of a ``quantize`` as bytes."""
    lowering.bytes[place + 1] = lowering.new_bytes(place + 1)
    return {"OUT_BYTES": lowering.bytes[place + 1], "QUANT": _quant(lowering, place)}


def read_as_bytes(lowering: "Lowering", place: int) -> bool:
    """Return whether an operation is a ``quantize`` whose bytes are read."""
    if lowering.network.operations[place].kind != "quantize":
        return False
    return any(multiplies_bytes(lowering, reader) for reader in lowering.readers[place + 1])


def read_as_whole_reals(lowering: "Lowering", place: int) -> bool:
    """Return whether a ``quantize`` is read as floats, or by nothing."""
    readers = lowering.readers[place + 1]
    return not readers or not all(multiplies_bytes(lowering, reader) for reader in readers)


def multiplies_bytes(lowering: "Lowering", place: int) -> bool:
    """Return whether the native engine runs an operation in integers: its sums are then exact as floats, too."""
    network, operation = lowering.network, lowering.network.operations[place]
    value = operation.inputs[0]
    if operation.kind != "conv" or not value:
        return False
    source, groups = network.operations[value - 1], operation.settings["groups"]
    enough = groups == 1 or network.shapes[place + 1][0] // groups >= _FEWEST_FILTERS
    weight = network.tensors[operation.tensors["weight"]]
    if source.kind != "quantize" or not enough or weight.dtype not in lowering.byte_weights:
        return False
    largest = max(-source.settings["min"], source.settings["max"])
    if weight.dtype == np.int8:
        return exact_products(weight, largest)
    return bool(largest * network.shapes[value][0] // groups * math.prod(operation.settings["kernel"]) < _EXACT)


def exact_products(weight: Array, largest: int) -> bool:
    """Return whether float32 adds int8 weights times numbers up to ``largest`` exactly, in every filter."""
    sums = np.abs(weight.reshape(len(weight), -1).astype(np.int64)).sum(axis=1)
    return bool(largest * int(sums.max()) < _EXACT)


OPS = (_Quantize(),)
