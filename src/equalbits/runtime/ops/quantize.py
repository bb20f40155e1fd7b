"""Rounding to whole numbers of 8 bits or fewer, which convolutions add up exactly.

A convolution of ±1 that reads these numbers has sums which float32 adds exactly in every order. The native engine keeps
the numbers as bytes and multiplies them as integers.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from equalbits.runtime import op_specs
from equalbits.runtime.export_graph import ExportGraph, Node
from equalbits.runtime.lower import Lowering
from equalbits.runtime.op_specs import ElementwiseOp, Floats, Operation, Setting, Settings, Shape, Shapes, Tensors


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

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        whole: Floats = values[0] * np.float32(settings["gain"])
        np.fmax(whole, np.float32(settings["min"]), out=whole)  # a NaN becomes the least
        np.minimum(whole, np.float32(settings["max"]), out=whole)
        np.rint(whole, out=whole)
        whole += np.float32(0)  # no -0
        return whole

    def lower(self, lowering: Lowering, place: int, operation: Operation) -> None:
        value, whole = operation.inputs[0], lowering.read_as_real(place)
        if value == 0 and not whole and lowering.readers[0] == [place]:
            lowering.plan.step("LOAD", IN=lowering.image, **lowering.write_bytes(place))
            return
        fields = {"IN": lowering.as_real(value)}
        if lowering.read_compactly(place) and place + 1 not in lowering.compact:
            fields |= lowering.write_bytes(place)
        if whole:
            fields |= {"OUT": lowering.write_real(place + 1), "ROUND_REAL": 1, "QUANT": lowering.rounding(place)}
        lowering.plan.step("CHAIN", **fields)

    def export(self, graph: ExportGraph, operation: Operation, shape: Shape) -> Node:
        gain, low, high = (float(operation.settings[name]) for name in self.settings)
        return graph.node("Round", graph.node("Clip", graph.node("Mul", *graph.inputs(operation), gain), low, high))


OPS = (_Quantize(),)
