"""Networks for inputs of any length up to a longest one: the integers and vectors that depend on the length.

A file holds the network of the longest input. :class:`Lengths` says in what that of a shorter one differs, and
:func:`at_length` makes it. ``docs/format.md`` defines the entries.
"""

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from equalbits.runtime.op_specs import MAX_INT, Array, Operation, Shape

if TYPE_CHECKING:
    from equalbits.runtime.network import Network

#: An integer from 0; the coefficients of a polynomial in the length, constant first; or, of a setting, −1 − n for n
#: less than the axis that is read, and in a reshape for what the other axes leave.
Size = int | tuple[int, ...]
Sizes = tuple[Size, ...]

#: The length itself, as a polynomial.
_LENGTH = (0, 1)
_TABLES = ("settings", "cuts", "scaled")
_PLACE = re.compile(r"0|[1-9][0-9]{0,4}")


@dataclass(frozen=True)
class Lengths:
    """Lengths that a network takes, from ``least`` to ``most``, its own; and all that depends on the length.

    ``inputs`` holds the shape of each input, or that of the image; ``outputs`` that of each named output; ``settings``
    those of operations, by place. ``cuts`` splits a vector into axes, and one for the rest; a shorter network has the
    first entries of each. ``scaled`` gives sizes to whose product a vector is proportional.
    """

    least: int
    most: int
    inputs: tuple[Sizes, ...]
    outputs: tuple[Sizes, ...] = ()
    settings: Mapping[int, Mapping[str, Sizes]] = field(default_factory=dict)
    cuts: Mapping[str, Sizes] = field(default_factory=dict)
    scaled: Mapping[str, Sizes] = field(default_factory=dict)

    def of(self, names: Sequence[str], given: Sequence[Any], named: Mapping[str, Any]) -> int:
        """Return the length of inputs: the first of their axes that varies. Inputs that do not fit have the longest."""
        arrays = dict(zip(names, given, strict=False)) | dict(named)
        for name, sizes in zip(names, self.inputs, strict=True):
            shape = np.shape(arrays.get(name, 0))  # one that is missing is refused where inputs are joined
            if _LENGTH in sizes and len(shape) >= len(sizes):
                length = int(shape[sizes.index(_LENGTH) - len(sizes)])
                if not self.least <= length <= self.most:
                    raise ValueError(f"{name} has length {length}: the model takes {self.least} to {self.most}")
                return length
        return self.most

    @staticmethod
    def cut(vector: Array, before: Shape, after: Shape, count: int) -> Array:
        """Return ``count`` numbers of a vector that is split into axes and a rest: the first entries of each.

        >>> Lengths.cut(np.arange(12), (2, 3), (2, 1), 4)  # two groups of three rows of two: the first row of each
        array([0, 1, 6, 7])
        """
        rows, kept = math.prod(before), math.prod(after)
        if not all(0 < new <= old for new, old in zip(after, before, strict=True)):
            raise ValueError(f"has a vector that is cut from {before} to {after}: it can only become shorter")
        if vector.shape[-1] % rows or count % kept or not 0 < count // kept <= vector.shape[-1] // rows:
            split = f"split by {before} and {after}"
            raise ValueError(f"needs {count} numbers of a vector of {vector.shape[-1]}, {split}: they cannot be cut so")
        apart = vector.reshape(-1, *before, vector.shape[-1] // rows)
        cut = apart[(slice(None), *map(slice, after), slice(count // kept))]
        return np.ascontiguousarray(cut.reshape(*vector.shape[:-1], count))

    @staticmethod
    def scale(vector: Array, before: Shape, after: Shape) -> Array:
        """Return a vector in proportion to the product of sizes."""
        with np.errstate(over="ignore"):  # a network refuses numbers that are not finite
            return (vector.astype(np.float64) * math.prod(after) / (math.prod(before) or 1)).astype(vector.dtype)

    def as_json(self) -> dict[str, object]:
        """Return the entry of a file's header; empty parts are left out."""
        parts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        parts["settings"] = {str(place): sizes for place, sizes in self.settings.items()}
        return {name: part for name, part in parts.items() if part}

    @classmethod
    def from_json(cls, found: Any) -> "Lengths":
        """Parse the entry of a header; raise ValueError for all that is no table of sizes."""
        if not isinstance(found, dict) or not {"least", "most", "inputs"} <= {*found} <= {*cls.__dataclass_fields__}:
            raise ValueError(f"lengths are {str(found)[:80]}: give least, most, inputs and what depends on the length")
        tables, lists = [found.get(name, {}) for name in _TABLES], [found["inputs"], found.get("outputs", [])]
        if not all(isinstance(table, dict) for table in tables) or not all(isinstance(each, list) for each in lists):
            raise ValueError(f"of lengths {', '.join(_TABLES)} must be objects, inputs and outputs lists")
        settings = {}
        for place, sizes in tables[0].items():
            if not _PLACE.fullmatch(place) or not isinstance(sizes, dict):
                raise ValueError(f"lengths change operation {place[:80]!r}: give its number and an object of settings")
            settings[int(place)] = {name: _sizes(size) for name, size in sizes.items()}
        inputs, outputs = (tuple(map(_sizes, each)) for each in lists)
        cuts, scaled = ({name: _sizes(sizes) for name, sizes in table.items()} for table in tables[1:])
        return cls(found["least"], found["most"], inputs, outputs, settings, cuts, scaled)


def check_lengths(network: "Network") -> None:
    """Raise unless the lengths of a network describe it, and it has a shortest form."""
    lengths = network.lengths
    if lengths is None:
        return
    ends = (lengths.least, lengths.most)
    if not all(type(end) is int for end in ends) or not 1 <= ends[0] < ends[1] <= MAX_INT:
        raise ValueError(f"lengths are {str(ends)[:80]}: they must be two integers, from 1 to {MAX_INT}, that rise")
    sizes = [size for shape in lengths.inputs for size in shape]
    if _LENGTH not in sizes or not all(isinstance(size, int) or size == _LENGTH for size in sizes):
        raise ValueError(f"inputs of lengths are {str(lengths.inputs)[:80]}: an axis that varies is [0, 1]")
    for name, part in _parts(network, lengths.most).items():
        given = getattr(network, name)
        if not (all(map(np.array_equal, part.values(), given.values())) if name == "tensors" else part == given):
            raise ValueError(f"lengths describe other {name} for the length {lengths.most} than the network has")
    at_length(network, lengths.least)


def at_length(network: "Network", length: int) -> "Network":
    """Return the network for inputs of one length, validated as any other."""
    lengths = network.lengths
    if lengths is None or not lengths.least <= length <= lengths.most:
        takes = "one length" if lengths is None else f"lengths {lengths.least} to {lengths.most}"
        raise ValueError(f"length {length} is not in the file: the model takes {takes}")
    try:
        return replace(network, **_parts(network, length), lengths=None)
    except ValueError as error:
        raise ValueError(f"at length {length} {error}") from None


def longest(network: "Network") -> "Network":
    """Return the network of the longest input alone, as exported to other runtimes; log that it is."""
    if network.lengths is None:
        return network
    text = "the exported network takes the length %d alone: for another export the model at_length(n)"
    logging.getLogger("equalbits").warning(text, network.lengths.most)
    return replace(network, lengths=None)


def _parts(network: "Network", length: int) -> dict[str, Any]:
    """Return all fields of a network that depend on the length."""
    lengths = network.lengths
    assert lengths is not None
    if not set(lengths.settings) <= set(range(len(network.operations))):
        raise ValueError("lengths change an operation that does not exist")
    if (len(lengths.inputs), len(lengths.outputs)) != (max(1, len(network.inputs)), len(network.outputs)):
        raise ValueError("lengths must give a shape for each input and each named output")
    inputs, outputs = ([_shape(sizes, length) for sizes in part] for part in (lengths.inputs, lengths.outputs))
    image = (1, 1, sum(map(math.prod, inputs))) if network.inputs else inputs[0]
    operations, tensors = _operations(network, lengths, image, length)
    return {
        "input_shape": image,
        "operations": operations,
        "tensors": tensors,
        "inputs": tuple(replace(port, shape=shape) for port, shape in zip(network.inputs, inputs, strict=False)),
        "outputs": tuple(replace(port, shape=shape) for port, shape in zip(network.outputs, outputs, strict=True)),
    }


def _operations(
    network: "Network", lengths: Lengths, image: Shape, length: int
) -> tuple[tuple[Operation, ...], dict[str, Array]]:
    """Return the operations and tensors at a length; shapes are followed from the image."""
    tensors, operations, values = dict(network.tensors), list[Operation](), [image]
    counts: dict[str, int] = {}
    for name in (*lengths.cuts, *lengths.scaled):
        if name not in tensors or tensors[name].dtype.kind != "f" or not tensors[name].ndim:
            raise ValueError(f"lengths change tensor {name[:80]!r}: it must exist, and hold a list of floats")
    for name, sizes in lengths.scaled.items():
        tensors[name] = Lengths.scale(tensors[name], _shape(sizes, lengths.most), _shape(sizes, length))
    for place, operation in enumerate(network.operations):
        read = tuple(values[value] for value in operation.inputs)
        try:
            if changed := lengths.settings.get(place):
                found = {name: _setting(operation.kind, sizes, read[0], length) for name, sizes in changed.items()}
                settings = {**operation.settings, **found}
                operation = operation.spec.make(operation.inputs, operation.tensors, settings)
            for name in lengths.cuts.keys() & operation.tensors.values():
                needed = sum(read[0][operation.settings.get("axis", 0) :][:1])  # as vectors do where they vary
                if counts.setdefault(name, needed) != needed:
                    raise ValueError(f"shares tensor {name[:80]!r} at another length: {counts[name]} and {needed}")
                if tensors[name] is network.tensors[name]:
                    before, after = (_shape(lengths.cuts[name], each) for each in (lengths.most, length))
                    tensors[name] = Lengths.cut(tensors[name], before, after, needed)
            arrays = {part: tensors[name] for part, name in operation.tensors.items()}
            values.append(operation.spec.shape(read, operation.settings, arrays))
        except ValueError as error:
            raise ValueError(f"operation {place} ({operation.kind}) {error}") from None
        operations.append(operation)
    return tuple(operations), tensors


def _setting(kind: str, sizes: Sizes, read: Shape, length: int) -> Shape:
    found = []
    for place, size in enumerate(sizes):
        axis = place + len(read) - len(sizes)  # settings of fewer axes are those of the last ones
        if isinstance(size, tuple) or size >= 0:
            found.append(_number(size, length))
        elif kind == "reshape":
            others = math.prod(_number(other, length) for other in (*sizes[:place], *sizes[place + 1 :]))
            found.append(math.prod(read) // max(1, others))
        elif axis >= 0:
            found.append(read[axis] + 1 + size)
        else:
            raise ValueError(f"has {len(sizes)} numbers that depend on the axes of a value of shape {read}")
    return tuple(found)


def _shape(sizes: Sizes, length: int) -> Shape:
    return tuple(_number(size, length) for size in sizes)


def _number(size: Size, length: int) -> int:
    return size if isinstance(size, int) else sum(factor * length**power for power, factor in enumerate(size))


def _sizes(found: Any) -> Sizes:
    """Parse a list of sizes from JSON."""
    sizes = [tuple(size) if isinstance(size, list) else (size,) for size in found] if isinstance(found, list) else []
    right = all(0 < len(size) <= 3 and all(type(one) is int and abs(one) <= MAX_INT for one in size) for size in sizes)
    if not isinstance(found, list) or len(sizes) > 8 or not right:
        raise ValueError(f"lengths have sizes {str(found)[:80]}: give up to eight, integers or lists of two or three")
    return tuple(size[0] if len(size) == 1 else size for size in sizes)
