"""A network as data: operations in the order they run, the tensors they use, and what it expects of an image."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equalbits.runtime import bits
from equalbits.runtime.op_specs import KINDS, MAX_ELEMENTS, Shape, connections, work

#: The most operations a network may have.
MAX_OPERATIONS = 1 << 14
#: The largest side a picture may be scaled to.
MAX_SIDE = 1 << 13
#: Means and stds are below this.
LARGEST_MEAN = 1e9
#: The most products an image may take, over all operations: a file cannot ask for days.
MAX_WORK = 1 << 38


@dataclass(frozen=True)
class Operation:
    """One operation: its kind, the values it reads, the names of its tensors, and its settings in full.

    Value 0 is the image; the operation at place ``i``, counted from 0, gives value ``i + 1``. An operation reads values
    made before it, so no network can have a cycle.
    """

    kind: str
    inputs: tuple[int, ...]
    tensors: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, kind: str, inputs: tuple[int, ...], tensors: Mapping[str, str], settings: Mapping[str, Any]
    ) -> "Operation":
        """An operation with every setting read, checked and filled in; refuses what its kind does not know.

        >>> Operation.of("max_pool", (0,), {}, {"kernel": 2, "stride": 2}).settings["padding"]
        (0, 0, 0, 0)
        """
        if kind not in KINDS:
            raise ValueError(f"is of kind {kind[:80]!r}, which is not known: there are {', '.join(KINDS)}")
        rule = KINDS[kind]
        if not rule.inputs[0] <= len(inputs) <= rule.inputs[1]:
            raise ValueError(
                f"reads {len(inputs)} values: {kind} takes {' to '.join(map(str, sorted({*rule.inputs})))}"
            )
        for name in tensors:
            if name not in rule.tensors + rule.optional:
                raise ValueError(f"has a tensor {name[:80]!r}: {kind} knows {', '.join(rule.tensors + rule.optional)}")
        for name in rule.tensors:
            if name not in tensors:
                raise ValueError(f"has no tensor {name!r}: {kind} needs one")
        return cls(kind, inputs, dict(tensors), dict(_read_settings(kind, settings)))


@dataclass(frozen=True)
class Network:
    """A packed network. The last operation's value is the answer, the logits.

    ``tensors`` holds arrays as they are stored: planes of bits (uint8), int8, float16 or float32. ``mean`` and ``std``
    say how an image of bytes becomes the input, ``(byte / 255 − mean) / std`` per channel. ``resize`` says how a
    picture becomes an image: stretched to a square of so many pixels a side, of which the middle is cut out.
    """

    input_shape: Shape
    operations: tuple[Operation, ...]
    tensors: Mapping[str, NDArray[Any]]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    classes: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    resize: int | None = None

    def __post_init__(self) -> None:
        _check_image(self)
        _check_texts(self)
        if not 1 <= len(self.operations) <= MAX_OPERATIONS:
            raise ValueError(f"the network has {len(self.operations)} operations: 1 to {MAX_OPERATIONS} are allowed")
        answer = self.shapes[-1]
        used = {name for operation in self.operations for name in operation.tensors.values()}
        if unused := sorted(set(self.tensors) - used):
            raise ValueError(f"tensor {unused[0][:80]!r} belongs to no operation: leave it out")
        for name, tensor in self.tensors.items():
            if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
                raise ValueError(f"tensor {name[:80]!r} holds a number that is not finite: it cannot be packed")
        if self.classes and answer != (len(self.classes),):
            raise ValueError(f"there are {len(self.classes)} class names for an answer of shape {answer}")

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The shape of every value, the image's first. Found, and so checked, when the network is made."""
        shapes, total = [self.input_shape], 0
        for place, operation in enumerate(self.operations):
            shapes.append(self._shape(place, operation, shapes))
            inputs = tuple(shapes[value] for value in operation.inputs)
            total += work(shapes[-1], operation.settings, inputs, self.arrays(operation))
            if total > MAX_WORK:
                raise ValueError(
                    f"operation {place} takes the network over {MAX_WORK} products an image, the most allowed"
                )
        return tuple(shapes)

    def arrays(self, operation: Operation) -> dict[str, NDArray[Any]]:
        """The tensors of an operation by their part in it."""
        return {part: self.tensors[name] for part, name in operation.tensors.items()}

    def binary_layers(self) -> Iterator[tuple[int, Operation]]:
        """The operations whose weights are bits, with their place."""
        for place, operation in enumerate(self.operations):
            if "weight" in operation.tensors and self.tensors[operation.tensors["weight"]].dtype == np.uint8:
                yield place, operation

    def symbols(self, place: int) -> bits.Symbols:
        """The weights of a binary layer: −1, 0 where pruned, +1; shape (filter, connection)."""
        operation = self.operations[place]
        arrays = self.arrays(operation)
        inputs = tuple(self.shapes[i] for i in operation.inputs)
        return bits.unpack_symbols(arrays["weight"], arrays.get("kept"), connections(operation.settings, inputs))

    def _shape(self, place: int, operation: Operation, before: list[Shape]) -> Shape:
        where = f"operation {place} ({operation.kind})"
        for value in operation.inputs:
            if not 0 <= value < len(before):
                raise ValueError(f"{where} reads value {value}: only {len(before)} are made before it, from 0")
        for name in operation.tensors.values():
            if name not in self.tensors:
                raise ValueError(f"{where} uses tensor {name[:80]!r}, which is not there")
        try:
            rule = KINDS[operation.kind].shape
            shape = rule(tuple(before[i] for i in operation.inputs), operation.settings, self.arrays(operation))
        except ValueError as error:
            raise ValueError(f"{where} {error}") from None
        if len(shape) > 8 or not 0 < math.prod(shape) <= MAX_ELEMENTS:
            raise ValueError(f"{where} gives a value of shape {shape}: 1 to {MAX_ELEMENTS} numbers are allowed")
        return shape


