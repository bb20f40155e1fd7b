"""Graph of packed operations: what tracing makes of a model before it becomes a network."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

import numpy as np
import torch

from equalbits.runtime import Network, Operation
from equalbits.runtime.op_specs import Array, Floats, Settings, Shape
from equalbits.runtime.ops import OPS

Arrays = dict[str, Array]

#: Characters that a name in a packed file cannot hold, and that of a torch module can.
_NOT_IN_NAMES = re.compile(r"[\s=:]")
#: Operations that do the same to (channel, feature) and to (channel, 1, feature).
_PER_CHANNEL = ("affine", "prelu", "relu", "clamp", "sign", "add", "concat")


class PackError(ValueError):
    """A model that cannot be packed, or would answer differently once packed. The message names the layer."""


class Header(TypedDict, total=False):
    """Fields of a network besides its operations."""

    classes: tuple[str, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    resize: int | None


@dataclass(frozen=True)
class Value:
    """A value between steps: its number in the file (0 is the image), and its shape without the batch axis."""

    number: int
    shape: Shape


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
    """Steps in the order they run; :meth:`add` returns the value that a step makes."""

    input_shape: Shape
    steps: list[Step] = field(default_factory=list)

    @property
    def image(self) -> Value:
        """The value every network starts from."""
        return Value(0, self.input_shape)

    def add(
        self, kind: str, *inputs: Value, layer: str, arrays: Mapping[str, Array] | None = None, **settings: Any
    ) -> Value:
        """Add a step; raise :class:`PackError` with the layer where the operation does not accept its inputs.

        An elementwise step on (channel, feature) that is a reshape of (channel, 1, feature) is added before the
        reshape, where the native engine can fuse it with convolutions.
        """
        if images := self._as_row_images(kind, inputs):
            made = self.add(kind, *images, layer=layer, arrays=arrays, **settings)
            return self.reshape(made, (made.shape[0], made.shape[2]), layer=layer)
        stored = dict(arrays or {})
        try:
            numbers = tuple(value.number for value in inputs)
            operation = Operation.of(kind, numbers, dict.fromkeys(stored, ""), settings)
            shape = OPS[kind].shape(tuple(value.shape for value in inputs), operation.settings, stored)
        except ValueError as error:
            raise PackError(f"layer {layer!r} cannot be packed: its {kind} {error}") from None
        self.steps.append(Step(kind, numbers, stored, operation.settings, layer, shape))
        return Value(len(self.steps), shape)

    def maker(self, value: Value) -> Step | None:
        """Return the step that makes a value; None for the image."""
        return self.steps[value.number - 1] if value.number else None

    def source(self, step: Step) -> Value:
        """Return the first value that a step reads."""
        number = step.inputs[0]
        return Value(number, self.steps[number - 1].shape if number else self.input_shape)

    def reshape(self, value: Value, shape: Iterable[int], *, layer: str) -> Value:
        """Return the value in another shape; adds no step where it has that shape."""
        shape = tuple(shape)
        if shape == value.shape:
            return value
        if shape == (math.prod(value.shape),):
            return self.add("flatten", value, layer=layer)
        return self.add("reshape", value, layer=layer, shape=shape)

    def affine(self, value: Value, gain: Array, shift: Array, *, layer: str) -> Value:
        """Return ``value · gain + shift``, both broadcast; constants that vary within a channel act on a flat value."""
        rank = len(value.shape)
        per_channel = all(
            array.ndim == 0 or all(size == 1 for size in array.shape[max(0, array.ndim - rank + 1) :])
            for array in (gain, shift)
        )
        target = (value.shape[0], *(1,) * (rank - 1)) if per_channel else value.shape
        try:
            rows = np.stack([np.broadcast_to(array, target).reshape(-1) for array in (gain, shift)])
        except ValueError:
            raise PackError(
                f"layer {layer!r} combines {value.shape} with constants of shape {gain.shape} and {shift.shape}: they "
                f"cannot be broadcast"
            ) from None
        flat = value if per_channel else self.reshape(value, (math.prod(value.shape),), layer=layer)
        with np.errstate(over="ignore"):  # the network refuses numbers beyond float32
            arrays = {"gain_shift": rows.astype(np.float32)}
        made = self.add("affine", flat, layer=layer, arrays=arrays)
        return self.reshape(made, value.shape, layer=layer)

    def _as_row_images(self, kind: str, inputs: tuple[Value, ...]) -> list[Value]:
        images = []
        for value in inputs:
            step = self.maker(value)
            if kind not in _PER_CHANNEL or len(value.shape) != 2 or step is None or step.kind != "reshape":
                return []
            images.append(self.source(step))
            if images[-1].shape != (value.shape[0], 1, value.shape[1]):
                return []
        return images


def drop_unused(graph: Graph, output: Value) -> Graph:
    """Return the steps that ``output`` depends on, renumbered; the output is then the last."""
    needed, wanted = set[int](), [output.number]
    while wanted:
        number = wanted.pop()
        if number and number not in needed:
            needed.add(number)
            wanted.extend(graph.steps[number - 1].inputs)
    numbers = {0: 0} | {old: new for new, old in enumerate(sorted(needed), start=1)}
    steps = [graph.steps[old - 1] for old in sorted(needed)]
    return Graph(
        graph.input_shape, [replace(step, inputs=tuple(numbers[value] for value in step.inputs)) for step in steps]
    )


def same_computation(first: Graph, second: Graph) -> bool:
    """Return whether two graphs have the same operations, with equal settings and arrays."""
    steps = [
        [(step.kind, step.inputs, step.settings, sorted(step.arrays)) for step in graph.steps]
        for graph in (first, second)
    ]
    return steps[0] == steps[1] and all(
        np.array_equal(array, other.arrays[part])
        for step, other in zip(first.steps, second.steps, strict=True)
        for part, array in step.arrays.items()
    )


def to_network(graph: Graph, header: Header | None = None) -> Network:
    """Return the graph as a network. Layers of one name with equal arrays share them."""
    tensors: Arrays = {}
    operations = []
    for step in graph.steps:
        layer = _NOT_IN_NAMES.sub("_", step.layer)
        names = {part: _store(tensors, f"{layer}.{part}", array) for part, array in step.arrays.items()}
        operations.append(Operation.of(step.kind, step.inputs, names, step.settings))
    try:
        return Network(graph.input_shape, tuple(operations), tensors, **(header or {}))
    except ValueError as error:
        raise PackError(str(error)) from None


def _store(tensors: Arrays, name: str, array: Array) -> str:
    free, count = name, 1
    while free in tensors and not (tensors[free].dtype == array.dtype and np.array_equal(tensors[free], array)):
        count += 1
        stem, _, part = name.rpartition(".")
        free = f"{stem}~{count}.{part}"
    tensors[free] = array
    return free


def as_array(tensor: torch.Tensor) -> Floats:
    """Return a tensor as a contiguous float32 array."""
    return np.ascontiguousarray(tensor.detach().to("cpu", torch.float32).numpy())
