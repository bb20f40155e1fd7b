"""What a run tells about itself: a record per epoch, and now and then one in between. A reporter is any callable."""

import json
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from equalbits._files import errors_name, write_atomically
from equalbits.training.score import Score


@dataclass(frozen=True)
class StepRecord:
    """Where training stands inside an epoch; the counts are this process's alone."""

    epoch: int
    epochs: int
    batch: int
    batches: int
    train: Score
    images_per_second: float
    seconds_left: float


@dataclass(frozen=True)
class EpochRecord:
    """One epoch that is done, counted from 1. ``test`` is None where the epoch was not scored."""

    epoch: int
    lr: float
    train: Score
    test: Score | None
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain data, counts and all; the inverse of :meth:`from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> "EpochRecord":
        """Rebuild a record from plain data."""
        test = Score(**facts["test"]) if facts["test"] is not None else None
        return cls(**{**facts, "train": Score(**facts["train"]), "test": test})


#: Is told of every record; what it does with it is its own affair.
Reporter = Callable[[StepRecord | EpochRecord], None]


@dataclass(frozen=True)
class History:
    """All epochs of a run."""

    epochs: tuple[EpochRecord, ...]

    @property
    def scored(self) -> list[EpochRecord]:
        """The epochs whose model was scored on the test data."""
        return [record for record in self.epochs if record.test is not None]

    @property
    def last(self) -> EpochRecord | None:
        """The last scored epoch: what the finished model is worth."""
        return self.scored[-1] if self.scored else None

    @property
    def best(self) -> EpochRecord | None:
        """The best scored epoch, picked by the test data itself and so a little flattering; the first of equals."""
        return max(self.scored, key=lambda record: record.test.correct if record.test else -1, default=None)


class JsonLines:
    """Appends each epoch to ``history.jsonl``, one JSON object a line; starts from the epochs known already."""

    def __init__(self, path: Path, known: History) -> None:
        self.path = path
        write_atomically(path, "".join(self._line(record) for record in known.epochs).encode())

    def __call__(self, record: StepRecord | EpochRecord) -> None:
        """Keep an epoch's record; the others are for the moment only."""
        if isinstance(record, EpochRecord):
            with errors_name(self.path), self.path.open("a") as file:
                file.write(self._line(record))

    @staticmethod
    def _line(record: EpochRecord) -> str:
        return json.dumps(record.as_dict()) + "\n"


def scalars(record: EpochRecord) -> dict[str, float]:
    """The curves of an epoch by name, for whoever draws them."""
    curves = {"lr": record.lr, "train/loss": record.train.loss, "train/accuracy": record.train.accuracy}
    if record.test is not None:
        curves |= {"test/loss": record.test.loss, "test/accuracy": record.test.accuracy}
    return curves


class TensorBoard:
    """Writes each epoch's curves as TensorBoard events. Needs the package ``tensorboard``.

    Every start has a file of its own, opened for as long as it takes to write an epoch: a writer's thread, as
    torch's has, would tell of a full disk by itself, and in many lines.
    """

    def __init__(self, folder: Path, known: History) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self.path = folder / f"events.out.tfevents.{_after_all_others(folder):010d}.{os.getpid()}"
        with errors_name(folder):
            folder.mkdir(parents=True, exist_ok=True)
        # Events at or after the first unknown epoch, from a run that was cut off, are hidden from the reader.
        began = Event(step=len(known.epochs) + 1, session_log=SessionLog(status=SessionLog.START))
        self._append(Event(file_version="brain.Event:2"), began)

    def __call__(self, record: StepRecord | EpochRecord) -> None:
        """Keep an epoch's record; the others are for the moment only."""
        if isinstance(record, EpochRecord):
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary

            values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars(record).items()]
            self._append(Event(step=record.epoch, summary=Summary(value=values)))

    def _append(self, *events: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        with errors_name(self.path), self.path.open("ab") as file:
            for event in events:
                event.wall_time = time.time()
                RecordWriter(file).write(event.SerializeToString())


def _after_all_others(folder: Path) -> int:
    """The second that a new file of events is named by: readers go by the names, even where the clock went back."""
    stamps = [path.name.split(".")[3] for path in folder.glob("events.out.tfevents.*")]
    return max([int(time.time()), *(int(stamp) + 1 for stamp in stamps if stamp.isdecimal())])


class WeightsAndBiases:
    """Sends each epoch's curves to Weights & Biases. Needs the package ``wandb`` and its log-in.

    The run over there is started by the first record, so that one which is refused leaves no trace; its name is kept
    in ``folder``, so that one which is gone on with draws on the same curves.
    """

    def __init__(self, folder: Path, **settings: Any) -> None:
        import wandb

        self.wandb, self.folder, self.settings = wandb, folder, settings
        self.run: Any = None

    def __call__(self, record: StepRecord | EpochRecord) -> None:
        """Keep an epoch's record; the others are for the moment only."""
        if not isinstance(record, EpochRecord):
            return
        if self.run is None:
            noted = self.folder / "wandb-id"
            if not noted.exists():
                write_atomically(noted, secrets.token_hex(4).encode())
            self.run = self.wandb.init(id=noted.read_text(), resume="allow", dir=str(self.folder), **self.settings)
        self.run.log(scalars(record), step=record.epoch)