def _check_image(network: Network) -> None:
    sizes = network.input_shape
    if len(sizes) != 3 or {type(size) for size in sizes} != {int} or not 0 < math.prod(sizes) <= MAX_ELEMENTS:
        raise ValueError(f"the input has shape {sizes}: it must be channels, rows and columns")
    _check_normalising(network)
    least = max(network.input_shape[1:])
    if network.resize is not None and not (type(network.resize) is int and least <= network.resize <= MAX_SIDE):
        raise ValueError(f"resize is {str(network.resize)[:80]}: it must be a whole number from {least} to {MAX_SIDE}")


def _check_normalising(network: Network) -> None:
    """A mean and a std for each channel, or none, that make a number of every byte."""
    mean, std, channels = network.mean, network.std, network.input_shape[0]
    if mean is None and std is None:
        return
    if mean is None or std is None:
        raise ValueError("mean and std belong together: give both, or neither")
    for name, numbers in (("mean", mean), ("std", std)):
        if len(numbers) != channels or not all(abs(number) < LARGEST_MEAN for number in numbers):
            raise ValueError(
                f"{name} is {numbers}: it must be {channels} numbers below {LARGEST_MEAN:g}, one per channel"
            )
    if np.float32(min(std)) <= 0:
        raise ValueError(f"std is {std}: each must be above 0, as float32 counts")
    with np.errstate(over="ignore"):
        largest = (np.abs(np.asarray(mean, np.float32)) + 1) / np.asarray(std, np.float32)
        if not np.isfinite(largest).all():
            raise ValueError(f"mean {mean} and std {std} make numbers beyond float32 of bytes: give a larger std")


def _check_texts(network: Network) -> None:
    """Whatever is said of a network can be written, and read back as it was."""
    notes = [*network.notes, *network.notes.values()]
    for what, text in [("class", name) for name in network.classes] + [("note", note) for note in notes]:
        if not isinstance(text, str):
            raise ValueError(f"a {what} is called {text!r}: names are texts, give {str(text)!r}")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"a {what} is called {text[:80]!r}: no file can hold that text, call it otherwise"
            ) from None


def _read_settings(kind: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    known = KINDS[kind].settings
    for name in settings:
        if name not in known:
            raise ValueError(f"has a setting {name[:80]!r}: {kind} knows {', '.join(known) or 'none'}")
    for name, setting in known.items():
        if name not in settings and setting.required:
            raise ValueError(f"does not say {name!r}: {kind} needs it")
        try:
            yield name, setting.read(settings[name]) if name in settings else setting.default
        except ValueError as error:
            raise ValueError(f"has {name} that {error}") from None
