"""A progress bar for a person: loss, accuracy, images a second, time left. Plain lines where no terminal listens."""

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from equalbits.training import EpochRecord, StepRecord
from equalbits.training.distributed import announced_place


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

    def close(self) -> None:
        """Take the bar away."""
        self.bar.stop()

    def __call__(self, record: StepRecord | EpochRecord) -> None:
        """Show where training stands; keep a line for every epoch."""
        if self.quiet:
            return
        if isinstance(record, StepRecord):
            done = (record.epoch - 1) * record.batches + record.batch
            words = (
                f"epoch {record.epoch}/{record.epochs}  loss {record.train.loss:.3f}  {record.train.accuracy:.1f} %  "
                f"{record.images_per_second:,.0f} images/s  {_clock(record.seconds_left)} left"
            )
            self.bar.update(self.task, total=record.epochs * record.batches, completed=done, words=words)
            return
        tested = f"  test {record.test}" if record.test else ""
        line = f"epoch {record.epoch:>3}  train {record.train.accuracy:.2f} % (loss {record.train.loss:.4f}){tested}"
        self.bar.console.print(f"{self.title}  {line}  {record.seconds:.1f} s", soft_wrap=True)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
