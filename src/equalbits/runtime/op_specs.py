"""Specification of an operation: its settings, tensors and shapes, and the functions that run, lower and export it.

A module of :mod:`equalbits.runtime.ops` holds all of this for a family of operations. A value is the array that flows
between operations, one per image: channels come first, (channel, row, column) or (feature,).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from equalbits.runtime.export_graph import ExportGraph, Node
    from equalbits.runtime.lower import Lowering

Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]
Array = NDArray[Any]
Floats = NDArray[np.float32]
Tensors = Mapping[str, Array]
Settings = Mapping[str, Any]

#: Maximum number of elements of one value, per image.
MAX_ELEMENTS = 1 << 28
#: Float32 holds every integer up to this, and adds integers exactly in any order below it.
EXACT = 1 << 24
#: Tensors with one or two numbers per channel. All others are weights, with a row per filter.
VECTORS = ("scale", "bias", "gain_shift", "slope")
#: Largest integer a setting may have: far above any network, far below any overflow.
MAX_INT = 1 << 20
#: Largest float a setting may have: the largest of float32.
MAX_FLOAT = 2.0**128 - 2.0**104
#: Smallest normal float32.
SMALLEST_FLOAT = 2.0**-126

SettingValue = int | float | bool | None | tuple[int, ...]


class OpSpec:
    """One operation of a packed file, called ``kind`` in it.

    ``inputs`` bounds the number of values it reads. ``moves`` marks operations that only move numbers, ``slides``
    those with a window that slides over an image. ``temporaries`` counts the arrays, as large as its largest value,
    that numpy takes beside input and output. ``onnx`` names the ONNX operator that is the same, ``aten`` lists ATen
    operations that are, each with the settings that its arguments after the first stand for.
    """

    kind: str
    inputs: tuple[int, int] = (1, 1)
    tensors: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    settings: ClassVar[Mapping[str, "Setting"]] = MappingProxyType({})
    moves: bool = False
    slides: bool = False
    temporaries: int = 2
    onnx: str = ""
    aten: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})

    def __repr__(self) -> str:
        return self.kind

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Names of all tensors the operation may have, required ones first."""
        return self.tensors + self.optional

    def make(self, inputs: tuple[int, ...], tensors: Mapping[str, str], settings: Settings) -> "Operation":
        """Return an operation, validated and with the defaults of its settings."""
        if not self.inputs[0] <= len(inputs) <= self.inputs[1]:
            bounds = " to ".join(map(str, sorted({*self.inputs})))
            raise ValueError(f"reads {len(inputs)} values: {self.kind} takes {bounds}")
        for name in tensors:
            if name not in self.tensor_names:
                raise ValueError(f"has a tensor {name[:80]!r}: {self.kind} knows {', '.join(self.tensor_names)}")
        for name in self.tensors:
            if name not in tensors:
                raise ValueError(f"has no tensor {name!r}: {self.kind} needs one")
        for name in settings:
            if name not in self.settings:
                known = ", ".join(self.settings) or "none"
                raise ValueError(f"has a setting {name[:80]!r}: {self.kind} knows {known}")
        parsed = {name: setting.read(name, settings, self.kind) for name, setting in self.settings.items()}
        return Operation(self, inputs, dict(tensors), parsed)

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        """Return the output shape; raise ValueError for inputs, settings or tensors that do not fit."""
        return inputs[0]

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        """Compute the output in numpy: the reference of every engine."""
        raise NotImplementedError

    def work(self, shape: Shape, inputs: Shapes, settings: Settings, tensors: Tensors) -> int:
        """Count the products, or reads of a number, that the operation takes for one image."""
        if "weight" in tensors:
            return math.prod(shape) * connections(settings, inputs)
        return math.prod(shape) * math.prod(settings.get("kernel", (1,))) + math.prod(inputs[0])

    def numpy_bytes(self, shape: Shape, inputs: Shapes, settings: Settings, tensors: Tensors) -> int:
        """Return the most bytes that :meth:`run` takes beside inputs and output, for one image."""
        largest = max(map(math.prod, (shape, *inputs)))
        if "padding" in settings:
            (channels, rows, columns), (top, bottom, left, right) = inputs[0], settings["padding"]
            largest = max(largest, channels * (rows + top + bottom) * (columns + left + right))
        return 4 * self.temporaries * largest

    def lower(self, lowering: "Lowering", place: int, operation: "Operation") -> None:
        """Emit native steps; without a rule, numpy runs every network that holds the operation."""
        raise ValueError(f"the native engine has no {self.kind}: numpy runs the network, slowly")

    def export(self, graph: "ExportGraph", operation: "Operation", shape: Shape) -> "Node":
        """Add nodes to an ONNX or OpenVINO graph, in the operators of ONNX; return the last, which makes the output."""
        return graph.node(self.onnx, *graph.inputs(operation))


class ElementwiseOp(OpSpec):
    """An operation on each number by itself: its output lies in memory as its inputs do."""


class ChainOp(ElementwiseOp):
    """An elementwise operation, which the native engine fuses into the step before it."""

    def slot(self, lowering: "Lowering", place: int) -> str:
        """Return the part of the chain that the operation takes."""
        return self.kind

    def fields(self, lowering: "Lowering", operation: "Operation", value: int, number: str) -> dict[str, int] | None:
        """Return the fields of its part of the chain; None where the operation cannot be fused there."""
        raise NotImplementedError

    def lower(self, lowering: "Lowering", place: int, operation: "Operation") -> None:
        """Emit a step of its own, which the operations behind it may join."""
        fields = {"IN": lowering.as_real(operation.inputs[0])}
        slot = lowering.fuse(place, operation.inputs[0], fields, -1)
        assert slot is not None
        lowering.finish_step("CHAIN", place + 1, fields, slot)


