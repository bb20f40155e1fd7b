"""Audit and summary of a packed network, computed from the file alone."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from equalbits.runtime import bits
from equalbits.runtime.audit_tables import audit_table, summary_table
from equalbits.runtime.format import to_chunks
from equalbits.runtime.network import Network
from equalbits.runtime.op_specs import connections


@dataclass(frozen=True)
class PackedLayerAudit:
    """Symbols of a binary layer counted per filter, and the share of +1 it promises."""

    name: str
    connections: int
    p_pos: float | None
    positive: NDArray[np.int64]
    negative: NDArray[np.int64]

    @property
    def pruned(self) -> NDArray[np.int64]:
        """Number of pruned connections of each filter."""
        return self.connections - self.positive - self.negative

    @property
    def wrong(self) -> int:
        """Number of filters without exactly the promised share; 0 where none is promised."""
        if self.p_pos is None:
            return 0
        kept = self.positive + self.negative
        promised = {int(count): bits.positive_count(int(count), self.p_pos) for count in np.unique(kept)}
        return sum(promised[int(count)] != int(found) for count, found in zip(kept, self.positive, strict=True))


@dataclass(frozen=True)
class PackedAudit:
    """Audit of a whole file."""

    layers: tuple[PackedLayerAudit, ...]

    @property
    def holds(self) -> bool:
        """True if every filter of every layer that promises a share of +1 has it exactly."""
        return all(layer.wrong == 0 for layer in self.layers)

    def __str__(self) -> str:
        return audit_table(self)


@dataclass(frozen=True)
class PackedLayerSummary:
    """One operation: output shape, weights by dtype, and products per image.

    ``has_bits`` is true for binary weights, also where another operation stores them.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    binary_weights: int
    real_weights: int
    stored_bytes: int
    binary_macs: int
    real_macs: int
    has_bits: bool


@dataclass(frozen=True)
class PackedSummary:
    """Summary of a network by layer; ``file_bytes`` is the size of its file with the header."""

    input_shape: tuple[int, ...]
    layers: tuple[PackedLayerSummary, ...]
    file_bytes: int

    def total(self, what: str) -> int:
        """Return the sum of one column over all layers: ``total("binary_weights")``."""
        return sum(getattr(layer, what) for layer in self.layers)

    def __str__(self) -> str:
        return summary_table(self)


def audit(network: Network) -> PackedAudit:
    """Count the symbols of every binary layer, filter by filter."""
    layers = []
    for place, operation in network.binary_layers():
        symbols = network.symbols(place)
        layers.append(
            PackedLayerAudit(
                layer_name(network, place),
                symbols.shape[1],
                operation.settings["p_pos"],
                (symbols == 1).sum(axis=1),
                (symbols == -1).sum(axis=1),
            )
        )
    return PackedAudit(tuple(layers))


def summarize(network: Network) -> PackedSummary:
    """Summarize weights, bytes and products of every operation. A product is 1-bit where both factors are ±1."""
    signs, seen, layers = signed_values(network), set[str](), []
    for place, operation in enumerate(network.operations):
        arrays, shape = network.arrays(operation), network.shapes[place + 1]
        fresh = {part: array for part, array in arrays.items() if operation.tensors[part] not in seen}
        seen |= set(operation.tensors.values())
        inputs = tuple(network.shapes[i] for i in operation.inputs)
        bit_weights = "weight" in arrays and arrays["weight"].dtype == np.uint8
        width = connections(operation.settings, inputs) if "weight" in arrays else 0
        macs = width * math.prod(shape)
        one_bit = bit_weights and operation.inputs[0] in signs
        layers.append(
            PackedLayerSummary(
                layer_name(network, place),
                operation.kind,
                shape,
                width * len(arrays["weight"]) if bit_weights and "weight" in fresh else 0,
                sum(array.size for array in fresh.values() if array.dtype != np.uint8),
                sum(array.nbytes for array in fresh.values()),
                macs if one_bit else 0,
                0 if one_bit else macs,
                bit_weights,
            )
        )
    return PackedSummary(network.input_shape, tuple(layers), sum(map(len, to_chunks(network))))


def signed_values(network: Network) -> set[int]:
    """Return the values that hold only ±1: made by ``sign``, or by moving such values."""
    signs: set[int] = set()
    moving = {"concat", "flatten", "reshape", "permute", "channel_shuffle", "slice", "max_pool"}
    for place, operation in enumerate(network.operations):
        if operation.kind == "sign" or (operation.kind in moving and signs.issuperset(operation.inputs)):
            signs.add(place + 1)
    return signs


def layer_name(network: Network, place: int) -> str:
    """Return the layer name of an operation: the prefix of its first tensor, or its place."""
    names = list(network.operations[place].tensors.values())
    return names[0].rpartition(".")[0] or names[0] if names else f"#{place}"
