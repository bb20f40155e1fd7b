"""Stacked nets train as each does alone."""

import dataclasses
import signal
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from equalbits.training import (
    CheckpointError,
    DistillConfig,
    InterruptedTraining,
    NonFiniteError,
    StackError,
    TrainConfig,
    load_checkpoint,
    save_checkpoint,
    train,
    train_stack,
)
from equalbits.training.training_run import TrainingRun


def seeded(config: TrainConfig | Sequence[TrainConfig], seeds: Sequence[int]) -> list[TrainConfig]:
    configs = [config] * len(seeds) if isinstance(config, TrainConfig) else config
    return [dataclasses.replace(each, seed=seed) for each, seed in zip(configs, seeds, strict=True)]


def test_a_stack_trains_each_net_as_it_would_train_alone(make_net, make_loader, make_config) -> None:
    seeds, test = [0, 3, 8], make_loader("test")
    alone = [make_net(seed, dropout=0.3, norm=True) for seed in seeds]
    stacked = [make_net(seed, dropout=0.3, norm=True) for seed in seeds]
    expected = [
        train(model, make_loader(seed=seed), make_config(seed=seed), test=test)
        for model, seed in zip(alone, seeds, strict=True)
    ]
    loaders = [make_loader().with_seed(seed) for seed in seeds]
    records: list[list] = [[], [], []]
    reporters = [[each.append] for each in records]
    found = train_stack(stacked, loaders, seeded(make_config(), seeds), test=test, reporters=reporters)
    for mine, theirs in zip(stacked, alone, strict=True):
        assert all(
            torch.equal(a, b) for a, b in zip(mine.state_dict().values(), theirs.state_dict().values(), strict=True)
        )
    for mine, theirs, reported in zip(found, expected, records, strict=True):
        assert [(r.train, r.test, r.lr) for r in mine.epochs] == [(r.train, r.test, r.lr) for r in theirs.epochs]
        assert reported == list(mine.epochs)


def test_a_net_in_evaluation_mode_is_trained_in_training_mode(make_net, make_loader, make_config) -> None:
    models = [make_net(norm=True).eval()]
    train_stack(models, [make_loader()], seeded(make_config(), [0]))
    assert float(models[0][1].running_mean.abs().sum()) > 0


def test_a_stack_that_does_not_match_is_refused(make_net, make_loader, make_config) -> None:
    nets, loaders = [make_net(), make_net()], [make_loader(), make_loader()]
    with pytest.raises(ValueError, match="argument 3 is shorter"):
        train_stack(nets, loaders, seeded(make_config(), [0]))
    with pytest.raises(ValueError, match=r"nets of a stack have no attention maps: set distill\.attention=0"):
        config = make_config(distill=DistillConfig(attention=1.0, layers=("0",)))
        train_stack(nets, loaders, seeded(config, [0, 1]), teacher=make_net())
    taught = seeded(make_config(distill=DistillConfig(weight=1.0)), [0, 1])
    with pytest.raises(ValueError, match="distill is set but no teacher is given"):
        train_stack(nets, loaders, taught)


def test_nets_of_a_stack_share_a_teacher_and_learn_from_it_as_each_would_alone(
    make_net, make_loader, make_config
) -> None:
    teacher = make_net(7, norm=True).train()
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    configs = [
        make_config(distill=DistillConfig(weight=0.6, temperature=2.0), mixup=0.2, weight_average=0.9, **own)
        for own in ({}, {"lr": 0.01}, {"label_smoothing": 0.1})
    ]
    alone, stacked = ([make_net(seed) for seed in range(3)] for _ in range(2))
    configs = seeded(configs, range(3))
    for seed, model in enumerate(alone):
        train(model, make_loader(seed=seed), configs[seed], teacher=teacher)
    train_stack(stacked, [make_loader(seed=seed) for seed in range(3)], configs, teacher=teacher)
    for mine, theirs in zip(stacked, alone, strict=True):
        for one, other in zip(mine.state_dict().values(), theirs.state_dict().values(), strict=True):
            assert torch.equal(one, other)
    assert teacher.training and all(torch.equal(before[name], each) for name, each in teacher.state_dict().items())
    untaught = make_net(0)
    train(untaught, make_loader(seed=0), dataclasses.replace(configs[0], distill=DistillConfig()))
    assert not torch.equal(untaught[0].weight, stacked[0][0].weight)


def test_nets_of_a_stack_may_have_different_settings(make_net, make_loader, make_config) -> None:
    configs = [make_config(lr=0.05), make_config(lr=0.01, schedule="constant", label_smoothing=0.1)]
    alone, stacked = ([make_net(seed) for seed in (0, 1)] for _ in range(2))
    for model, config, seed in zip(alone, configs, (0, 1), strict=True):
        train(model, make_loader(seed=seed), dataclasses.replace(config, seed=seed))
    train_stack(stacked, [make_loader(seed=seed) for seed in (0, 1)], seeded(configs, [0, 1]))
    for mine, theirs in zip(stacked, alone, strict=True):
        assert all(
            torch.equal(a, b) for a, b in zip(mine.state_dict().values(), theirs.state_dict().values(), strict=True)
        )
    with pytest.raises(ValueError, match="these differ in more"):
        train_stack(stacked, [make_loader()] * 2, seeded([configs[0], make_config(epochs=9)], [0, 1]))


