"""What tracing makes of a model before it is written: steps in a row, each an operation of the packed file."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from equalbits.runtime import Network, Operation
from equalbits.runtime.op_specs import Shape
from equalbits.runtime.ops import OPS

Arrays = dict[str, NDArray[Any]]

#: What a name in a packed file cannot hold, and a torch module's can.
_UNNAMEABLE = re.compile(r"[\s=:]")


#: What does the same to (channel, feature) and to (channel, 1, feature).
_BY_CHANNEL = ("affine", "prelu", "relu", "clamp", "sign", "add", "concat")


class PackError(ValueError):
    """A model that cannot be packed, or that would answer differently once packed. The message names the layer."""


@dataclass(frozen=True)
class Value:
    """What flows between steps: its number as the file counts (0 is the image), and its shape without the batch."""

    number: int
    shape: Shape


@dataclass
class Step:
    """An operation, its arrays in place of their names. ``node`` is what it stands for in the traced model, if any."""

    kind: str
    inputs: tuple[int, ...]
    arrays: Arrays
    settings: Mapping[str, Any]
    layer: str
    shape: Shape
    node: str | None = None


@dataclass
class Steps:
    """Steps in the order they run; :meth:`add` gives the value each makes."""

    input_shape: Shape
    rows: list[Step] = field(default_factory=list)

    @property
    def image(self) -> Value:
        """The value every network starts from."""
        return Value(0, self.input_shape)

    def add(self, kind: str, *inputs: Value, layer: str, arrays: Arrays | None = None, **settings: Any) -> Value:
        """Add a step; refuses, naming the layer, what the operation cannot take.

        What works number by number on rows of features works on the images of one row that these are reshapes of: the
        convolutions before and behind it then take it in.
        """
        if images := self._images_of_rows(kind, inputs):
            made = self.add(kind, *images, layer=layer, arrays=arrays, **settings)
            return self.reshape(made, (made.shape[0], made.shape[2]), layer=layer)
        held = {part: array for part, array in (arrays or {}).items() if array is not None}
        try:
            numbers = tuple(value.number for value in inputs)
            operation = Operation.of(kind, numbers, dict.fromkeys(held, ""), settings)
            shape = OPS[kind].shape(tuple(value.shape for value in inputs), operation.settings, held)
        except ValueError as error:
            raise PackError(f"layer {layer!r} cannot be packed: its {kind} {error}") from None
        self.rows.append(Step(kind, numbers, held, operation.settings, layer, shape))
        return Value(len(self.rows), shape)

    def source(self, step: Step) -> Value:
        """The first value that a step reads."""
        number = step.inputs[0]
        return Value(number, self.rows[number - 1].shape if number else self.input_shape)

    def _images_of_rows(self, kind: str, inputs: tuple[Value, ...]) -> list[Value]:
        images = []
        for value in inputs:
            step = self.maker(value)
            if kind not in _BY_CHANNEL or len(value.shape) != 2 or step is None or step.kind != "reshape":
                return []
            images.append(self.source(step))
            if images[-1].shape != (value.shape[0], 1, value.shape[1]):
                return []
        return images

    def maker(self, value: Value) -> Step | None:
        """The step that made a value; None for the image."""
        return self.rows[value.number - 1] if value.number else None

    def reshape(self, value: Value, shape: Iterable[int], *, layer: str) -> Value:
        """The same numbers in another shape; nothing where it is the shape already."""
        shape = tuple(shape)
        if shape == value.shape:
            return value
        if shape == (math.prod(value.shape),):
            return self.add("flatten", value, layer=layer)
        return self.add("reshape", value, layer=layer, shape=shape)

    def affine(self, value: Value, gain: NDArray[Any], shift: NDArray[Any], *, layer: str) -> Value:
        """``value · gain + shift``. Both are broadcast to the value; numbers that differ within a channel go flat."""
        rank = len(value.shape)
        per_channel = all(
            array.ndim == 0 or all(size == 1 for size in array.shape[max(0, array.ndim - rank + 1) :])
            for array in (gain, shift)
        )
        target = (value.shape[0], *(1,) * (rank - 1)) if per_channel else value.shape
        try:
            rows = np.stack([np.broadcast_to(array, target).reshape(-1) for array in (gain, shift)])
        except ValueError:
            shapes = f"{gain.shape} and {shift.shape}"
            raise PackError(
                f"layer {layer!r} meets {value.shape} with numbers of shape {shapes}: they do not fit"
            ) from None
        flat = value if per_channel else self.reshape(value, (math.prod(value.shape),), layer=layer)
        with np.errstate(over="ignore"):  # what float32 does not hold is refused where it is stored
            arrays = {"gain_shift": rows.astype(np.float32)}
        made = self.add("affine", flat, layer=layer, arrays=arrays)
        return self.reshape(made, value.shape, layer=layer)


def alike(first: Steps, second: Steps) -> bool:
    """Whether two models do the same with an image: the same operations in a row, by the same numbers."""
    rows = [
        [(step.kind, step.inputs, step.settings, sorted(step.arrays)) for step in steps.rows]
        for steps in (first, second)
    ]
    return rows[0] == rows[1] and all(
        np.array_equal(array, other.arrays[part])
        for step, other in zip(first.rows, second.rows, strict=True)
        for part, array in step.arrays.items()
    )


def to_network(steps: Steps, **header: Any) -> Network:
    """The steps as a network. Layers that hold the same numbers under one name share them."""
    tensors: Arrays = {}
    operations = []
    for step in steps.rows:
        layer = _UNNAMEABLE.sub("_", step.layer)
        names = {part: _stored(tensors, f"{layer}.{part}", array) for part, array in step.arrays.items()}
        operations.append(Operation.of(step.kind, step.inputs, names, step.settings))
    return Network(steps.input_shape, tuple(operations), tensors, **header)


def _stored(tensors: Arrays, name: str, array: NDArray[Any]) -> str:
    free, count = name, 1
    while free in tensors and not (tensors[free].dtype == array.dtype and np.array_equal(tensors[free], array)):
        count += 1
        stem, _, part = name.rpartition(".")
        free = f"{stem}~{count}.{part}"
    tensors[free] = array
    return free


def as_array(tensor: torch.Tensor) -> NDArray[Any]:
    """A tensor's numbers as float32 in torch's order."""
    return np.ascontiguousarray(tensor.detach().to("cpu", torch.float32).numpy())
