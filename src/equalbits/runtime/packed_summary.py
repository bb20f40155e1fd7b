"""Summary of a packed network by layer: weights, bytes, and products by the bits of their factors."""

import math
from dataclasses import dataclass

import numpy as np

from equalbits._text import escape_control_chars, format_table, html_table, used_columns
from equalbits.runtime.format import to_chunks
from equalbits.runtime.network import Network

_COLUMNS = ("layer", "kind", "output", "symbols", "real", "bytes")


@dataclass(frozen=True)
class PackedLayerSummary:
    """One operation: output shape, weights by dtype, and products per image.

    ``weight_bits`` and ``input_bits`` are those of the factors: 1 for ±1, 8 or fewer for whole numbers, 32 for others.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    binary_weights: int
    real_weights: int
    stored_bytes: int
    binary_macs: int
    real_macs: int
    weight_bits: int
    input_bits: int

    @property
    def factors(self) -> tuple[int, int]:
        """Bits of a weight and of an input."""
        return self.weight_bits, self.input_bits


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
        return f"{format_table(*self._table(), left=(0, 1, 2))}\n{self._note()}"

    def _repr_html_(self) -> str:
        return html_table(*self._table(), left=(0, 1, 2), note=self._note())

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return header and rows; products have a column for each pair of factors that the network multiplies."""
        counts, rows = [], []
        pairs = sorted({layer.factors for layer in self.layers if layer.binary_macs or layer.real_macs})
        for layer in self.layers:
            macs = layer.binary_macs + layer.real_macs
            weights = (layer.binary_weights, layer.real_weights, layer.stored_bytes)
            counts.append((*weights, *(macs if pair == layer.factors else 0 for pair in pairs)))
            shape = "×".join(map(str, layer.shape))
            rows.append((escape_control_chars(layer.name), layer.kind, shape, *map(_figure, counts[-1])))
        rows.append(("total", "", "", *(_figure(sum(column)) for column in zip(*counts, strict=True))))
        return used_columns((*_COLUMNS, *(f"MACs {weight}×{given}" for weight, given in pairs)), rows)

    def _note(self) -> str:
        names = self.file_bytes - self.total("stored_bytes")
        return f"the file: {self.file_bytes:,} bytes, of which the header takes {names:,}"


def summarize(network: Network) -> PackedSummary:
    """Summarize weights, bytes and products of every operation. A product is 1-bit where both factors are ±1."""
    bits_of, seen, layers = _bits_of_values(network), set[str](), []
    for place, operation in enumerate(network.operations):
        arrays, shape = network.arrays(operation), network.shapes[place + 1]
        fresh = {part: array for part, array in arrays.items() if operation.tensors[part] not in seen}
        seen |= set(operation.tensors.values())
        bit_weights = "weight" in arrays and arrays["weight"].dtype == np.uint8
        width = network.connections(operation) if "weight" in arrays else 0
        macs = width * math.prod(shape)
        given = bits_of[operation.inputs[0]]
        input_bits = min(given, operation.settings.get("input_bits") or given)
        whole = "weight" in arrays and arrays["weight"].dtype == np.int8 and input_bits <= 8
        weight_bits = 1 if bit_weights else 8 if whole else 32
        one_bit = (weight_bits, input_bits) == (1, 1)
        layers.append(
            PackedLayerSummary(
                name=network.layer_name(place),
                kind=operation.kind,
                shape=shape,
                binary_weights=width * len(arrays["weight"]) if bit_weights and "weight" in fresh else 0,
                real_weights=sum(array.size for array in fresh.values() if array.dtype != np.uint8),
                stored_bytes=sum(array.nbytes for array in fresh.values()),
                binary_macs=macs if one_bit else 0,
                real_macs=0 if one_bit else macs,
                weight_bits=weight_bits,
                input_bits=input_bits,
            )
        )
    return PackedSummary(network.input_shape, tuple(layers), sum(map(len, to_chunks(network))))


def _bits_of_values(network: Network) -> list[int]:
    """Return how many bits a number of each value takes: after ``sign`` and ``quantize``, and where those are moved."""
    bits_of = [32]
    for operation in network.operations:
        if operation.kind == "quantize":
            bits_of.append(int(operation.settings["max"] - operation.settings["min"]).bit_length())
        else:
            moves = operation.kind == "max_pool" or (operation.spec.moves and operation.kind != "pad")
            moved = max(bits_of[i] for i in operation.inputs) if moves else 32
            bits_of.append(1 if operation.kind == "sign" else moved)
    return bits_of


def _figure(count: int) -> str:
    return f"{count:,}" if count else "–"
