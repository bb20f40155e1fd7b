"""Graph of packed operations: what tracing makes of a model before it becomes a network."""

import re
from dataclasses import dataclass, field, replace
from typing import TypedDict

import numpy as np

from equalbits.deploy.traced_values import Value
from equalbits.runtime import OPS, Array, Network, Port, Settings, Shape, make_operation

Arrays = dict[str, Array]

#: Characters that a name in a packed file cannot hold, and that of a torch module can.
_NOT_IN_NAMES = re.compile(r"[\s=:]")


class PackError(ValueError):
    """A model that cannot be packed, or would answer differently once packed. The message names the layer."""


class Header(TypedDict, total=False):
    """Fields of a network besides its operations."""

    classes: tuple[str, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    resize: int | None
    fit: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


@dataclass
class Step:
    """An operation with its arrays. ``node`` names the node of the traced model whose value it computes, if any."""

    kind: str
    inputs: tuple[int, ...]
    arrays: Arrays
    settings: Settings
    layer: str
    shape: Shape
    node: str | None = None


@dataclass
class Graph:
    """Steps in the order they run; step ``i``, counted from 0, makes value ``i + 1``.

    ``input_of`` maps values to the numbers of the integer inputs that they are, ``below`` those to the bounds of ids.
    """

    input_shape: Shape
    steps: list[Step] = field(default_factory=list)
    input_of: dict[int, int] = field(default_factory=dict)
    below: dict[int, int] = field(default_factory=dict)

    def value(self, number: int) -> Value:
        """Return a value by its number."""
        return Value(number, self.steps[number - 1].shape if number else self.input_shape)

    def is_moved_sign(self, number: int) -> bool:
        """Return whether a value is a sign, or only moved since one."""
        while number and OPS[(step := self.steps[number - 1]).kind].moves and step.kind not in ("pad", "concat"):
            number = step.inputs[0]
        return number > 0 and self.steps[number - 1].kind == "sign"


def drop_unused(graph: Graph, output: Value) -> Graph:
    """Return the steps that ``output`` depends on, renumbered; the output is then the last."""
    needed = {output.number}
    for number in range(output.number, 0, -1):
        if number in needed:
            needed.update(graph.steps[number - 1].inputs)
    numbers = {old: new for new, old in enumerate(sorted(needed | {0}))}
    steps = [graph.steps[old - 1] for old in sorted(needed - {0})]
    renumbered = [replace(step, inputs=tuple(numbers[value] for value in step.inputs)) for step in steps]
    return Graph(graph.input_shape, renumbered, below=graph.below)


def same_computation(first: Graph, second: Graph) -> bool:
    """Return whether two graphs have the same operations, with equal settings and arrays."""
    return len(first.steps) == len(second.steps) and all(
        (step.kind, step.inputs, step.settings) == (other.kind, other.inputs, other.settings)
        and step.arrays.keys() == other.arrays.keys()
        and all(np.array_equal(array, other.arrays[part]) for part, array in step.arrays.items())
        for step, other in zip(first.steps, second.steps, strict=True)
    )


def to_network(graph: Graph, header: Header | None = None) -> Network:
    """Return the graph as a network. Layers of one name with equal arrays share them."""
    tensors: Arrays = {}
    operations = []
    for step in graph.steps:
        layer = _NOT_IN_NAMES.sub("_", step.layer)
        names = {part: _store(tensors, layer, part, array) for part, array in step.arrays.items()}
        operations.append(make_operation(step.kind, step.inputs, names, step.settings))
    try:
        return Network(graph.input_shape, tuple(operations), tensors, **(header or {}))
    except ValueError as error:
        raise PackError(str(error)) from None


def _store(tensors: Arrays, layer: str, part: str, array: Array) -> str:
    """Store an array under the name of its layer, numbered where that holds another array; return the name."""
    name, count = f"{layer}.{part}", 1
    while name in tensors and not (tensors[name].dtype == array.dtype and np.array_equal(tensors[name], array)):
        count += 1
        name = f"{layer}~{count}.{part}"
    tensors[name] = array
    return name
