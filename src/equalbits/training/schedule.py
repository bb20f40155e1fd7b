"""The learning rate as a pure function of where training stands."""

import math
from bisect import bisect_right
from dataclasses import dataclass

from equalbits.training.config import ScheduleConfig


@dataclass(frozen=True)
class Position:
    """A moment of training: ``batch`` batches of epoch ``epoch`` are done, both counted from 0."""

    epoch: int
    batch: int
    batches: int
    epochs: int

    @property
    def step(self) -> int:
        """How many steps are done in all."""
        return self.epoch * self.batches + self.batch


def learning_rate(start: float, schedule: ScheduleConfig, at: Position) -> float:
    """The learning rate of the step that begins at this position.

    >>> cosine = ScheduleConfig(name="cosine")
    >>> [round(learning_rate(0.1, cosine, Position(e, 0, 390, 100)), 4) for e in (0, 50, 99)]
    [0.1, 0.05, 0.0]
    """
    moment = at.epoch + (at.batch / at.batches if schedule.per == "step" else 0.0)  # in epochs
    warm = schedule.warmup_epochs
    if moment < warm:
        # The first step is not idle: a warm-up of one epoch, moved each step, starts at one step's share.
        share = at.step + 1 if schedule.per == "step" else at.epoch + 1
        return start * share / (warm * at.batches if schedule.per == "step" else warm)
    if schedule.name == "step":
        return start * schedule.factor ** bisect_right(schedule.milestones, moment)
    done = (moment - warm) / (at.epochs - warm)
    if schedule.name == "cosine":
        return start * 0.5 * (1 + math.cos(math.pi * done))
    return start * (1 - done) if schedule.name == "linear" else start
