"""Count the symbols of every filter and check that each promised share of +1 is exact."""

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
    """A filter does not have the share of +1 that its quantizer promises."""


@dataclass(frozen=True, eq=False)
class LayerAudit:
    """Symbol counts of one layer, per filter.

    ``expected`` is the number of +1 that the quantizer promises for each filter, None where it promises no share. In a
    pruned filter the share is taken among the symbols other than 0. ``signs_agree`` is True for a filter whose weight
    in the forward pass has the signs that were counted.
    """

    name: str
    quantizer: str
    p_pos: float | None
    negative: Tensor
    zero: Tensor
    positive: Tensor
    expected: Tensor | None
    signs_agree: Tensor

    @property
    def filters(self) -> int:
        """Number of filters."""
        return len(self.positive)

    @property
    def connections(self) -> int:
        """Number of symbols per filter."""
        return int(self.negative[0] + self.zero[0] + self.positive[0]) if self.filters else 0

    @property
    def entropy(self) -> Tensor:
        """Entropy of each filter, in bits; NaN where all symbols are 0."""
        return F.binary_entropy(self.positive / (self.negative + self.positive))

    @property
    def excess(self) -> Tensor | None:
        """Number of +1 above what is expected, per filter; negative where there are too few."""
        return None if self.expected is None else self.positive - self.expected

    @property
    def inexact(self) -> Tensor:
        """Indices of the filters that break the promise; empty where there is no promise."""
        if self.excess is None:
            return torch.zeros(0, dtype=torch.long, device="cpu")
        return ((self.excess != 0) | ~self.signs_agree).nonzero().flatten()

    @property
    def exact(self) -> bool | None:
        """True if every filter keeps the promise; None where there is none."""
        return None if self.expected is None else len(self.inexact) == 0

    def as_dict(self) -> dict[str, Any]:
        """Return the counts, for JSON."""
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
            "expected": None if self.expected is None else self.expected.tolist(),
            "excess": None if self.excess is None else self.excess.tolist(),
            "entropy": entropy,
        }


@dataclass(frozen=True, eq=False)
class Audit:
    """Result of :func:`audit`; ``print`` it for a table."""

    layers: tuple[LayerAudit, ...]

    @property
    def exact(self) -> bool:
        """True if every promised share is exact in every filter."""
        return all(layer.exact is not False for layer in self.layers)

    def as_dict(self) -> dict[str, Any]:
        """Return the counts, for JSON."""
        return {"exact": self.exact, "layers": [layer.as_dict() for layer in self.layers]}

    def __str__(self) -> str:
        header = ("layer", "filters", "weights each", "of −1", "of 0", "of +1", "expected", "entropy", "exact")
        promised = [layer for layer in self.layers if layer.expected is not None]
        filters, inexact = sum(layer.filters for layer in promised), sum(len(layer.inexact) for layer in promised)
        verdict = (
            f"{inexact:,} of {filters:,} filters are not exact" if inexact else f"all {filters:,} filters are exact"
        )
        promise = f"{len(promised)} of {len(self.layers)} layers promise a share of +1"
        lines = [
            format_table(header, map(_row, self.layers), left=(0, 8)),
            promise + (f"; {verdict}" if promised else ""),
        ]
        return "\n".join(lines + _pruned_line(self.layers))


def audit(model: nn.Module, *, strict: bool = True) -> Audit:
    """Count −1, 0 and +1 in every filter of every binary layer, and check the share that each quantizer promises.

    A quantizer promises a share when its ``p_pos`` is not None. Each filter must then have exactly
    ``floor(p_pos · D + ½)`` of +1 among its ``D`` symbols other than 0, and the weight of the forward pass must have
    these signs. With ``strict`` a violation raises :class:`AuditError`; otherwise the report lists it. Methods that
    promise no share are only counted. Latents that are not finite always raise.

    >>> from equalbits.nn import BinaryLinear, Sign
    >>> print(audit(nn.Sequential(BinaryLinear(9, 4), BinaryLinear(4, 2, weight_quantizer=Sign()))))
    layer  filters  weights each  of −1  of 0  of +1  expected  entropy  exact
    0            4             9      4     0      5         5   0.9911  yes
    1            2             4    ...
    1 of 2 layers promise a share of +1; all 4 filters are exact
    """
    report = Audit(tuple(_count(name, layer) for name, layer in binary_layers(model).items()))
    if strict and not report.exact:
        raise AuditError(_first_violation(report))
    return report


