"""Progress bar on stderr: loss, accuracy, images per second, time left. Without a terminal, one line per epoch.

In a narrow terminal both are shorter: the bar without accuracy and speed, the line without losses.
"""

import sys
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from equalbits._text import escape_control_chars
from equalbits.training.distributed import rank_from_env
from equalbits.training.history import EpochRecord, Reporter, StepRecord

#: Columns of a terminal that the bar needs to show accuracy and speed as well.
_WIDE = 120


class ProgressBar:
    """Reporter that shows one run at a time; stderr keeps it apart from the results on stdout."""

    def __init__(self, *, title: str, quiet: bool = False) -> None:
        self.is_writer = rank_from_env().is_writer
        self.quiet = quiet or not self.is_writer
        self.title = escape_control_chars(title)
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f} %  {task.fields[status]}", markup=False),
            console=Console(stderr=True, highlight=False, markup=False),
            transient=True,
            disable=self.quiet or not sys.stderr.isatty(),
        )
        self.task = self.bar.add_task(self.title, total=None, status="starting")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def start_run(self, title: str) -> list[Reporter]:
        """Reset the bar and return it as the reporter of the next of several runs."""
        self.title = escape_control_chars(title)
        self.bar.reset(self.task, description=self.title, total=None, status="starting")
        return [self]

    def close(self) -> None:
        """Remove the bar."""
        self.bar.stop()

    def __call__(self, record: StepRecord | EpochRecord) -> None:
        """Show the progress of training; print a line for every epoch."""
        if self.quiet:
            return
        train = record.train
        if isinstance(record, StepRecord):
            speed = f"{train.accuracy:.1f} %  {record.images_per_second:,.0f} images/s  "
            self.bar.update(
                self.task,
                total=record.epochs * record.batches,
                completed=(record.epoch - 1) * record.batches + record.batch,
                status=f"epoch {record.epoch}/{record.epochs}  loss {train.loss:.3f}  "
                f"{speed if self.bar.console.width >= _WIDE else ''}"
                f"{timedelta(seconds=round(record.seconds_left))} left",
            )
            return
        test = f"  test {record.test}" if record.test else ""
        line = self._epoch_line(record, f"train {train.accuracy:.2f} % (loss {train.loss:.4f}){test}")
        if self.bar.console.is_terminal and len(line) > self.bar.console.width:
            test = f"  test {record.test.accuracy:.2f} %" if record.test else ""
            line = self._epoch_line(record, f"train {train.accuracy:.2f} %{test}")
        self.bar.console.print(line, soft_wrap=True)

    def _epoch_line(self, record: EpochRecord, scores: str) -> str:
        return f"{self.title}  epoch {record.epoch:>3}  {scores}  {record.seconds:.1f} s"
