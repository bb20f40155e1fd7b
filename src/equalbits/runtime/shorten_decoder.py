"""Shorten a packed causal decoder to fewer tokens, and find where its tokens meet: in causal attention alone.

Every value has a number, or a row of them, for each token: in the order they stand, index (outer, token, inner). The
axis of tokens is followed from the input through all operations. Every operation but attention must treat each token by
itself. Then a decoder can read its tokens piece by piece, if the keys and values of its attentions are kept.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from equalbits.runtime.network import Network
from equalbits.runtime.op_specs import ElementwiseOp, Floats, Operation, Shape


@dataclass(frozen=True)
class Attention:
    """Causal attention: the places of its three operations, and the values with queries, turned keys and values."""

    places: tuple[int, int, int]
    inputs: tuple[int, int, int]


@dataclass(frozen=True)
class Shortened:
    """A decoder of fewer tokens, the first ones: a network of its own, and all that depends on the position.

    ``tables`` holds gain and shift of the affines that do, by their place: (gain or shift, outer, position, inner).
    """

    network: Network
    length: int
    attentions: tuple[Attention, ...]
    tables: Mapping[int, Floats]


def shorten(network: Network, rows: int, *, until_attention: bool = False) -> Shortened:
    """Return a causal decoder with the shapes of ``rows`` tokens; raise ValueError where tokens meet elsewhere.

    With ``until_attention`` it ends at the last attention, behind which no token is kept.
    """
    ports = network.inputs
    if len(ports) != 1 or len(ports[0].shape) != 1 or network.outputs or ports[0].shape[0] < rows:
        raise ValueError(f"a cache needs a decoder that reads at least {rows} tokens and returns logits")
    return _Shortening(network, rows).run(until_attention)


class _Shortening:
    """State of :func:`shorten`. ``inner`` counts the numbers behind the axis of tokens, by value."""

    def __init__(self, network: Network, rows: int) -> None:
        self.network, self.rows, self.length = network, rows, network.inputs[0].shape[0]
        self.inner = [1]
        self.operations: list[Operation] = []
        self.tensors = dict(network.tensors)
        self.tables: dict[int, Floats] = {}
        self.attentions: list[Attention] = []

    def run(self, until_attention: bool) -> Shortened:
        for place, operation in enumerate(self.network.operations):
            self.inner.append(0)
            made = self._shorten(place, operation)
            if not self.inner[-1]:
                raise self._refuse(place, "mixes tokens")
            self.operations.append(made)
        if until_attention and self.attentions:
            self.operations = self.operations[: self.attentions[-1].places[-1] + 1]
        used = {name for operation in self.operations for name in operation.tensors.values()}
        tensors = {name: tensor for name, tensor in self.tensors.items() if name in used}
        port = replace(self.network.inputs[0], shape=(self.rows,))
        network = Network((1, 1, self.rows), tuple(self.operations), tensors, inputs=(port,))
        return Shortened(network, self.length, tuple(self.attentions), self.tables)

    def _shorten(self, place: int, operation: Operation) -> Operation:
        """Return an operation with fewer tokens, and note how many numbers lie behind the tokens of its output."""
        kind, inner = operation.kind, {self.inner[value] for value in operation.inputs}
        if kind == "matmul":
            return self._matmul(place, operation)
        if kind in ("reshape", "flatten"):
            return self._reshape(place, operation)
        is_softmax = any(place == attention.places[1] for attention in self.attentions)
        if isinstance(operation.spec, ElementwiseOp) or is_softmax:
            self.inner[place + 1] = inner.pop() if len(inner) == 1 else 0
            return self._vectors(place, operation) if kind in ("affine", "prelu") else operation
        self._moved(place, axis := self._output_axis(place, operation))
        if kind == "slice" and axis >= 0:
            stops = tuple(self.rows if i == axis else stop for i, stop in enumerate(operation.settings["stop"]))
            return replace(operation, settings={**operation.settings, "stop": stops})
        return operation

    def _output_axis(self, place: int, operation: Operation) -> int:
        """Return the axis of the output that counts tokens; -1 where there is none, as where tokens mix."""
        settings, axes = operation.settings, {self.axis(value) for value in operation.inputs}
        axis = axes.pop()
        if axes or axis < 0:
            return -1
        match operation.kind:
            case "permute":
                return int(settings["axes"].index(axis))
            case "rms_norm" | "layer_norm" | "softmax":
                alone = axis != settings["axis"]
            case "slice":
                alone = [settings[name][axis] for name in ("start", "stop", "step")] == [0, self.length, 1]
            case "concat":
                alone = axis > 0
            case "linear":
                alone = axis < len(self.network.shapes[place + 1]) - 1
            case "conv":
                pointwise = settings["kernel"] == settings["stride"] == (1, 1) and not any(settings["padding"])
                alone = pointwise and axis > 0
            case kind:
                alone = kind in ("embedding", "mul")
        return axis if alone else -1

    def _refuse(self, place: int, why: str) -> ValueError:
        layer = self.network.layer_name(place)
        return ValueError(
            f"operation {place} ({self.network.operations[place].kind}, {layer}) {why}: no cache is possible"
        )

    def axis(self, value: int) -> int:
        """Return the axis of a value that counts its tokens and nothing else; -1 where there is none."""
        shape = self.network.shapes[value]
        found = [axis for axis in range(len(shape)) if math.prod(shape[axis + 1 :]) == self.inner[value]]
        return next((axis for axis in found if shape[axis] == self.length), -1)

    def shape(self, value: int) -> Shape:
        """Return the shape of a value with fewer tokens."""
        sizes = enumerate(self.network.shapes[value])
        return tuple(
            size // self.length * self.rows if self._holds_tokens(value, axis) else size for axis, size in sizes
        )

    def _holds_tokens(self, value: int, axis: int) -> bool:
        """Return whether the axis of tokens is this axis, or a part of it."""
        shape, inner = self.network.shapes[value], self.inner[value]
        behind = math.prod(shape[axis + 1 :])
        return inner % behind == 0 and (behind * shape[axis]) % (inner * self.length) == 0

    def _vectors(self, place: int, operation: Operation) -> Operation:
        """Shorten the vectors of an affine or PReLU; those of an affine that depend on the position become a table."""
        value, axis = operation.inputs[0], operation.settings.get("axis", 0)
        inner = self.inner[value]
        (part, name), *_ = operation.tensors.items()
        array = self.network.tensors[name]
        if array.shape[-1] == 1 or not self._holds_tokens(value, axis):
            return operation
        behind = math.prod(self.network.shapes[value][axis + 1 :])
        apart = array.reshape(*array.shape[:-1], -1, self.length, inner // behind)
        if (apart != apart[..., :1, :]).any():
            if operation.kind != "affine":
                raise self._refuse(place, "depends on the position")
            shape = (2, *self.network.shapes[value])
            tail = (1,) * (len(shape) - 2 - axis)
            lead = (1,) * axis
            full = np.broadcast_to(array.reshape(2, *lead, -1, *tail), shape)
            self.tables[place] = full.reshape(2, -1, self.length, inner).astype(np.float32)
        shorter = f"{name}:{self.rows}"
        self.tensors[shorter] = np.ascontiguousarray(apart[..., : self.rows, :]).reshape(*array.shape[:-1], -1)
        return replace(operation, tensors={**operation.tensors, part: shorter})

    def _reshape(self, place: int, operation: Operation) -> Operation:
        self.inner[place + 1] = self.inner[operation.inputs[0]]
        if not any(self._holds_tokens(place + 1, axis) for axis in range(len(self.network.shapes[place + 1]))):
            raise self._refuse(place, "splits the axis of tokens")
        return (
            operation if operation.kind == "flatten" else replace(operation, settings={"shape": self.shape(place + 1)})
        )

    def _moved(self, place: int, axis: int) -> None:
        """Note on which axis the tokens of the output lie; at -1 they are lost."""
        self.inner[place + 1] = math.prod(self.network.shapes[place + 1][axis + 1 :]) if axis >= 0 else 0

    def _matmul(self, place: int, operation: Operation) -> Operation:
        """Take the product of queries and keys, which only a causal softmax may read, and that one's product."""
        rank = len(self.network.shapes[place + 1])
        first, second = operation.inputs
        for attention in self.attentions:
            if place == attention.places[2]:
                self._moved(place, rank - 2)
                return operation
        softmax, last = self._only_reader(place), -1
        if softmax >= 0 and (found := self.network.operations[softmax]).kind == "softmax" and found.settings["causal"]:
            last = self._only_reader(softmax)
        if (
            last < 0
            or self.network.operations[last].kind != "matmul"
            or softmax + 1 != self.network.operations[last].inputs[0]
        ):
            raise self._refuse(place, "mixes tokens outside causal attention")
        values = self.network.operations[last].inputs[1]
        if values > place or (self.axis(first), self.axis(second), self.axis(values)) != (rank - 2, rank - 1, rank - 2):
            raise self._refuse(place, "multiplies values that are not queries, keys and values of tokens")
        self.attentions.append(Attention((place, softmax, last), (first, second, values)))
        self._moved(place, rank - 2)
        return operation

    def _only_reader(self, place: int) -> int:
        readers = [i for i, operation in enumerate(self.network.operations) if place + 1 in operation.inputs]
        return readers[0] if len(readers) == 1 else -1
