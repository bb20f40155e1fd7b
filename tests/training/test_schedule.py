"""The learning rate equals the published formula at every step."""

import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equalbits.training import ScheduleConfig, TrainConfig
from equalbits.training.schedule import Position, learning_rate

BATCHES = 5


def epochs_of(schedule: ScheduleConfig, epochs: int, lr: float = 0.1) -> list[float]:
    return [learning_rate(lr, schedule, Position(epoch, 0, BATCHES, epochs)) for epoch in range(epochs)]


def steps_of(schedule: ScheduleConfig, epochs: int, lr: float = 0.1) -> list[float]:
    places = [(epoch, batch) for epoch in range(epochs) for batch in range(BATCHES)]
    return [learning_rate(lr, schedule, Position(epoch, batch, BATCHES, epochs)) for epoch, batch in places]


def torchs(scheduler: type, steps: int, **settings: object) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    made, found = scheduler(optimizer, **settings), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.step()
    return found


def test_cosine_per_epoch_is_torchs_annealing() -> None:
    expected = torchs(torch.optim.lr_scheduler.CosineAnnealingLR, 7, T_max=7)
    assert epochs_of(ScheduleConfig(name="cosine"), 7) == pytest.approx(expected)


def test_per_epoch_nothing_moves_inside_an_epoch() -> None:
    for name in ("cosine", "linear", "constant"):
        rates = steps_of(ScheduleConfig(name=name), 3)
        assert [len(set(rates[start : start + BATCHES])) for start in range(0, 15, BATCHES)] == [1, 1, 1], name


def test_cosine_per_step_is_torchs_annealing_over_all_steps() -> None:
    expected = torchs(torch.optim.lr_scheduler.CosineAnnealingLR, 15, T_max=15)
    assert steps_of(ScheduleConfig(name="cosine", per="step"), 3) == pytest.approx(expected)


def test_steps_fall_at_the_milestones_and_stay() -> None:
    expected = torchs(torch.optim.lr_scheduler.MultiStepLR, 10, milestones=[2, 5, 9], gamma=0.3)
    assert epochs_of(ScheduleConfig(name="step", milestones=(2, 5, 9), factor=0.3), 10) == pytest.approx(expected)


def test_linear_goes_straight_to_zero_and_constant_stays() -> None:
    assert epochs_of(ScheduleConfig(name="linear"), 4) == pytest.approx([0.1, 0.075, 0.05, 0.025])
    assert epochs_of(ScheduleConfig(name="constant"), 4) == [0.1] * 4


def test_a_warm_up_rises_linearly_and_the_schedule_covers_the_remaining_steps() -> None:
    per_step = steps_of(ScheduleConfig(name="cosine", per="step", warmup_epochs=2), 6)
    warm = 2 * BATCHES
    assert per_step[:warm] == pytest.approx([0.1 * (step + 1) / warm for step in range(warm)])
    rest = [0.05 * (1 + math.cos(math.pi * step / (4 * BATCHES))) for step in range(4 * BATCHES)]
    assert per_step[warm:] == pytest.approx(rest)
    per_epoch = epochs_of(ScheduleConfig(name="constant", warmup_epochs=4), 6)
    assert per_epoch == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])


@given(
    st.sampled_from(["cosine", "linear", "constant"]),
    st.sampled_from(["epoch", "step"]),
    st.integers(0, 3),
    st.integers(4, 30),
)
def test_every_rate_is_above_zero_and_at_most_the_initial_one(name: str, per: str, warm: int, epochs: int) -> None:
    rates = steps_of(ScheduleConfig(name=name, per=per, warmup_epochs=warm), epochs)
    assert all(0 < rate <= 0.1 * (1 + 1e-12) for rate in rates)
    after = rates[warm * BATCHES :]
    assert after == sorted(after, reverse=True)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"name": "cosin"}, "schedule.name='cosin' must be one of cosine, linear, step, constant"),
        ({"per": "batch"}, "schedule.per='batch' must be one of epoch, step"),
        ({"name": "step"}, "schedule.name='step' needs schedule.milestones"),
        ({"name": "step", "milestones": (5, 3)}, r"schedule.milestones=\[5, 3\] must be in ascending order"),
        (
            {"name": "step", "milestones": (-3, 5)},
            r"schedule.milestones=\(-3, 5\) must be a list of integers in brackets, each at least 1",
        ),
        ({"factor": 0.0}, "schedule.factor=0.0 must be a number, above 0"),
        ({"warmup_epochs": -1}, "schedule.warmup_epochs=-1 must be an integer, at least 0"),
    ],
)
def test_an_invalid_schedule_is_refused(settings: dict, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        ScheduleConfig(**settings)


def test_a_warm_up_as_long_as_training_is_refused() -> None:
    with pytest.raises(ValueError, match="warmup_epochs=3 must be less than epochs=3"):
        TrainConfig(epochs=3, schedule=ScheduleConfig(warmup_epochs=3))
