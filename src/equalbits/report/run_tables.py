"""Tables of runs, ready for the templates: every cell is text."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from equalbits.recipes import RunRecord
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
