"""A packed file's tables for people, in the words that :mod:`equalbits.analysis` has for a run's model."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from equalbits.runtime import bits

if TYPE_CHECKING:
    from equalbits.runtime.report import Audit, LayerAudit, LayerSummary, Summary

_SUMMARY = ("layer", "kind", "output", "symbols", "real", "bytes packed", "MACs 1×1", "MACs 1×32", "MACs 32×32")
_AUDIT = ("layer", "filters", "weights each", "of −1", "of 0", "of +1", "asked", "entropy", "exact")


def on_one_line(text: str) -> str:
    r"""A text of a file as it may be shown: what would break the line, or move a terminal's cursor, is spelt out.

    >>> print(on_one_line("naïve\x1b[2J\n"))
    naïve\x1b[2J\n
    """
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def summary_table(summary: "Summary") -> str:
    """What each operation gives, holds and costs, for one image."""
    counts = list(map(_counts, summary.layers))
    rows = [
        (on_one_line(layer.name), layer.kind, "×".join(map(str, layer.shape)), *map(_figure, each))
        for layer, each in zip(summary.layers, counts, strict=True)
    ]
    total = ("total", "", "", *(_figure(sum(column)) for column in zip(*counts, strict=True)))
    names = summary.file_bytes - summary.total("stored_bytes")
    last = f"the file: {summary.file_bytes:,} bytes, {names:,} of them the table of what is where"
    return f"{_table(_SUMMARY, [*rows, total], left=(0, 1, 2))}\n{last}"


def audit_table(report: "Audit") -> str:
    """The symbols of each filter, and whether it holds the share of +1 that it promises."""
    promised = [layer for layer in report.layers if layer.p_pos is not None]
    filters, off = sum(len(layer.positive) for layer in promised), sum(layer.wrong for layer in promised)
    verdict = f"all {filters:,} filters hold it" if not off else f"{off:,} of {filters:,} filters do not hold it"
    promise = f"{len(promised)} of {len(report.layers)} layers promise a share of +1"
    table = _table(_AUDIT, map(_audit_row, report.layers), left=(0, 8))
    return f"{table}\n{promise}" + (f"; {verdict}" if promised else "") + _pruned(report)


def _pruned(report: "Audit") -> str:
    """A line on how many weights of all layers are 0; nothing where none is."""
    zeros = sum(int(layer.pruned.sum()) for layer in report.layers)
    weights = sum(len(layer.positive) * layer.connections for layer in report.layers)
    empty = sum(int((layer.pruned == layer.connections).sum()) for layer in report.layers)
    filters = sum(len(layer.positive) for layer in report.layers)
    left = f"; {empty:,} of {filters:,} filters have none left" if empty else ""
    return f"\n{zeros:,} of {weights:,} weights are 0 ({zeros / weights:.2%}){left}" if zeros else ""


def _counts(layer: "LayerSummary") -> tuple[int, ...]:
    mixed, real = (layer.real_macs, 0) if layer.has_bits else (0, layer.real_macs)
    return (layer.binary_weights, layer.real_weights, layer.stored_bytes, layer.binary_macs, mixed, real)


def _audit_row(layer: "LayerAudit") -> tuple[str, ...]:
    asked, exact = "–", "–"
    if layer.p_pos is not None:
        kept = (layer.positive + layer.negative).tolist()
        asked = _span(np.array([bits.positive_count(count, layer.p_pos) for count in kept]))
        exact = f"no: {layer.wrong}" if layer.wrong else "yes"
    counted = (_span(found) for found in (layer.negative, layer.pruned, layer.positive))
    sizes = (_figure(len(layer.positive)), _figure(layer.connections))
    return (on_one_line(layer.name), *sizes, *counted, asked, _entropy(layer), exact)


def _entropy(layer: "LayerAudit") -> str:
    """Bits, the mean over filters; those with nothing but zeros have none."""
    kept = layer.positive + layer.negative
    share = layer.positive[kept > 0] / kept[kept > 0]
    shares = np.stack([share, 1 - share])
    logs = np.log2(shares, where=shares > 0, out=np.zeros_like(shares))
    return f"{abs((shares * logs).sum(axis=0).mean()):.4f}" if len(share) else "–"


def _span(counts: NDArray[np.int64]) -> str:
    low, high = int(counts.min()), int(counts.max())
    return f"{low:,}" if low == high else f"{low:,}…{high:,}"


def _figure(count: int) -> str:
    return f"{count:,}" if count else "–"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, left: Sequence[int]) -> str:
    lines = [tuple(header), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [
        [
            cell.ljust(width) if at in left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
    return "\n".join("  ".join(cells).rstrip() for cells in padded)
