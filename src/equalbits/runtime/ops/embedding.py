"""Rows of a table by their numbers: the embedding of tokens."""

import math
from collections.abc import Sequence

import numpy as np

from equalbits.runtime.export_graph import ExportGraph, Node
from equalbits.runtime.lower import Lowering
from equalbits.runtime.op_specs import EXACT, Floats, Operation, OpSpec, Settings, Shape, Shapes, Tensors

#: Code of the dtype int64 in ONNX.
ONNX_INT64 = 7


class _Embedding(OpSpec):
    """The row of ``table`` that each number names, along a new last axis; NaN for a number that names none."""

    kind = "embedding"
    temporaries = 4
    tensors = ("table",)

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        table = tensors["table"]
        if table.dtype.kind != "f" or table.ndim != 2 or not table.size > 0 or len(table) > EXACT:
            raise ValueError(
                f"has a table of {table.dtype} and shape {table.shape}: it must be float, at most {EXACT} rows"
            )
        return (*inputs[0], table.shape[1])

    def work(self, shape: Shape, inputs: Shapes, settings: Settings, tensors: Tensors) -> int:
        return math.prod(shape)

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        ids, table = values[0], tensors["table"].astype(np.float32, copy=False)
        valid = (ids >= 0) & (ids < len(table)) & (ids == np.floor(ids))
        rows = table[np.where(valid, ids, 0).astype(np.int64)]
        return np.where(valid[..., None], rows, np.float32(np.nan))

    def lower(self, lowering: Lowering, place: int, operation: Operation) -> None:
        table = lowering.network.arrays(operation)["table"]
        ids, weight = lowering.as_flat(operation.inputs[0]), lowering.plan.weight(table, np.float32)
        count = math.prod(lowering.shapes[operation.inputs[0]])
        sizes = {"SIZE0": count, "SIZE1": table.shape[1], "SIZE2": len(table)}
        lowering.write_flat(place + 1, "EMBED", IN=ids, SCALE=weight, **sizes)

    def export(self, graph: ExportGraph, operation: Operation, shape: Shape) -> Node:
        ids = graph.node("Cast", *graph.inputs(operation), to=ONNX_INT64)
        return graph.node("Gather", graph.floats(operation, "table", (-1, shape[-1])), ids, axis=0)


OPS = (_Embedding(),)
