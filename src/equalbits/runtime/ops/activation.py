"""Activations that are not piecewise linear, and other functions of single numbers."""

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from equalbits.runtime import op_specs
from equalbits.runtime.export_graph import ExportGraph, Node
from equalbits.runtime.lower import Lowering
from equalbits.runtime.op_specs import ElementwiseOp, Floats, Operation, Setting, Settings, Shape, Tensors
from equalbits.runtime.ops import functions


class _Function(ElementwiseOp):
    """A function of each number; ``same`` says that ATen has it without settings."""

    temporaries = 13

    def __init__(self, kind: str, function: Callable[[Floats], Floats], *, same: bool = True) -> None:
        self.kind, self.function, self.onnx = kind, function, kind.capitalize()
        self.aten = {f"{kind}.default": ()} if same else {}  # type: ignore[misc]

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        return self.function(values[0])

    def lower(self, lowering: Lowering, place: int, operation: Operation) -> None:
        source = lowering.as_real(operation.inputs[0])
        lowering.plan.step(self.kind.upper(), IN=source, OUT=lowering.write_real(place + 1))


class _SiLU(_Function):
    """The value times its sigmoid."""

    def export(self, graph: ExportGraph, operation: Operation, shape: Shape) -> Node:
        (value,) = graph.inputs(operation)
        return graph.node("Mul", value, graph.node("Sigmoid", value))


class _GELU(_Function):
    """The value times the normal distribution up to it, exactly or approximated by tanh."""

    def export(self, graph: ExportGraph, operation: Operation, shape: Shape) -> Node:
        """Emit the definition: opset 18 has no Gelu."""
        (value,) = graph.inputs(operation)
        above = graph.node("Add", graph.node("Erf", graph.node("Mul", value, 0.5**0.5)), 1.0)
        return graph.node("Mul", graph.node("Mul", value, above), 0.5)


class _GELUTanh(_Function):
    """GELU approximated by tanh."""

    def export(self, graph: ExportGraph, operation: Operation, shape: Shape) -> Node:
        (value,) = graph.inputs(operation)
        cube = graph.node("Mul", graph.node("Mul", graph.node("Mul", value, value), value), 0.044715)
        inner = graph.node("Mul", graph.node("Add", value, cube), 1.5957691216)
        return graph.node("Mul", value, graph.node("Sigmoid", inner))


class _ELU(_Function):
    """The value above 0, else ``alpha · (e^value − 1)``."""

    settings: ClassVar = {"alpha": Setting(op_specs.number, 1.0)}

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        return functions.elu(values[0], settings["alpha"])

    def lower(self, lowering: Lowering, place: int, operation: Operation) -> None:
        source, alpha = lowering.as_real(operation.inputs[0]), np.array([operation.settings["alpha"]], np.float32)
        lowering.plan.step("ELU", IN=source, OUT=lowering.write_real(place + 1), WEIGHT=lowering.plan.tensor(alpha))

    def export(self, graph: ExportGraph, operation: Operation, shape: Shape) -> Node:
        return graph.node("Elu", *graph.inputs(operation), alpha=operation.settings["alpha"])


OPS = (
    _Function("sigmoid", functions.sigmoid),
    _Function("tanh", functions.tanh),
    _SiLU("silu", functions.silu),
    _GELU("gelu", functions.gelu, same=False),
    _GELUTanh("gelu_tanh", functions.gelu_tanh, same=False),
    _Function("mish", functions.mish),
    _ELU("elu", functions.exp, same=False),
    _Function("softplus", functions.softplus, same=False),
    _Function("exp", functions.exp),
    _Function("sqrt", np.sqrt),
    _Function("reciprocal", np.reciprocal),
)

#: Kinds of the functions of single numbers.
FUNCTIONS = tuple(spec.kind for spec in OPS)
