"""Bits of trained nets, counted from their stored weights: share of +1, exactness, entropy, packed size.

Runs without stored weights, such as those of a stack, are left out.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from equalbits._text import format_range, size_ratio
from equalbits.analysis import Audit, LayerAudit, Summary, audit, summarize
from equalbits.nn import BinaryLayer
from equalbits.recipes import DataSpec, last_weights, load_run
from equalbits.report.find_outputs import RunFiles, one_line
from equalbits.report.run_tables import ReportTable, verdict

#: Bytes of weights read for one table, so that the report of many large nets stays fast.
MAX_BYTES = 256 * 2**20


class BitSection(NamedTuple):
    """Table of bits, a line below it, and the errors of weights that could not be read."""

    table: ReportTable | None = None
    note: str = ""
    errors: Sequence[str] = ()


def count_bits(folder: Path) -> tuple[Audit, Summary] | None:
    """Count the bits of a run's last weights; None where it has none. Unreadable weights raise a ValueError."""
    if not all(path.is_file() for path in (last_weights(folder), folder / "model.json", folder / "recipe.toml")):
        return None
    try:
        model = load_run(folder).model
        if not any(isinstance(layer, BinaryLayer) for layer in model.modules()):
            return None
        images = DataSpec.read(folder / "model.json")
        return audit(model, strict=False), summarize(model, (1, images.channels, images.size, images.size))
    except (TypeError, RuntimeError, MemoryError, OSError) as error:  # as weights of another shape raise
        raise ValueError(f"{type(error).__name__}: {error}") from error


def layer_bits(run: RunFiles) -> BitSection:
    """A row per binary layer of one run, and the size of the packed file."""
    try:
        found = count_bits(run.path)
    except ValueError as error:
        return BitSection(errors=[one_line(error)])
    if found is None:
        return BitSection()
    counts, summary = found
    total, packed = summary.total, {layer.name: layer.packed_bytes for layer in summary.layers}
    header = ("layer", "filters", "weights per filter", "+1 requested", "+1 found", "exact", "entropy, bits", "bytes")
    rows = [[*_layer_cells(layer), f"{packed[layer.name]:,}"] for layer in counts.layers]
    filters = counts.promised_filters
    shares = f"Filters with exactly the requested share of +1: {filters - counts.inexact_filters:,} of {filters:,}."
    note = (
        f"{shares if filters else 'The method guarantees no share of +1.'} "
        f"Packed size: {total['packed_bytes']:,} bytes without the file's header, "
        f"{size_ratio(total['packed_bytes'], total['float32_bytes'])} {total['float32_bytes']:,} in float32."
    )
    return BitSection(ReportTable("Bits of the last epoch; a range where filters differ", header, rows), note)


def run_bits(runs: Sequence[RunFiles], within: Path) -> BitSection:
    """A row per run with stored weights; runs beyond :data:`MAX_BYTES` are counted but not read."""
    rows, errors, skipped, read = [], [], 0, 0
    for run in runs:
        path = last_weights(run.path)
        read += path.stat().st_size if path.is_file() else 0
        if read > MAX_BYTES:
            skipped += path.is_file()
            continue
        name = run.path.relative_to(within).as_posix()
        try:
            if (found := count_bits(run.path)) is not None:
                rows.append([name, *_run_cells(*found)])
        except ValueError as error:
            errors.append(f"{name}: {one_line(error)}")
    header = ("run", "filters as requested", "entropy, bits", "packed bytes", "times smaller")
    table = ReportTable("Bits of the last epoch", header, rows) if rows else None
    note = f"Not counted because of their size: {skipped} more. equalbits inspect counts one." if skipped else ""
    return BitSection(table, note, errors)


def _layer_cells(layer: LayerAudit) -> list[str]:
    exact = {None: "–", True: "yes", False: f"no: {len(layer.inexact)}"}[layer.exact]
    return [
        layer.name or "(model)",
        f"{layer.filters:,}",
        f"{layer.connections:,}",
        "none" if layer.expected is None else f"{format_range(layer.expected)} ({100 * (layer.p_pos or 0.0):g} %)",
        f"{format_range(layer.positive)} ({_shares(layer)})",
        verdict(exact, layer.exact),
        "–" if layer.mean_entropy is None else f"{layer.mean_entropy:.5f}",
    ]


def _run_cells(counts: Audit, summary: Summary) -> list[str]:
    filters, every = counts.promised_filters, sum(layer.filters for layer in counts.layers)
    entropy = sum(np.nansum(layer.entropy) for layer in counts.layers) / max(1, every)
    exact = f"{filters - counts.inexact_filters:,} of {filters:,}"
    held = verdict(exact, counts.exact) if filters else "none requested"
    return [held, f"{entropy:.5f}", f"{summary.total['packed_bytes']:,}", f"{summary.compression:.1f}"]


def _shares(layer: LayerAudit) -> str:
    """Range of the share of +1 among weights that are not pruned, in per cent."""
    kept = layer.negative + layer.positive
    if not kept.any():
        return "–"
    shares = 100 * layer.positive[kept > 0] / kept[kept > 0]
    low, high = f"{shares.min():.1f}", f"{shares.max():.1f}"
    return f"{low} %" if low == high else f"{low}…{high} %"
