"""``audit``: count the symbols of every filter and prove that each share that was promised is held, to the weight."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from equalbits import functional as F
from equalbits._text import format_range, format_table
from equalbits.analysis.observe import binary_layers
from equalbits.functional import as_filters, check_finite, positive_count
from equalbits.nn import BinaryLayer, parametrization_in_eval


class AuditError(ValueError):
    """A filter does not hold the share of +1 that its quantizer promises."""


@dataclass(frozen=True, eq=False)
class LayerAudit:
    """The symbols of one layer, counted filter by filter.

    ``asked`` is how many of +1 the quantizer promises to each filter, None where it promises no share. A pruned
    filter's share counts among the symbols that are not 0. ``faithful`` says of each filter whether the layer
    multiplies with the signs it was counted by.
    """

    name: str
    quantizer: str
    p_pos: float | None
    negative: Tensor
    zero: Tensor
    positive: Tensor
    asked: Tensor | None
    faithful: Tensor

    @property
    def filters(self) -> int:
        """How many filters the layer has."""
        return len(self.positive)

    @property
    def connections(self) -> int:
        """How many symbols a filter has."""
        return int(self.negative[0] + self.zero[0] + self.positive[0]) if self.filters else 0

    @property
    def entropy(self) -> Tensor:
        """Bits of entropy of each filter; NaN for one with nothing but zeros."""
        return F.binary_entropy(self.positive / (self.negative + self.positive))

    @property
    def distance(self) -> Tensor | None:
        """How many of +1 each filter has too many (or, below 0, too few), in whole weights."""
        return None if self.asked is None else self.positive - self.asked

    @property
    def off(self) -> Tensor:
        """The filters that break the promise; none where there is no promise."""
        if self.distance is None:
            return torch.zeros(0, dtype=torch.long, device="cpu")
        return ((self.distance != 0) | ~self.faithful).nonzero().flatten()

    @property
    def exact(self) -> bool | None:
        """Whether every filter holds what was promised; None where nothing was."""
        return None if self.asked is None else len(self.off) == 0

    def as_dict(self) -> dict[str, Any]:
        """The counts, for JSON."""
        entropy = [None if value != value else value for value in self.entropy.tolist()]
        return {
            "name": self.name,
            "quantizer": self.quantizer,
            "p_pos": self.p_pos,
            "filters": self.filters,
            "connections": self.connections,
            "exact": self.exact,
            "negative": self.negative.tolist(),
            "zero": self.zero.tolist(),
            "positive": self.positive.tolist(),
            "asked": None if self.asked is None else self.asked.tolist(),
            "distance": None if self.distance is None else self.distance.tolist(),
            "entropy": entropy,
        }


@dataclass(frozen=True, eq=False)
class Audit:
    """What :func:`audit` found, layer by layer. ``print`` it for a table."""

    layers: tuple[LayerAudit, ...]

    @property
    def exact(self) -> bool:
        """Whether every promised share is held in every filter."""
        return all(layer.exact is not False for layer in self.layers)

    def as_dict(self) -> dict[str, Any]:
        """The counts, for JSON."""
        return {"exact": self.exact, "layers": [layer.as_dict() for layer in self.layers]}

    def __str__(self) -> str:
        header = ("layer", "filters", "weights each", "of −1", "of 0", "of +1", "asked", "entropy", "exact")
        promised = [layer for layer in self.layers if layer.asked is not None]
        filters, off = sum(layer.filters for layer in promised), sum(len(layer.off) for layer in promised)
        verdict = f"all {filters:,} filters hold it" if not off else f"{off:,} of {filters:,} filters do not hold it"
        promise = f"{len(promised)} of {len(self.layers)} layers promise a share of +1"
        lines = [
            format_table(header, map(_row, self.layers), left=(0, 8)),
            promise + (f"; {verdict}" if promised else ""),
        ]
        return "\n".join(lines + _pruned(self.layers))


def audit(model: nn.Module, *, strict: bool = True) -> Audit:
    """Count −1, 0 and +1 in every filter of every binary layer, and hold each quantizer to the share it promises.

    A quantizer promises a share when its ``p_pos`` is not None; then each filter must have exactly
    ``floor(p_pos · D + ½)`` of +1 among its ``D`` symbols that are not 0, and the layer must multiply with just these
    signs. ``strict`` raises :class:`AuditError` at the first filter that does not; otherwise the report says so.
    Methods that promise nothing are counted, never failed; but latents that are not finite have no symbols to count.

    >>> from equalbits.nn import BinaryLinear, Sign
    >>> print(audit(nn.Sequential(BinaryLinear(9, 4), BinaryLinear(4, 2, weight_quantizer=Sign()))))
    layer  filters  weights each  of −1  of 0  of +1  asked  entropy  exact
    0            4             9      4     0      5      5   0.9911  yes
    1            2             4    ...
    1 of 2 layers promise a share of +1; all 4 filters hold it
    """
    report = Audit(tuple(_count(name, layer) for name, layer in binary_layers(model).items()))
    if strict and not report.exact:
        raise AuditError(_complaint(report))
    return report


@torch.no_grad()
def _count(name: str, layer: BinaryLayer) -> LayerAudit:
    try:
        symbols = layer.symbols()
        check_finite(layer.latents())  # which a sign does not show: NaN counts as -1
    except ValueError as error:
        raise AuditError(f"layer {name!r}: {error}") from error
    rows, p_pos = as_filters(symbols), layer.weight_quantizer.p_pos
    negative, zero, positive = ((rows.sign() == symbol).sum(dim=1).cpu() for symbol in (-1, 0, 1))
    asked, faithful = None, torch.ones_like(positive, dtype=torch.bool)
    if p_pos is not None:
        counts = [positive_count(kept, p_pos) for kept in (negative + positive).tolist()]
        asked = torch.tensor(counts, dtype=torch.long, device="cpu")
        with parametrization_in_eval(layer):
            values = as_filters(layer.to_filters(layer.binary_weight()))
        faithful = (values.sign() == rows).all(dim=1).cpu()
    return LayerAudit(name, repr(layer.weight_quantizer), p_pos, negative, zero, positive, asked, faithful)


def _complaint(report: Audit) -> str:
    """Name the first filter that is off, and say how many are."""
    broken = [layer for layer in report.layers if layer.exact is False]
    layer, filter_ = broken[0], int(broken[0].off[0])
    assert layer.asked is not None
    kept = int(layer.negative[filter_] + layer.positive[filter_])
    culprit = layer.quantizer
    if layer.faithful[filter_]:
        asked, found = int(layer.asked[filter_]), int(layer.positive[filter_])
        what = f"has {found} of +1 among {kept}, and p_pos={layer.p_pos} asks for {asked}"
    else:
        what = "multiplies with other signs than its symbols"
        culprit += ", or in the layer's scale where it is not above 0"
    total = sum(len(each.off) for each in broken)
    return (
        f"layer {layer.name!r}, filter {filter_} {what}; {total} filters in {len(broken)} layers are off. "
        f"The fault is in {culprit}: audit(model, strict=False) shows every count"
    )


def _pruned(layers: tuple[LayerAudit, ...]) -> list[str]:
    """A line on how many weights of all layers are 0; none where none is."""
    zeros = sum(int(layer.zero.sum()) for layer in layers)
    weights = sum(layer.filters * layer.connections for layer in layers)
    empty = sum(int((layer.zero == layer.connections).sum()) for layer in layers)
    left = f"; {empty:,} of {sum(layer.filters for layer in layers):,} filters have none left" if empty else ""
    return [f"{zeros:,} of {weights:,} weights are 0 ({zeros / weights:.2%}){left}"] if zeros else []


def _row(layer: LayerAudit) -> tuple[str, ...]:
    counts = (format_range(layer.negative), format_range(layer.zero), format_range(layer.positive))
    asked = "–" if layer.asked is None else format_range(layer.asked)
    verdict = {None: "–", True: "yes", False: f"no: {len(layer.off)}"}[layer.exact]
    mean = float(layer.entropy.nanmean())  # NaN where every filter is empty
    entropy = "–" if math.isnan(mean) else f"{mean:.4f}"
    return (layer.name or "(model)", f"{layer.filters:,}", f"{layer.connections:,}", *counts, asked, entropy, verdict)