@dataclass(frozen=True)
class Operation:
    """One operation: its specification, the values it reads, the names of its tensors, and all its settings.

    Value 0 is the image; operation ``i``, counted from 0, makes value ``i + 1``. An operation reads only values made
    before it, so no network has a cycle. :func:`equalbits.runtime.ops.make_operation` makes one by its kind.
    """

    spec: OpSpec
    inputs: tuple[int, ...]
    tensors: Mapping[str, str] = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Name of the operation in a file."""
        return self.spec.kind


@dataclass(frozen=True)
class Setting:
    """One setting of an operation: the function that parses it, and its default unless it is required."""

    parse: Callable[[object], SettingValue]
    default: SettingValue = None
    required: bool = False

    def read(self, name: str, settings: Settings, kind: str) -> SettingValue:
        """Return the value that an operation is given, parsed, or the default."""
        if name not in settings:
            if self.required:
                raise ValueError(f"has no setting {name!r}: {kind} needs it")
            return self.default
        try:
            return self.parse(settings[name])
        except ValueError as error:
            raise ValueError(f"has {name} that {error}") from None

    def shorten(self, value: SettingValue) -> int | float | bool | list[int] | None:
        """Return the form written to a file: one number where it stands for several equal ones."""
        if isinstance(value, tuple):
            return value[0] if self.parse in (pair, borders) and len(set(value)) == 1 else list(value)
        return value


def flag(value: object) -> bool:
    """Parse true or false."""
    if type(value) is not bool:
        raise ValueError(f"is {_short(value)}: it must be true or false")
    return value


def number(value: object) -> float:
    """Parse a float that float32 can hold."""
    if not isinstance(value, int | float) or type(value) not in (int, float) or not abs(value) <= MAX_FLOAT:
        raise ValueError(f"is {_short(value)}: it must be a finite number in the range of float32")
    return float(value)


def positive(value: object) -> float:
    """Parse a positive float32 that is not subnormal."""
    if number(value) < SMALLEST_FLOAT:
        raise ValueError(f"is {_short(value)}: it must be positive, from {SMALLEST_FLOAT:.3g}")
    return number(value)


def optional_number(value: object) -> float | None:
    """Parse a float, or none."""
    return None if value is None else number(value)


def share(value: object) -> float | None:
    """Parse a number from 0 to 1, or none."""
    if value is not None and not 0 <= number(value) <= 1:
        raise ValueError(f"is {_short(value)}: it must lie in [0, 1]")
    return optional_number(value)


def input_bits(value: object) -> int:
    """Parse the bits kept of an input: 32, or 8 for one that is rounded."""
    if type(value) is not int or value not in (8, 32):
        raise ValueError(f"is {_short(value)}: it must be 32, or 8 for an input that is rounded")
    return value


def axis_size(axis: int, shape: Shape) -> int:
    """Return the size of an axis, checked to exist."""
    if axis >= len(shape):
        raise ValueError(f"works along axis {axis} of a value of shape {shape}: count the axes from 0")
    return shape[axis]


def per_axis(numbers: Shape, shape: Shape) -> Shape:
    """Return ``numbers``, checked to hold one for each axis of ``shape``."""
    if len(numbers) != len(shape):
        raise ValueError(f"has {numbers} for a value of shape {shape}: give one number per axis")
    return numbers


def image_shape(shape: Shape) -> Shape:
    """Return ``shape``, checked to be that of an image."""
    if len(shape) != 3:
        raise ValueError(f"reads a value of shape {shape}: it must have channels, rows and columns")
    return shape


def check_vector(name: str, tensor: Array, shapes: set[Shape]) -> None:
    """Raise unless ``tensor`` is a float of one of ``shapes``."""
    if tensor.dtype.kind != "f" or tensor.shape not in shapes:
        raise ValueError(f"has {name} of {tensor.dtype} and shape {tensor.shape}: it must be float, {sorted(shapes)}")


def connections(settings: Settings, inputs: Shapes) -> int:
    """Return D, the connections of each filter of a convolution or linear layer that reads ``inputs``."""
    if "kernel" not in settings:
        return inputs[0][-1]
    groups: int = settings.get("groups", 1)
    return inputs[0][0] // groups * math.prod(settings["kernel"])


def _integer(value: object, *, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"is {_short(value)}: it must be an integer from {least} to {most}")
    return value


def _integers(value: object, *, size: int | None, least: int) -> tuple[int, ...]:
    if type(value) is int:
        value = [value] * (size or 1)
    if not isinstance(value, list | tuple) or len(value) > 8 or (size is not None and len(value) != size):
        raise ValueError(f"is {_short(value)}: it must be {size or 'up to eight'} integers")
    for item in value:
        if type(item) is not int or not least <= item <= MAX_INT:
            raise ValueError(f"is {_short(value)}: each must be an integer from {least} to {MAX_INT}")
    return tuple(value)


#: Parse an integer from 1.
count = partial(_integer, least=1, most=MAX_INT)
#: Parse the number of an axis.
axis = partial(_integer, least=0, most=7)
#: Parse the least or the largest of at most 256 whole numbers around 0.
level = partial(_integer, least=-255, most=255)
#: Parse height and width, from 1; one number stands for both.
pair = partial(_integers, size=2, least=1)
#: Parse top, bottom, left and right, from 0; one number stands for all four.
borders = partial(_integers, size=4, least=0)
#: Parse a list of integers from 0, one per axis; a single number is a list of one.
counts = partial(_integers, size=None, least=0)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
