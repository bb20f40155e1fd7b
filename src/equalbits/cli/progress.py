"""Progress bar on stderr: loss, accuracy, images per second, time left. Without a terminal, one line per epoch."""

import sys
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from equalbits.training import EpochRecord, Reporter, StepRecord, rank_from_env


class ProgressBar:
    """Reporter that shows one run at a time; stderr keeps it apart from the results on stdout."""

    def __init__(self, *, title: str, quiet: bool = False) -> None:
        self.is_writer = rank_from_env().is_writer
        self.quiet = quiet or not self.is_writer
        self.title = title
        self.live = sys.stderr.isatty() and not self.quiet
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f} %  {task.fields[status]}"),
            console=Console(stderr=True, highlight=False),
            transient=True,
            disable=not self.live,
        )
        self.task = self.bar.add_task(title, total=None, status="starting")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def restart(self, title: str) -> None:
        """Reset the bar for the next of several runs."""
        self.title = title
        self.bar.reset(self.task, description=title, total=None, status="starting")

    def start_run(self, title: str) -> list[Reporter]:
        """Reset the bar and return it as the reporter of the named run."""
        self.restart(title)
        return [self]

    def add_row(self, name: str) -> "list[ProgressRow]":
        """Add a row for one of several runs that train at the same time; return its reporter."""
        self.bar.update(self.task, visible=False)
        return [ProgressRow(self, name)]

    def close(self) -> None:
        """Remove the bar."""
        self.bar.stop()

    def __call__(self, record: StepRecord | EpochRecord) -> None:
        """Show the progress of training; print a line for every epoch."""
        if self.quiet:
            return
        if isinstance(record, StepRecord):
            self.bar.update(self.task, visible=True, **_step_fields(record))
            return
        self.bar.console.print(f"{self.title}  {_epoch_line(record)}", soft_wrap=True)


class ProgressRow:
    """Reporter that shows one of several concurrent runs; close it when the run ends."""

    def __init__(self, parent: ProgressBar, name: str) -> None:
        self.parent, self.name = parent, name
        self.task = parent.bar.add_task(name, total=None, status="starting")

    def __call__(self, record: StepRecord | EpochRecord) -> None:
        """Show the progress of this run; without a terminal, print a line for every epoch."""
        if isinstance(record, StepRecord):
            self.parent.bar.update(self.task, **_step_fields(record))
            return
        self.parent.bar.update(self.task, status=_epoch_line(record))
        if not (self.parent.live or self.parent.quiet):
            self.parent.bar.console.print(f"{self.name}  {_epoch_line(record)}", soft_wrap=True)

    def close(self) -> None:
        """Remove the row."""
        self.parent.bar.remove_task(self.task)


def _step_fields(record: StepRecord) -> dict[str, Any]:
    status = (
        f"epoch {record.epoch}/{record.epochs}  loss {record.train.loss:.3f}  {record.train.accuracy:.1f} %  "
        f"{record.images_per_second:,.0f} images/s  {_clock(record.seconds_left)} left"
    )
    done = (record.epoch - 1) * record.batches + record.batch
    return {"total": record.epochs * record.batches, "completed": done, "status": status}


def _epoch_line(record: EpochRecord) -> str:
    test = f"  test {record.test}" if record.test else ""
    return (
        f"epoch {record.epoch:>3}  train {record.train.accuracy:.2f} % (loss {record.train.loss:.4f}){test}  "
        f"{record.seconds:.1f} s"
    )


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