def test_a_net_that_diverges_does_not_stop_the_others(make_net, make_loader, make_config) -> None:
    configs, test = [make_config(), make_config(lr=1e30), make_config()], make_loader("test")
    alone = [make_net(seed) for seed in (0, 2)]
    expected = [
        train(model, make_loader(seed=seed), make_config(seed=seed), test=test)
        for model, seed in zip(alone, (0, 2), strict=True)
    ]
    stacked = [make_net(seed) for seed in range(3)]
    loaders = [make_loader(seed=seed) for seed in range(3)]
    with pytest.raises(StackError, match="1 of 3 nets in a stack diverged; number 1: ") as caught:
        train_stack(stacked, loaders, seeded(configs, range(3)), test=test)
    assert list(caught.value.errors) == [1] and isinstance(caught.value.errors[1], NonFiniteError)
    found = caught.value.histories
    assert found[1] is None
    for mine, theirs in zip((found[0], found[2]), expected, strict=True):
        assert [(r.train, r.test, r.lr) for r in mine.epochs] == [(r.train, r.test, r.lr) for r in theirs.epochs]


def test_a_stack_whose_nets_all_diverge_ends_at_once(make_net, make_loader, make_config) -> None:
    with pytest.raises(StackError, match="2 of 2 nets"):
        train_stack([make_net(), make_net(1)], [make_loader()] * 2, seeded(make_config(lr=1e30, epochs=10**6), [0, 1]))


class NanOnce(nn.Module):
    """Returns NaN in one step only."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.linear, self.step, self.taken = nn.Linear(64, 4), step, 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.taken += self.training
        return self.linear(images.flatten(1)) * (float("nan") if self.training and self.taken == self.step else 1.0)


def test_a_diverged_net_leaves_the_stack_and_its_step_is_named(make_net, make_loader, make_config):
    nets = [NanOnce(2), make_net()]
    with pytest.raises(StackError, match="number 0: the loss is nan at step 2;"):
        train_stack(nets, [make_loader()] * 2, seeded(make_config(), [0, 1]))
    assert nets[0].taken == 3  # and one more look for the layer


def make_stack(make_net, make_loader, make_config) -> tuple:
    configs = [make_config(checkpoint_seconds=0), make_config(lr=1e30, checkpoint_seconds=0)]
    configs.append(make_config(lr=0.01, checkpoint_seconds=0))
    loaders = [make_loader(seed=seed) for seed in range(3)]
    return [make_net(seed, dropout=0.3, norm=True) for seed in range(3)], loaders, configs


@pytest.mark.parametrize("at", [1, 8, 11])
def test_an_interrupted_stack_resumes_to_the_same_bits(
    at: int, tmp_path, make_net, make_loader, make_config, monkeypatch
) -> None:
    whole, loaders, configs = make_stack(make_net, make_loader, make_config)
    with pytest.raises(StackError) as straight:
        train_stack(whole, loaders, seeded(configs, range(3)))
    steps = 0
    prepare = TrainingRun.prepare_step

    def count(run: TrainingRun) -> None:
        nonlocal steps
        steps += run.config.seed == 0
        if steps == at:
            signal.raise_signal(signal.SIGTERM)
            steps += 1
        prepare(run)

    monkeypatch.setattr(TrainingRun, "prepare_step", count)
    nets, loaders, configs = make_stack(make_net, make_loader, make_config)
    with pytest.raises(InterruptedTraining, match="stopped by SIGTERM"):
        train_stack(nets, loaders, seeded(configs, range(3)), checkpoint=tmp_path / "stack.safetensors")
    nets, loaders, configs = make_stack(make_net, make_loader, make_config)
    with pytest.raises(StackError, match="1 of 3 nets in a stack diverged; number 1: ") as caught:
        train_stack(nets, loaders, seeded(configs, range(3)), checkpoint=tmp_path / "stack.safetensors")
    for place in (0, 2):
        mine, theirs = nets[place].state_dict().values(), whole[place].state_dict().values()
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
        found, expected = caught.value.histories[place], straight.value.histories[place]
        assert [(r.train, r.lr) for r in found.epochs] == [(r.train, r.lr) for r in expected.epochs]


def test_the_seconds_of_an_epoch_are_those_of_all_its_pieces(tmp_path, make_net, make_loader, make_config) -> None:
    path, config = tmp_path / "stack.safetensors", make_config(epochs=1, checkpoint_seconds=0)

    def go_on() -> list:
        loaders = [make_loader(seed=seed) for seed in (0, 1)]
        return train_stack([make_net(), make_net(1)], loaders, seeded(config, [0, 1]), checkpoint=path)

    go_on()
    tensors, facts = load_checkpoint(path)  # of the last step, before the epoch was scored
    assert all(0 < net["seconds"] < 5000 for net in facts["stack"].values())
    earlier = {place: {**net, "seconds": 5000.0} for place, net in facts["stack"].items()}
    save_checkpoint(path, tensors, {**facts, "stack": earlier})
    assert all(2500 < history.epochs[0].seconds < 2530 for history in go_on())  # an equal share each


def test_the_checkpoint_of_another_stack_is_refused(tmp_path, make_net, make_loader, make_config) -> None:
    path, config = tmp_path / "stack.safetensors", make_config(checkpoint_seconds=0)
    train_stack([make_net()], [make_loader()], seeded(config, [0]), checkpoint=path)
    with pytest.raises(CheckpointError, match="is of another stack"):
        train_stack([make_net(), make_net()], [make_loader()] * 2, seeded(config, [0, 1]), checkpoint=path)
    with pytest.raises(CheckpointError, match="was made with seed=0, this run has seed=1"):
        train_stack([make_net()], [make_loader()], seeded(config, [1]), checkpoint=path)
