"""A network as data: operations in the order they run, their tensors, and the input they expect."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from equalbits.runtime import bits, op_specs
from equalbits.runtime.lengths import Lengths, check_lengths
from equalbits.runtime.op_specs import MAX_ELEMENTS, Array, Floats, Operation, Shape, Shapes
from equalbits.runtime.ports import Port, check_ports
from equalbits.runtime.resize_pictures import FITS

#: Maximum number of operations.
MAX_OPERATIONS = 1 << 14
#: Largest side a picture may be scaled to.
MAX_SIDE = 1 << 13
#: Means and stds must be below this.
MAX_MEAN = 1e9
#: Maximum number of products per image over all operations, so that a file cannot ask for days of work.
MAX_WORK = 1 << 38


@dataclass(frozen=True)
class Network:
    """A packed network. The value of the last operation is the output, the logits.

    ``tensors`` holds arrays as they are stored: planes of bits (uint8), int8, float16 or float32. ``mean`` and ``std``
    normalize an image of bytes, ``(byte / 255 − mean) / std`` per channel. ``resize`` is the side of the square that a
    picture is scaled to before its centre is cropped, and ``fit`` how: one of :data:`~equalbits.runtime.FITS`.
    ``inputs`` names the parts of value 0 where it is not an image, ``outputs`` those of the last value. ``lengths``
    says how the network of a shorter input differs, where it takes several lengths.
    """

    input_shape: Shape
    operations: tuple[Operation, ...]
    tensors: Mapping[str, Array]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    classes: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    resize: int | None = None
    fit: str = "stretch"
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    lengths: Lengths | None = None

    def __post_init__(self) -> None:
        _check_input(self)
        _check_texts(self)
        if not 1 <= len(self.operations) <= MAX_OPERATIONS:
            raise ValueError(f"the network has {len(self.operations)} operations: 1 to {MAX_OPERATIONS} are allowed")
        output = self.shapes[-1]
        check_ports("inputs", self.inputs, math.prod(self.input_shape))
        check_ports("outputs", self.outputs, math.prod(output))
        used = {name for operation in self.operations for name in operation.tensors.values()}
        if unused := sorted(set(self.tensors) - used):
            raise ValueError(f"tensor {unused[0][:80]!r} belongs to no operation: leave it out")
        for name, tensor in self.tensors.items():
            if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
                raise ValueError(f"tensor {name[:80]!r} holds a number that is not finite: it cannot be packed")
        if self.classes and output != (len(self.classes),):
            raise ValueError(f"there are {len(self.classes)} class names for an output of shape {output}")
        check_lengths(self)

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """Shapes of all values, the image first; computed, and so validated, when the network is made."""
        shapes, total = [self.input_shape], 0
        for place, operation in enumerate(self.operations):
            shapes.append(self._output_shape(place, operation, shapes))
            inputs = tuple(shapes[value] for value in operation.inputs)
            total += operation.spec.work(shapes[-1], inputs, operation.settings, self.arrays(operation))
            if total > MAX_WORK:
                raise ValueError(f"operation {place} takes the network over {MAX_WORK} products per image, the maximum")
        return tuple(shapes)

    def input_shapes(self, operation: Operation) -> Shapes:
        """Return the shapes of the values that an operation reads."""
        return tuple(self.shapes[value] for value in operation.inputs)

    def connections(self, operation: Operation) -> int:
        """Return D, the connections of each filter of a convolution or linear layer."""
        return op_specs.connections(operation.settings, self.input_shapes(operation))

    def arrays(self, operation: Operation) -> dict[str, Array]:
        """Return the tensors of an operation by their role."""
        return {part: self.tensors[name] for part, name in operation.tensors.items()}

    def run_operation(self, operation: Operation, values: Mapping[int, Floats]) -> Floats:
        """Run one operation in numpy on the values it reads."""
        inputs = [values[value] for value in operation.inputs]
        with np.errstate(all="ignore"):  # overflow gives infinity and NaN, as in torch
            return operation.spec.run(inputs, operation.settings, self.arrays(operation))

    def binary_layers(self) -> Iterator[tuple[int, Operation]]:
        """Yield the operations whose weights are bits, with their place."""
        for place, operation in enumerate(self.operations):
            if "weight" in operation.tensors and self.tensors[operation.tensors["weight"]].dtype == np.uint8:
                yield place, operation

    def symbols(self, place: int) -> bits.Symbols:
        """Return the weights of a binary layer as −1, 0 (pruned) and +1, shape (filter, connection)."""
        operation = self.operations[place]
        arrays = self.arrays(operation)
        return bits.unpack_symbols(arrays["weight"], arrays.get("kept"), self.connections(operation))

    def layer_name(self, place: int) -> str:
        """Return the layer name of an operation: the prefix of its first tensor, or its place."""
        names = list(self.operations[place].tensors.values())
        return names[0].rpartition(".")[0] or names[0] if names else f"#{place}"

    def byte_table(self) -> Floats:
        """Return the normalized value of every byte, ``(byte / 255 − mean) / std``, shape (channel, 256)."""
        mean, std = (np.asarray(numbers, np.float32)[:, None] for numbers in (self.mean, self.std))
        table: Floats = (np.arange(256, dtype=np.float32) / np.float32(255) - mean) / std
        return table

    def normalize(self, images: Array) -> Floats:
        """Return uint8 images (image, channel, row, column) as the float32 values that the first operation reads."""
        values: Floats = self.byte_table()[np.arange(images.shape[1])[:, None, None], images]
        return values

    def unnormalized_hint(self, images: Array) -> str:
        """Return a line of advice for floats from 0 to 1, which look like pixels that nothing normalized."""
        if self.mean is None or images.dtype == np.uint8 or not images.size:
            return ""
        if not 0 <= images.min() < images.max() <= 1:
            return ""
        return (
            "images are floats from 0 to 1, which are not normalized by the file's mean and std: give uint8, or "
            "(image - mean) / std"
        )

    def _output_shape(self, place: int, operation: Operation, before: list[Shape]) -> Shape:
        where = f"operation {place} ({operation.kind})"
        for value in operation.inputs:
            if not 0 <= value < len(before):
                raise ValueError(f"{where} reads value {value}: only values 0 to {len(before) - 1} are made before it")
        for name in operation.tensors.values():
            if name not in self.tensors:
                raise ValueError(f"{where} uses tensor {name[:80]!r}, which does not exist")
        try:
            rule = operation.spec.shape
            shape = rule(tuple(before[i] for i in operation.inputs), operation.settings, self.arrays(operation))
        except ValueError as error:
            raise ValueError(f"{where} {error}") from None
        if len(shape) > 8 or not 0 < math.prod(shape) <= MAX_ELEMENTS:
            raise ValueError(f"{where} makes a value of shape {shape}: 1 to {MAX_ELEMENTS} numbers are allowed")
        return shape


def _check_input(network: Network) -> None:
    sizes = network.input_shape
    if len(sizes) != 3 or {type(size) for size in sizes} != {int} or not 0 < math.prod(sizes) <= MAX_ELEMENTS:
        raise ValueError(f"the input has shape {sizes}: it must be channels, rows and columns")
    _check_normalization(network)
    least = max(network.input_shape[1:])
    if network.resize is not None and not (type(network.resize) is int and least <= network.resize <= MAX_SIDE):
        raise ValueError(f"resize is {str(network.resize)[:80]}: it must be an integer from {least} to {MAX_SIDE}")
    if network.fit not in FITS or (network.resize is None and network.fit != FITS[0]):
        raise ValueError(f"fit is {str(network.fit)[:80]!r}: it must be one of {', '.join(FITS)}, beside a resize")


def _check_normalization(network: Network) -> None:
    """Check that mean and std, where given, hold one number per channel and make every byte a finite float32."""
    mean, std, channels = network.mean, network.std, network.input_shape[0]
    if mean is None and std is None:
        return
    if mean is None or std is None:
        raise ValueError("mean and std belong together: give both, or neither")
    for name, numbers in (("mean", mean), ("std", std)):
        if len(numbers) != channels or not all(abs(number) < MAX_MEAN for number in numbers):
            raise ValueError(f"{name} is {numbers}: it must be {channels} numbers below {MAX_MEAN:g}, one per channel")
    if np.float32(min(std)) <= 0:
        raise ValueError(f"std is {std}: each must be above 0 in float32")
    with np.errstate(over="ignore"):
        largest = (np.abs(np.asarray(mean, np.float32)) + 1) / np.asarray(std, np.float32)
        if not np.isfinite(largest).all():
            raise ValueError(f"mean {mean} and std {std} make numbers beyond float32 of bytes: give a larger std")


def _check_texts(network: Network) -> None:
    """Check that class names and notes can be written and read back."""
    notes = [*network.notes, *network.notes.values()]
    for what, text in [("class", name) for name in network.classes] + [("note", note) for note in notes]:
        if not isinstance(text, str):
            raise ValueError(f"a {what} is called {text!r}: names must be str, give {str(text)!r}")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(f"a {what} is called {text[:80]!r}, which is not valid Unicode: rename it") from None
