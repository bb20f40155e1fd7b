"""Records of a run: one per epoch, and one about every second in between."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from equalbits.training.score import Score


@dataclass(frozen=True)
class StepRecord:
    """Progress within an epoch; the counts are those of this process."""

    epoch: int
    epochs: int
    batch: int
    batches: int
    train: Score
    images_per_second: float
    seconds_left: float


@dataclass(frozen=True)
class EpochRecord:
    """A finished epoch, counted from 1. ``test`` is None if the epoch was not scored."""

    epoch: int
    lr: float
    train: Score
    test: Score | None
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return plain data; the inverse of :meth:`from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "EpochRecord":
        """Build a record from plain data."""
        test = Score(**values["test"]) if values["test"] is not None else None
        return cls(**{**values, "train": Score(**values["train"]), "test": test})


#: Called with every record.
Reporter = Callable[[StepRecord | EpochRecord], None]


@dataclass(frozen=True)
class History:
    """All finished epochs of a run."""

    epochs: tuple[EpochRecord, ...]

    @property
    def scored(self) -> list[EpochRecord]:
        """The epochs whose model was scored on the test data."""
        return [record for record in self.epochs if record.test is not None]

    @property
    def last(self) -> EpochRecord | None:
        """The last scored epoch: the score of the finished model."""
        return self.scored[-1] if self.scored else None

    @property
    def best(self) -> EpochRecord | None:
        """The best scored epoch, the first of equals. Selected on the test data, so slightly optimistic."""
        return max(self.scored, key=lambda record: record.test.correct if record.test else -1, default=None)