@torch.no_grad()
def _count(name: str, layer: BinaryLayer) -> LayerAudit:
    try:
        symbols = layer.symbols()
        check_finite(layer.latents())  # the sign alone would count NaN as -1
    except ValueError as error:
        raise AuditError(f"layer {name!r}: {error}") from error
    rows, p_pos = as_filters(symbols), layer.weight_quantizer.p_pos
    negative, zero, positive = ((rows.sign() == symbol).sum(dim=1).cpu() for symbol in (-1, 0, 1))
    expected, signs_agree = None, torch.ones_like(positive, dtype=torch.bool)
    if p_pos is not None:
        counts = [positive_count(kept, p_pos) for kept in (negative + positive).tolist()]
        expected = torch.tensor(counts, dtype=torch.long, device="cpu")
        with parametrization_in_eval(layer):
            values = as_filters(layer.to_filters(layer.binary_weight()))
        signs_agree = (values.sign() == rows).all(dim=1).cpu()
    return LayerAudit(name, repr(layer.weight_quantizer), p_pos, negative, zero, positive, expected, signs_agree)


def _first_violation(report: Audit) -> str:
    """Return the error text: the first filter that is not exact, and the number of them."""
    broken = [layer for layer in report.layers if layer.exact is False]
    layer, filter_ = broken[0], int(broken[0].inexact[0])
    assert layer.expected is not None
    kept = int(layer.negative[filter_] + layer.positive[filter_])
    cause = layer.quantizer
    if layer.signs_agree[filter_]:
        expected, found = int(layer.expected[filter_]), int(layer.positive[filter_])
        problem = f"has {found} of +1 among {kept} weights, but p_pos={layer.p_pos} requires {expected}"
    else:
        problem = "has a weight whose signs differ from its symbols"
        cause += ", or a layer scale that is not positive"
    total = sum(len(each.inexact) for each in broken)
    return (
        f"layer {layer.name!r}, filter {filter_} {problem}; {total} filters in {len(broken)} layers are not exact. "
        f"Likely cause: {cause}. audit(model, strict=False) shows all counts"
    )


def _pruned_line(layers: tuple[LayerAudit, ...]) -> list[str]:
    """Return a line on the number of pruned weights; nothing where none is pruned."""
    zeros = sum(int(layer.zero.sum()) for layer in layers)
    weights = sum(layer.filters * layer.connections for layer in layers)
    empty = sum(int((layer.zero == layer.connections).sum()) for layer in layers)
    left = f"; {empty:,} of {sum(layer.filters for layer in layers):,} filters are all zeros" if empty else ""
    return [f"{zeros:,} of {weights:,} weights are 0 ({zeros / weights:.2%}){left}"] if zeros else []


def _row(layer: LayerAudit) -> tuple[str, ...]:
    counts = (format_range(layer.negative), format_range(layer.zero), format_range(layer.positive))
    expected = "–" if layer.expected is None else format_range(layer.expected)
    verdict = {None: "–", True: "yes", False: f"no: {len(layer.inexact)}"}[layer.exact]
    mean = float(layer.entropy.nanmean())  # NaN where every filter is all zeros
    entropy = "–" if math.isnan(mean) else f"{mean:.4f}"
    return (
        layer.name or "(model)",
        f"{layer.filters:,}",
        f"{layer.connections:,}",
        *counts,
        expected,
        entropy,
        verdict,
    )
