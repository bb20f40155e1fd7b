"""Audit and summary of a packed network, computed from the file alone; both print as tables."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from equalbits._text import escape_control_chars, format_range, format_table
from equalbits.runtime import bits
from equalbits.runtime.format import to_chunks
from equalbits.runtime.network import Network
from equalbits.runtime.op_specs import connections

_SUMMARY = ("layer", "kind", "output", "symbols", "real", "bytes packed", "MACs 1×1", "MACs 1×32", "MACs 32×32")
_AUDIT = ("layer", "filters", "weights each", "of −1", "of 0", "of +1", "expected", "entropy", "exact")


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
    def expected(self) -> NDArray[np.int64] | None:
        """Promised number of +1 of each filter; None where no share is promised."""
        if self.p_pos is None:
            return None
        kept = (self.positive + self.negative).tolist()
        return np.array([bits.positive_count(count, self.p_pos) for count in kept])

    @property
    def wrong(self) -> int:
        """Number of filters without exactly the promised share; 0 where none is promised."""
        return 0 if self.expected is None else int((self.expected != self.positive).sum())

    @property
    def entropy(self) -> float | None:
        """Mean entropy over filters in bits, without filters of zeros; None where there are no others."""
        kept = self.positive + self.negative
        share = self.positive[kept > 0] / kept[kept > 0]
        shares = np.stack([share, 1 - share])
        logs = np.log2(shares, where=shares > 0, out=np.zeros_like(shares))
        return abs(float((shares * logs).sum(axis=0).mean())) if len(share) else None


@dataclass(frozen=True)
class PackedAudit:
    """Audit of a whole file."""

    layers: tuple[PackedLayerAudit, ...]

    @property
    def holds(self) -> bool:
        """True if every filter of every layer that promises a share of +1 has it exactly."""
        return all(layer.wrong == 0 for layer in self.layers)

    def __str__(self) -> str:
        promised = [layer for layer in self.layers if layer.p_pos is not None]
        filters, off = sum(len(layer.positive) for layer in promised), sum(layer.wrong for layer in promised)
        text = f"{format_table(_AUDIT, map(_audit_row, self.layers), left=(0, 8))}\n"
        text += f"{len(promised)} of {len(self.layers)} layers promise a share of +1"
        if promised:
            text += f"; {off:,} of {filters:,} filters are not exact" if off else f"; all {filters:,} filters are exact"
        if zeros := sum(int(layer.pruned.sum()) for layer in self.layers):
            weights = sum(layer.pruned.size * layer.connections for layer in self.layers)
            text += f"\n{zeros:,} of {weights:,} weights are 0 ({zeros / weights:.2%})"
            if empty := sum(int((layer.pruned == layer.connections).sum()) for layer in self.layers):
                text += f"; {empty:,} of {sum(len(layer.positive) for layer in self.layers):,} filters are all zeros"
        return text


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
        counts, rows = [], []
        for layer in self.layers:
            mixed, real = (layer.real_macs, 0) if layer.has_bits else (0, layer.real_macs)
            weights = (layer.binary_weights, layer.real_weights, layer.stored_bytes)
            counts.append((*weights, layer.binary_macs, mixed, real))
            shape = "×".join(map(str, layer.shape))
            rows.append((escape_control_chars(layer.name), layer.kind, shape, *map(_figure, counts[-1])))
        rows.append(("total", "", "", *(_figure(sum(column)) for column in zip(*counts, strict=True))))
        names = self.file_bytes - self.total("stored_bytes")
        last = f"the file: {self.file_bytes:,} bytes, {names:,} of them the table of what is where"
        return f"{format_table(_SUMMARY, rows, left=(0, 1, 2))}\n{last}"


def audit(network: Network) -> PackedAudit:
    """Count the symbols of every binary layer, filter by filter."""
    layers = []
    for place, operation in network.binary_layers():
        symbols = network.symbols(place)
        positive, negative = ((symbols == symbol).sum(axis=1) for symbol in (1, -1))
        share = operation.settings["p_pos"]
        layers.append(PackedLayerAudit(network.layer_name(place), symbols.shape[1], share, positive, negative))
    return PackedAudit(tuple(layers))


def summarize(network: Network) -> PackedSummary:
    """Summarize weights, bytes and products of every operation. A product is 1-bit where both factors are ±1."""
    signs, seen, layers = _signed_values(network), set[str](), []
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
                name=network.layer_name(place),
                kind=operation.kind,
                shape=shape,
                binary_weights=width * len(arrays["weight"]) if bit_weights and "weight" in fresh else 0,
                real_weights=sum(array.size for array in fresh.values() if array.dtype != np.uint8),
                stored_bytes=sum(array.nbytes for array in fresh.values()),
                binary_macs=macs if one_bit else 0,
                real_macs=0 if one_bit else macs,
                has_bits=bit_weights,
            )
        )
    return PackedSummary(network.input_shape, tuple(layers), sum(map(len, to_chunks(network))))


def _signed_values(network: Network) -> set[int]:
    """Return the values that hold only ±1: made by ``sign``, or by moving such values."""
    signs: set[int] = set()
    moving = {"concat", "flatten", "reshape", "permute", "channel_shuffle", "slice", "max_pool"}
    for place, operation in enumerate(network.operations):
        if operation.kind == "sign" or (operation.kind in moving and signs.issuperset(operation.inputs)):
            signs.add(place + 1)
    return signs


def _audit_row(layer: PackedLayerAudit) -> tuple[str, ...]:
    expected, entropy = "–" if layer.expected is None else format_range(layer.expected), layer.entropy
    exact = "–" if layer.expected is None else f"no: {layer.wrong}" if layer.wrong else "yes"
    counted = (format_range(found) for found in (layer.negative, layer.pruned, layer.positive))
    sizes = (_figure(len(layer.positive)), _figure(layer.connections))
    share = "–" if entropy is None else f"{entropy:.4f}"
    return (escape_control_chars(layer.name), *sizes, *counted, expected, share, exact)


def _figure(count: int) -> str:
    return f"{count:,}" if count else "–"
