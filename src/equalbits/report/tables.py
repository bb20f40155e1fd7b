"""Tables of runs, ready for the templates: every cell is text."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from equalbits.recipes import RunRecord
from equalbits.report.scan import RunFiles
from equalbits.training import EpochRecord, Score


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
    for which, epoch, test in (("last", *_epoch(run.last)), ("best", *_epoch(run.best))):
        train = [f"{epoch.train.accuracy:.2f} %", f"{epoch.train.loss:.4f}"]
        rows.append([which, str(epoch.epoch), f"{test.accuracy:.2f} %", _correct(test), f"{test.loss:.4f}", *train])
    return ReportTable("Last epoch, and best epoch (selected on the test images)", header, rows)


def last_and_best(run: RunRecord) -> tuple[Score, Score]:
    """Return the test scores of the last and of the best epoch of a finished run."""
    return _epoch(run.last)[1], _epoch(run.best)[1]


def _epoch(record: EpochRecord | None) -> tuple[EpochRecord, Score]:
    assert record is not None and record.test is not None  # as RunRecord checks of finished runs
    return record, record.test


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


def case_table(runs: Iterable[RunFiles], within: Path) -> ReportTable | None:
    """Mean and deviation over the seeds of each case; None where no run has finished."""
    cases: dict[str, list[RunRecord]] = {}
    for run in runs:
        if run.finished:
            cases.setdefault(case_name(run, within), []).append(run.finished)
    header = ("case", "last epoch, %", "n", "best epoch, %", "seconds per run")
    rows = [[name, *_case_cells(some)] for name, some in cases.items()]
    return ReportTable("Test accuracy: mean ± sample standard deviation over seeds", header, rows) if rows else None


def _case_cells(runs: Sequence[RunRecord]) -> list[str]:
    last, best = zip(*([score.accuracy for score in last_and_best(run)] for run in runs), strict=True)
    deviation = f" ± {statistics.stdev(last):.2f}" if len(last) > 1 else ""
    seconds = statistics.fmean(run.seconds for run in runs)
    mean = f"{statistics.fmean(last):.2f}{deviation}"
    return [mean, str(len(runs)), f"{statistics.fmean(best):.2f}", f"{seconds:.1f}"]


def run_table(runs: Sequence[RunFiles], within: Path) -> ReportTable:
    """Test accuracy of each run, or its state where it has none."""
    header = ("run", "seed", "last epoch, %", "correct", "best epoch, %", "seconds")
    rows = [[run.path.relative_to(within).as_posix(), *_run_cells(run)] for run in runs]
    return ReportTable("Test accuracy of every run", header, rows)


def _run_cells(run: RunFiles) -> list[str]:
    record = run.finished
    if record is None:
        seed = str(run.record.seed) if run.record else "–"
        reason = run.error or (f"diverged: {run.record.error}" if run.record else "")
        return [seed, reason or f"not finished, epochs done: {len(run.epochs)}", "–", "–", "–"]
    last, best = last_and_best(record)
    epoch = _epoch(record.best)[0].epoch
    accuracies = [f"{last.accuracy:.2f}", _correct(last), f"{best.accuracy:.2f} (epoch {epoch})"]
    return [str(record.seed), *accuracies, f"{record.seconds:.1f}"]
