"""Tables of runs, ready for the templates: every cell is text."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from equalbits.report.scan import RunFiles
from equalbits.training import EpochRecord


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


def score_table(run: RunFiles) -> ReportTable:
    """Scores of the last and of the best epoch of one run."""
    records = {which: EpochRecord.from_dict(run.facts[which]) for which in ("last", "best") if run.facts[which]}
    header = ("which", "epoch", "test accuracy", "correct", "test loss", "train accuracy", "train loss")
    rows = [
        [
            which,
            str(record.epoch),
            f"{record.test.accuracy:.2f} %",
            f"{record.test.correct:,} of {record.test.total:,}",
            f"{record.test.loss:.4f}",
            f"{record.train.accuracy:.2f} %",
            f"{record.train.loss:.4f}",
        ]
        for which, record in records.items()
        if record.test is not None
    ]
    return ReportTable("Last epoch, and best epoch (selected on the test images)", header, rows)


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
    cases: dict[str, list[RunFiles]] = {}
    for run in runs:
        cases.setdefault(case_name(run, within), []).append(run)
    header = ("case", "last epoch, %", "n", "best epoch, %", "seconds per run")
    rows = [[name, *_case_cells(some)] for name, some in cases.items()]
    return ReportTable("Test accuracy: mean ± sample standard deviation over seeds", header, rows) if rows else None


def _case_cells(runs: Sequence[RunFiles]) -> list[str]:
    last, best = ([run.test_accuracy(which) for run in runs] for which in ("last", "best"))
    deviation = f" ± {statistics.stdev(last):.2f}" if len(last) > 1 else ""
    seconds = statistics.fmean(run.facts["seconds"] for run in runs)
    return [
        f"{statistics.fmean(last):.2f}{deviation}",
        str(len(runs)),
        f"{statistics.fmean(best):.2f}",
        f"{seconds:.1f}",
    ]


def run_table(runs: Sequence[RunFiles], within: Path) -> ReportTable:
    """Test accuracy of each run, or its state where it has none."""
    header = ("run", "seed", "last epoch, %", "correct", "best epoch, %", "seconds")
    rows = [[run.path.relative_to(within).as_posix(), *_run_cells(run)] for run in runs]
    return ReportTable("Test accuracy of every run", header, rows)


def _run_cells(run: RunFiles) -> list[str]:
    if run.error or not run.facts or run.facts.get("last") is None:
        reason = run.error or (f"diverged: {run.diverged}" if run.diverged else "")
        state = reason or f"not finished, epochs done: {len(run.epochs)}"
        return [str(run.facts.get("seed", "–")), state, "–", "–", "–"]
    test, best = run.facts["last"]["test"], run.facts["best"]
    return [
        str(run.facts["seed"]),
        f"{run.test_accuracy('last'):.2f}",
        f"{test['correct']:,} of {test['total']:,}",
        f"{run.test_accuracy('best'):.2f} (epoch {best['epoch']})",
        f"{run.facts['seconds']:.1f}",
    ]
