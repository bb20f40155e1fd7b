"""Audit of the symbols of any network, which prints as a table: how many are +1 in each filter, and how many should."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from equalbits._text import escape_control_chars, format_range, format_table, html_table
from equalbits.runtime import bits
from equalbits.runtime.network import Network

Counts = bits.Counts
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


def _audit_row(layer: LayerAudit) -> tuple[str, ...]:
    name, mean = escape_control_chars(layer.name) or "(model)", layer.mean_entropy
    counts = (format_range(found) for found in (layer.negative, layer.zero, layer.positive))
    expected = "–" if layer.expected is None else format_range(layer.expected)
    entropy = "–" if mean is None else f"{mean:.4f}"
    exact = {None: "–", True: "yes", False: f"no: {len(layer.inexact)}"}[layer.exact]
    return (name, f"{layer.filters:,}×{layer.connections:,}", *counts, expected, entropy, exact)
