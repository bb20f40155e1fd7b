"""Products of two values: number by number, and of matrices."""

import math
from collections.abc import Sequence

from equalbits.runtime.lower import Lowering
from equalbits.runtime.op_specs import Floats, Operation, OpSpec, Settings, Shape, Shapes, Tensors


class _Mul(OpSpec):
    """The product of two values, number by number; an axis of size 1 is repeated."""

    kind, onnx = "mul", "Mul"
    inputs = (2, 2)

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        first, second = inputs
        if len(first) != len(second) or any(a != b and 1 not in (a, b) for a, b in zip(first, second, strict=True)):
            raise ValueError(
                f"multiplies values of shape {first} and {second}: each axis must be the same, or 1 in one"
            )
        return tuple(map(max, first, second))

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        return values[0] * values[1]

    def lower(self, lowering: Lowering, place: int, operation: Operation) -> None:
        """Emit a step over the output as it lies in memory; axes that are contiguous in all values are merged."""
        shape, sources = lowering.shapes[place + 1], [lowering.as_real(value) for value in operation.inputs]
        target, apart = lowering.write_real(place + 1), lowering.strides(place + 1)
        rows: list[list[int]] = []  # of each axis: its size, and its strides in both inputs
        for axis in sorted(range(len(shape)), key=lambda axis: -apart[axis]):
            strides = [
                lowering.strides(value)[axis] if lowering.shapes[value][axis] > 1 else 0 for value in operation.inputs
            ]
            if shape[axis] == 1:
                continue
            if rows and all(far == near * shape[axis] for far, near in zip(rows[-1][1:], strides, strict=True)):
                rows[-1] = [rows[-1][0] * shape[axis], *strides]
            else:
                rows.append([shape[axis], *strides])
        sizes, *both = zip(*rows or [[1, 0, 0]], strict=True)
        lowering.plan.strided("MUL", sizes, tuple(both), IN=sources[0], IN2=sources[1], OUT=target)


class _MatMul(OpSpec):
    """Products of matrices, which the last two axes hold; the other axes of both values are the same."""

    kind, onnx = "matmul", "MatMul"
    inputs = (2, 2)

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        first, second = inputs
        if len(first) < 2 or first[:-2] != second[:-2] or len(second) != len(first) or first[-1] != second[-2]:
            raise ValueError(f"multiplies matrices of shape {first} and {second}: give (…, M, K) and (…, K, N)")
        return (*first[:-1], second[-1])

    def work(self, shape: Shape, inputs: Shapes, settings: Settings, tensors: Tensors) -> int:
        return math.prod(shape) * inputs[0][-1]

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        return values[0] @ values[1]

    def lower(self, lowering: Lowering, place: int, operation: Operation) -> None:
        shapes = [lowering.shapes[value] for value in operation.inputs]
        first, second = (lowering.as_flat(value) for value in operation.inputs)
        sizes = (math.prod(shapes[0][:-2]), *shapes[0][-2:], shapes[1][-1])
        fields = {f"SIZE{i}": size for i, size in enumerate(sizes)}
        lowering.write_flat(place + 1, "MATMUL", IN=first, IN2=second, **fields)


OPS = (_Mul(), _MatMul())
