"""Reporters that write the records of a run: JSON lines, TensorBoard, Weights & Biases."""

import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from equalbits._files import append, errors_name, write_atomically
from equalbits.training.history import EpochRecord, History, StepRecord


class JsonLines:
    """Append each epoch to ``history.jsonl``, one JSON object per line; start with the epochs in ``history``."""

    def __init__(self, path: Path, history: History) -> None:
        self.path = path
        write_atomically(path, b"".join(map(_json_line, history.epochs)))

    def __call__(self, record: StepRecord | EpochRecord) -> None:
        """Write the record of an epoch; ignore those in between."""
        if isinstance(record, EpochRecord):
            append(self.path, _json_line(record))


def _json_line(record: EpochRecord) -> bytes:
    return json.dumps(record.as_dict()).encode() + b"\n"


def scalars(record: EpochRecord) -> dict[str, float]:
    """Return an epoch's values by the name of their curve."""
    curves = {"lr": record.lr, "train/loss": record.train.loss, "train/accuracy": record.train.accuracy}
    if record.test is not None:
        curves |= {"test/loss": record.test.loss, "test/accuracy": record.test.accuracy}
    return curves


class TensorBoard:
    """Write each epoch as TensorBoard events. Needs the package ``tensorboard``.

    ``more`` returns further curves of the epoch; a recipe sets it. Every start has a file of its own, opened only while
    an epoch is written. torch's writer has a thread, which would print a traceback of its own if the disk is full.
    """

    more: Callable[[], Mapping[str, float]] = dict

    def __init__(self, folder: Path, history: History) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self.path = folder / f"events.out.tfevents.{_next_timestamp(folder):010d}.{os.getpid()}"
        with errors_name(folder):
            folder.mkdir(parents=True, exist_ok=True)
        # Hides events of later epochs that a killed run has written.
        start = Event(step=len(history.epochs) + 1, session_log=SessionLog(status=SessionLog.START))
        self._append(Event(file_version="brain.Event:2"), start)

    def __call__(self, record: StepRecord | EpochRecord) -> None:
        """Write the record of an epoch; ignore those in between."""
        if isinstance(record, EpochRecord):
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary

            curves = {**scalars(record), **self.more()}
            values = [Summary.Value(tag=name, simple_value=value) for name, value in curves.items()]
            self._append(Event(step=record.epoch, summary=Summary(value=values)))

    def _append(self, *events: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        records = BytesIO()
        for event in events:
            event.wall_time = time.time()
            RecordWriter(records).write(event.SerializeToString())
        append(self.path, records.getvalue())


def _next_timestamp(folder: Path) -> int:
    """Return a timestamp after those of all event files: readers sort by file name, even if the clock was set back."""
    stamps = [path.name.split(".")[3] for path in folder.glob("events.out.tfevents.*")]
    return max([int(time.time()), *(int(stamp) + 1 for stamp in stamps if stamp.isdecimal())])


class WeightsAndBiases:
    """Log each epoch to Weights & Biases. Needs the package ``wandb`` and a login.

    The first record starts the run, so that a run that fails before leaves none. Its id is kept in ``folder``, so that
    a resumed run continues the same curves. ``settings`` are those of ``wandb.init``: with ``mode="offline"`` no login
    is needed. ``more`` returns further curves of the epoch; a recipe sets it.
    """

    more: Callable[[], Mapping[str, float]] = dict

    def __init__(self, folder: Path, **settings: Any) -> None:
        import wandb

        if (settings.get("mode") or os.environ.get("WANDB_MODE", "online")) == "online":
            try:
                wandb.login()  # before training, not after its first epoch
            except wandb.Error as error:
                raise ValueError(f"{error} To log into files, set WANDB_MODE=offline.") from None
        self.wandb, self.folder, self.settings = wandb, folder, settings
        self.run: Any = None

    def __call__(self, record: StepRecord | EpochRecord) -> None:
        """Write the record of an epoch; ignore those in between."""
        if not isinstance(record, EpochRecord):
            return
        if self.run is None:
            id_file = self.folder / "wandb-id"
            if not id_file.exists():
                write_atomically(id_file, secrets.token_hex(4).encode())
            self.run = self.wandb.init(id=id_file.read_text(), resume="allow", dir=str(self.folder), **self.settings)
        self.run.log({**scalars(record), **self.more()}, step=record.epoch)
