"""A progress bar for a person: loss, accuracy, images a second, time left. Plain lines where no terminal listens."""

import sys
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from equalbits.training import EpochRecord, Reporter, StepRecord, announced_place


class ProgressBar:
    """A reporter that draws on stderr, so that what a command prints stays clean."""

    def __init__(self, *, title: str, quiet: bool = False) -> None:
        self.is_writer = announced_place().is_writer
        self.quiet = quiet or not self.is_writer
        self.title = title
        self.live = sys.stderr.isatty() and not self.quiet
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f} %  {task.fields[words]}"),
            console=Console(stderr=True, highlight=False),
            transient=True,
            disable=not self.live,
        )
        self.task = self.bar.add_task(title, total=None, words="starting")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def begin(self, title: str) -> None:
        """Start over, for the next of several runs."""
        self.title = title
        self.bar.reset(self.task, description=title, total=None, words="starting")

    def begun(self, title: str) -> list[Reporter]:
        """Start over, and be who listens to the run of this name."""
        self.begin(title)
        return [self]

    def row(self, name: str) -> "list[Row]":
        """A line of its own for one of several runs that go on at the same time."""
        self.bar.update(self.task, visible=False)
        return [Row(self, name)]

    def close(self) -> None:
        """Take the bar away."""
        self.bar.stop()

    def __call__(self, record: StepRecord | EpochRecord) -> None:
        """Show where training stands; keep a line for every epoch."""
        if self.quiet:
            return
        if isinstance(record, StepRecord):
            self.bar.update(self.task, visible=True, **_standing(record))
            return
        self.bar.console.print(f"{self.title}  {_ended(record)}", soft_wrap=True)


class Row:
    """A reporter that draws one run's line among those of others; closed when the run has ended."""

    def __init__(self, bar: ProgressBar, name: str) -> None:
        self.within, self.name = bar, name
        self.task = bar.bar.add_task(name, total=None, words="starting")

    def __call__(self, record: StepRecord | EpochRecord) -> None:
        """Show where this run stands; where no terminal listens, a line for every epoch."""
        if isinstance(record, StepRecord):
            self.within.bar.update(self.task, **_standing(record))
            return
        self.within.bar.update(self.task, words=_ended(record))
        if not (self.within.live or self.within.quiet):
            self.within.bar.console.print(f"{self.name}  {_ended(record)}", soft_wrap=True)

    def close(self) -> None:
        """Take the line away."""
        self.within.bar.remove_task(self.task)


def _standing(record: StepRecord) -> dict[str, Any]:
    words = (
        f"epoch {record.epoch}/{record.epochs}  loss {record.train.loss:.3f}  {record.train.accuracy:.1f} %  "
        f"{record.images_per_second:,.0f} images/s  {_clock(record.seconds_left)} left"
    )
    done = (record.epoch - 1) * record.batches + record.batch
    return {"total": record.epochs * record.batches, "completed": done, "words": words}


def _ended(record: EpochRecord) -> str:
    tested = f"  test {record.test}" if record.test else ""
    return (
        f"epoch {record.epoch:>3}  train {record.train.accuracy:.2f} % (loss {record.train.loss:.4f}){tested}  "
        f"{record.seconds:.1f} s"
    )


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
