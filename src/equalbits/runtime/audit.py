"""Audit of the symbols of any network, and summary of a packed one; both print as tables."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from equalbits._text import escape_control_chars, format_range, format_table, html_table, used_columns
from equalbits.runtime import bits
from equalbits.runtime.format import to_chunks
from equalbits.runtime.network import Network

Counts = bits.Counts
_SUMMARY = ("layer", "kind", "output", "symbols", "real", "bytes")
_AUDIT = ("layer", "filters×weights", "of −1", "of 0", "of +1", "expected", "entropy", "exact")


@dataclass(frozen=True, eq=False)
class LayerAudit:
    """Symbol counts of one layer, per filter. ``p_pos`` is the share of +1 that it promises, None where it does not.

    ``signs_agree`` is False for a filter whose weight in the forward pass has other signs than those counted; None
    where no such weight exists, as in a packed file.
    """

    name: str
    p_pos: float | None
    negative: Counts
    zero: Counts
    positive: Counts
    quantizer: str = ""
    signs_agree: NDArray[np.bool_] | None = None

    @property
    def filters(self) -> int:
        """Number of filters."""
        return len(self.positive)

    @property
    def connections(self) -> int:
        """Number of symbols per filter."""
        return int(self.negative[0] + self.zero[0] + self.positive[0]) if self.filters else 0

    @property
    def entropy(self) -> NDArray[np.float64]:
        """Entropy of each filter, in bits; NaN where all symbols are 0."""
        kept = self.negative + self.positive
        shares = np.stack([self.negative, self.positive]) / np.where(kept, kept, np.nan)
        logs = np.log2(shares, where=shares > 0, out=np.zeros_like(shares))
        entropy: NDArray[np.float64] = np.abs((shares * logs).sum(axis=0))
        return entropy

    @property
    def mean_entropy(self) -> float | None:
        """Mean entropy of the filters that are not all zeros; None where there are no others."""
        known = self.entropy[~np.isnan(self.entropy)]
        return float(known.mean()) if len(known) else None

    @property
    def expected(self) -> Counts | None:
        """Promised number of +1 of each filter, among its symbols other than 0; None where no share is promised."""
        if self.p_pos is None:
            return None
        kept = (self.negative + self.positive).tolist()
        return np.array([bits.positive_count(count, self.p_pos) for count in kept], np.int64)

    @property
    def excess(self) -> Counts | None:
        """Number of +1 above what is expected, per filter; negative where there are too few."""
        return None if self.expected is None else self.positive - self.expected

    @property
    def inexact(self) -> Counts:
        """Indices of the filters that break the promise; empty where there is no promise."""
        if self.excess is None:
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.excess if self.signs_agree is None else (self.excess != 0) | ~self.signs_agree)

    @property
    def exact(self) -> bool | None:
        """True if every filter keeps the promise; None where there is none."""
        return None if self.p_pos is None else len(self.inexact) == 0

    def as_dict(self) -> dict[str, object]:
        """Return the counts, for JSON."""
        settings = ("name", "quantizer", "p_pos", "filters", "connections", "exact")
        counts = {name: getattr(self, name) for name in ("negative", "zero", "positive", "expected", "excess")}
        return {
            **{name: getattr(self, name) for name in settings},
            **{name: None if found is None else found.tolist() for name, found in counts.items()},
            "entropy": [None if math.isnan(value) else value for value in self.entropy.tolist()],
        }


@dataclass(frozen=True, eq=False)
class Audit:
    """Audit of a model or of a packed file; ``print`` it for a table."""

    layers: tuple[LayerAudit, ...]

    @property
    def exact(self) -> bool:
        """True if every promised share is exact in every filter."""
        return all(layer.exact is not False for layer in self.layers)

    @property
    def promised_filters(self) -> int:
        """Number of filters whose layer promises a share of +1."""
        return sum(layer.filters for layer in self.layers if layer.p_pos is not None)

    @property
    def inexact_filters(self) -> int:
        """Number of filters that break the promise of their layer."""
        return sum(len(layer.inexact) for layer in self.layers)

    def as_dict(self) -> dict[str, object]:
        """Return the counts, for JSON."""
        return {"exact": self.exact, "layers": [layer.as_dict() for layer in self.layers]}

    def __str__(self) -> str:
        return f"{format_table(_AUDIT, map(_audit_row, self.layers), left=(0, 7))}\n{self._note()}"

    def _repr_html_(self) -> str:
        return html_table(_AUDIT, map(_audit_row, self.layers), left=(0, 7), note=self._note())

    def _note(self) -> str:
        promised, off = self.promised_filters, self.inexact_filters
        layers = sum(layer.p_pos is not None for layer in self.layers)
        text = f"{layers} of {len(self.layers)} layers promise a share of +1"
        if layers:
            text += (
                f"; {off:,} of {promised:,} filters are not exact" if off else f"; all {promised:,} filters are exact"
            )
        if zeros := sum(int(layer.zero.sum()) for layer in self.layers):
            weights = sum(layer.filters * layer.connections for layer in self.layers)
            text += f"\n{zeros:,} of {weights:,} weights are 0 ({zeros / weights:.2%})"
            if empty := sum(int((layer.zero == layer.connections).sum()) for layer in self.layers):
                text += f"; {empty:,} of {sum(layer.filters for layer in self.layers):,} filters are all zeros"
        return text


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
        return used_columns((*_SUMMARY, *(f"MACs {weight}×{given}" for weight, given in pairs)), rows)

    def _note(self) -> str:
        names = self.file_bytes - self.total("stored_bytes")
        return f"the file: {self.file_bytes:,} bytes, of which the header takes {names:,}"


def audit(network: Network) -> Audit:
    """Count the symbols of every binary layer, filter by filter."""
    layers, counted = [], dict[tuple[str, str, int], tuple[Counts, Counts, Counts]]()
    for place, operation in network.binary_layers():
        arrays, width = network.arrays(operation), network.connections(operation)
        key = operation.tensors["weight"], operation.tensors.get("kept", ""), width
        if key not in counted:  # thousands of operations may share one weight
            counted[key] = bits.count_symbols(arrays["weight"], arrays.get("kept"), width)
        layers.append(LayerAudit(network.layer_name(place), operation.settings["p_pos"], *counted[key]))
    return Audit(tuple(layers))


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


def _audit_row(layer: LayerAudit) -> tuple[str, ...]:
    name, mean = escape_control_chars(layer.name) or "(model)", layer.mean_entropy
    counts = (format_range(found) for found in (layer.negative, layer.zero, layer.positive))
    expected = "–" if layer.expected is None else format_range(layer.expected)
    entropy = "–" if mean is None else f"{mean:.4f}"
    exact = {None: "–", True: "yes", False: f"no: {len(layer.inexact)}"}[layer.exact]
    return (name, f"{layer.filters:,}×{layer.connections:,}", *counts, expected, entropy, exact)


def _figure(count: int) -> str:
    return f"{count:,}" if count else "–"
