"""The learning rate as a pure function of the training position."""

import math
from bisect import bisect_right
from dataclasses import dataclass

from equalbits.training.config import ScheduleConfig


@dataclass(frozen=True)
class Position:
    """Position in training: ``batch`` batches of epoch ``epoch`` are finished, both counted from 0."""

    epoch: int
    batch: int
    batches: int
    epochs: int

    @property
    def step(self) -> int:
        """Number of finished steps."""
        return self.epoch * self.batches + self.batch


def learning_rate(start: float, schedule: ScheduleConfig, at: Position) -> float:
    """Return the learning rate of the step that starts at this position.

    >>> cosine = ScheduleConfig(name="cosine")
    >>> [round(learning_rate(0.1, cosine, Position(e, 0, 390, 100)), 4) for e in (0, 50, 99)]
    [0.1, 0.05, 0.0]
    """
    epochs_done = at.epoch + (at.batch / at.batches if schedule.per == "step" else 0.0)
    warmup = schedule.warmup_epochs
    if epochs_done < warmup:
        # The first step has a rate above 0: a per-step warm-up of one epoch starts at 1/batches of the full rate.
        count = at.step + 1 if schedule.per == "step" else at.epoch + 1
        return start * count / (warmup * at.batches if schedule.per == "step" else warmup)
    if schedule.name == "step":
        return start * schedule.factor ** bisect_right(schedule.milestones, epochs_done)
    progress = (epochs_done - warmup) / (at.epochs - warmup)
    if schedule.name == "cosine":
        return start * 0.5 * (1 + math.cos(math.pi * progress))
    return start * (1 - progress) if schedule.name == "linear" else start
