"""Text tables of a packed file, with the columns of :mod:`equalbits.analysis`."""

from typing import TYPE_CHECKING

import numpy as np

from equalbits._text import escape_control_chars, format_range, format_table
from equalbits.runtime import bits

if TYPE_CHECKING:
    from equalbits.runtime.audit import PackedAudit, PackedLayerAudit, PackedLayerSummary, PackedSummary

_SUMMARY = ("layer", "kind", "output", "symbols", "real", "bytes packed", "MACs 1×1", "MACs 1×32", "MACs 32×32")
_AUDIT = ("layer", "filters", "weights each", "of −1", "of 0", "of +1", "expected", "entropy", "exact")


def summary_table(summary: "PackedSummary") -> str:
    """Return a table of the output shape, weights, bytes and products of each operation, for one image."""
    counts = list(map(_counts, summary.layers))
    rows = [
        (escape_control_chars(layer.name), layer.kind, "×".join(map(str, layer.shape)), *map(_figure, each))
        for layer, each in zip(summary.layers, counts, strict=True)
    ]
    total = ("total", "", "", *(_figure(sum(column)) for column in zip(*counts, strict=True)))
    names = summary.file_bytes - summary.total("stored_bytes")
    last = f"the file: {summary.file_bytes:,} bytes, {names:,} of them the table of what is where"
    return f"{format_table(_SUMMARY, [*rows, total], left=(0, 1, 2))}\n{last}"


def audit_table(report: "PackedAudit") -> str:
    """Return a table of the symbols per filter, and whether each layer has its promised share of +1."""
    promised = [layer for layer in report.layers if layer.p_pos is not None]
    filters, off = sum(len(layer.positive) for layer in promised), sum(layer.wrong for layer in promised)
    verdict = f"{off:,} of {filters:,} filters are not exact" if off else f"all {filters:,} filters are exact"
    promise = f"{len(promised)} of {len(report.layers)} layers promise a share of +1"
    table = format_table(_AUDIT, map(_audit_row, report.layers), left=(0, 8))
    return f"{table}\n{promise}" + (f"; {verdict}" if promised else "") + _pruned(report)


def _pruned(report: "PackedAudit") -> str:
    """Return a line on pruned weights; "" where there are none."""
    zeros = sum(int(layer.pruned.sum()) for layer in report.layers)
    weights = sum(len(layer.positive) * layer.connections for layer in report.layers)
    empty = sum(int((layer.pruned == layer.connections).sum()) for layer in report.layers)
    filters = sum(len(layer.positive) for layer in report.layers)
    left = f"; {empty:,} of {filters:,} filters are all zeros" if empty else ""
    return f"\n{zeros:,} of {weights:,} weights are 0 ({zeros / weights:.2%}){left}" if zeros else ""


def _counts(layer: "PackedLayerSummary") -> tuple[int, ...]:
    mixed, real = (layer.real_macs, 0) if layer.has_bits else (0, layer.real_macs)
    return (layer.binary_weights, layer.real_weights, layer.stored_bytes, layer.binary_macs, mixed, real)


def _audit_row(layer: "PackedLayerAudit") -> tuple[str, ...]:
    asked, exact = "–", "–"
    if layer.p_pos is not None:
        kept = (layer.positive + layer.negative).tolist()
        asked = format_range(np.array([bits.positive_count(count, layer.p_pos) for count in kept]))
        exact = f"no: {layer.wrong}" if layer.wrong else "yes"
    counted = (format_range(found) for found in (layer.negative, layer.pruned, layer.positive))
    sizes = (_figure(len(layer.positive)), _figure(layer.connections))
    return (escape_control_chars(layer.name), *sizes, *counted, asked, _entropy(layer), exact)


def _entropy(layer: "PackedLayerAudit") -> str:
    """Return the mean entropy over filters in bits; filters of zeros are left out."""
    kept = layer.positive + layer.negative
    share = layer.positive[kept > 0] / kept[kept > 0]
    shares = np.stack([share, 1 - share])
    logs = np.log2(shares, where=shares > 0, out=np.zeros_like(shares))
    return f"{abs((shares * logs).sum(axis=0).mean()):.4f}" if len(share) else "–"


def _figure(count: int) -> str:
    return f"{count:,}" if count else "–"
