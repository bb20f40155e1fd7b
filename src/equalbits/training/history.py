"""Records of a run: one per epoch, and one about every second in between."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from equalbits._plotting import DOWN, UP, Figure, new_figure, shown_in_notebooks
from equalbits._text import format_table, html_table
from equalbits.training.evaluation import Score


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
        """Build a record from plain data; raise ValueError or TypeError where a number is none or impossible."""
        test = _score(values["test"]) if values["test"] is not None else None
        for name, least in (("epoch", 1), ("lr", 0), ("seconds", 0)):
            if isinstance(values[name], bool) or not isinstance(values[name], int | float) or not values[name] >= least:
                raise ValueError(f"{name} of an epoch is {str(values[name])[:40]}: it must be a number from {least}")
        return cls(**{**values, "train": _score(values["train"]), "test": test})


def _score(values: dict[str, Any]) -> Score:
    score = Score(**values)
    counts = (score.correct, score.correct_top5, score.total)
    if not all(type(count) is int and 0 <= count <= score.total for count in counts) or not score.total:
        raise ValueError(f"a score counts {counts[0]} and {counts[1]} of {counts[2]} images as correct")
    if not isinstance(score.loss_sum, int | float):
        raise ValueError(f"the loss of a score is {str(score.loss_sum)[:40]}: it must be a number")
    return score


#: Called with every record.
Reporter = Callable[[StepRecord | EpochRecord], None]


@dataclass(frozen=True)
class History:
    """All finished epochs of a run; ``print`` it for a table, :meth:`plot` it for its curves."""

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

    def plot(self) -> Figure:
        """Return a figure of loss and accuracy by epoch, on the training and the test images. Needs matplotlib."""
        figure = new_figure(8, 3)
        for place, name, unit in ((1, "loss", "loss"), (2, "accuracy", "accuracy (%)")):
            axes = figure.add_subplot(1, 2, place)
            for of, epochs, color in (("train", self.epochs, DOWN), ("test", self.scored, UP)):
                values = [getattr(getattr(record, of), name) for record in epochs]
                axes.plot([record.epoch for record in epochs], values, color=color, marker=".", label=of)
            axes.set(xlabel="epoch", ylabel=unit)
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.legend(frameon=False)
        return shown_in_notebooks(figure)

    def __str__(self) -> str:
        return format_table(_HEADER, map(_row, self.epochs), left=())

    def _repr_html_(self) -> str:
        return html_table(_HEADER, map(_row, self.epochs), left=())


_HEADER = ("epoch", "lr", "train loss", "train %", "test loss", "test %", "seconds")


def _row(record: EpochRecord) -> tuple[str, ...]:
    scores = [
        (f"{score.loss:.4f}", f"{score.accuracy:.2f}") if score else ("–", "–") for score in (record.train, record.test)
    ]
    return (str(record.epoch), f"{record.lr:.3g}", *scores[0], *scores[1], f"{record.seconds:.1f}")
