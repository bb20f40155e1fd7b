"""Tables of runs and of the bits of their trained nets, ready for the templates: every cell is text.

Bits are counted from stored weights: share of +1, exactness, entropy, packed size. Runs without stored weights, such as
those of a comparison, are left out.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from equalbits._text import format_range, one_line, size_ratio
from equalbits.analysis import Audit, LayerAudit, Summary, audit, summarize
from equalbits.nn import BinaryLayer
from equalbits.recipes import DataSpec, RunRecord, last_weights, load_run
from equalbits.report.find_outputs import RunFiles
from equalbits.training import Score


@dataclass(frozen=True)
class ReportTable:
    """Caption, header and rows. The first column and ``text_columns`` are aligned to the left.

    With ``cards`` a narrow screen shows each row as a card instead of a table that scrolls sideways.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: Sequence[str] = ()
    cards: bool = False


def verdict(text: str, good: bool | None) -> str:
    """Return text colored as good or bad; plain where ``good`` is None."""
    return text if good is None else Markup('<span class="{}">{}</span>').format("yes" if good else "no", text)


def case_name(run: RunFiles, within: Path) -> str:
    """Return the case a run belongs to: its folder without the one of the seed."""
    parts = run.path.relative_to(within).parts
    kept = parts[:-1] if len(parts) > 1 and parts[-1].startswith("seed") else parts
    return "/".join(kept) or run.path.name


def score_table(run: RunRecord) -> ReportTable:
    """Scores of the last and of the best epoch of one run."""
    header = ("which", "epoch", "test accuracy", "correct", "test loss", "train accuracy", "train loss")
    rows = []
    for which, (epoch, test) in zip(("last", "best"), run.scored, strict=True):
        train = [f"{epoch.train.accuracy:.2f} %", f"{epoch.train.loss:.4f}"]
        rows.append([which, str(epoch.epoch), f"{test.accuracy:.2f} %", _correct(test), f"{test.loss:.4f}", *train])
    return ReportTable("Last epoch, and best epoch (selected on the test images)", header, rows)


def _correct(score: Score) -> str:
    return f"{score.correct:,} of {score.total:,}"


def epoch_table(run: RunFiles) -> ReportTable:
    """Loss and accuracy of every epoch of one run."""
    header = ("epoch", "train loss", "train accuracy, %", "test loss", "test accuracy, %", "learning rate")
    rows = []
    for record in run.epochs:
        test = ["–", "–"] if record.test is None else [f"{record.test.loss:.4f}", f"{record.test.accuracy:.2f}"]
        train = [f"{record.train.loss:.4f}", f"{record.train.accuracy:.2f}"]
        rows.append([str(record.epoch), *train, *test, f"{record.lr:.3g}"])
    return ReportTable("Loss and accuracy of every epoch", header, rows)


def cases_of(runs: Iterable[RunFiles], within: Path) -> dict[str, list[RunRecord]]:
    """Return the finished runs of each case."""
    cases: dict[str, list[RunRecord]] = {}
    for run in runs:
        if run.finished:
            cases.setdefault(case_name(run, within), []).append(run.finished)
    return cases


def case_table(runs: Iterable[RunFiles], within: Path) -> ReportTable | None:
    """Mean and deviation over the seeds of each case; None where no run has finished."""
    header = ("case", "last epoch, %", "n", "best epoch, %", "seconds per run")
    rows = []
    for name, some in cases_of(runs, within).items():
        last, best = zip(*([test.accuracy for _, test in run.scored] for run in some), strict=True)
        deviation = f" ± {statistics.stdev(last):.2f}" if len(last) > 1 else ""
        seconds = f"{statistics.fmean(run.seconds for run in some):.1f}"
        mean = f"{statistics.fmean(last):.2f}{deviation}"
        rows.append([name, mean, str(len(some)), f"{statistics.fmean(best):.2f}", seconds])
    return ReportTable("Test accuracy: mean ± sample standard deviation over seeds", header, rows) if rows else None


def run_table(runs: Sequence[RunFiles], within: Path) -> ReportTable:
    """Test accuracy of each run, or its state where it has none."""
    header = ("run", "seed", "last epoch, %", "correct", "best epoch, %", "seconds")
    rows = []
    for run in runs:
        name, seed = run.path.relative_to(within).as_posix(), str(run.record.seed) if run.record else "–"
        if run.finished:
            (_, last), (epoch, best) = run.finished.scored
            scores = [f"{last.accuracy:.2f}", _correct(last), f"{best.accuracy:.2f} (epoch {epoch.epoch})"]
            rows.append([name, seed, *scores, f"{run.finished.seconds:.1f}"])
        else:
            reason = run.error or (f"diverged: {run.record.error}" if run.record else "")
            rows.append([name, seed, reason or f"not finished, epochs done: {len(run.epochs)}", "–", "–", "–"])
    return ReportTable("Test accuracy of every run", header, rows)


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
