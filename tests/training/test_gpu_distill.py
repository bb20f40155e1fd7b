"""On a GPU: soft labels and averaged weights are those of plain training."""

import pytest
import torch
from gpu_case import SPEEDS, assert_close, make_loader, make_net, make_test, seeded

from equalbits.nn import IRNet
from equalbits.training import DistillConfig, train, train_stack

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize(("speed", "precision"), [*((speed, "fp32") for speed in SPEEDS), ("captured", "bf16")])
def test_soft_labels_teach_the_same_as_in_plain_training(speed: str, precision: str, make_config) -> None:
    settings = {"epochs": 4, "precision": precision, "lr": 0.01, "distill": DistillConfig(weight=0.7, temperature=2.0)}
    teacher = make_net(seed=1, quantizer=IRNet)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    nets, losses = [make_net(), make_net()], []
    for each, net in zip(("plain", speed), nets, strict=True):
        history = train(net, make_loader(), make_config(speed=each, **settings), test=make_test(), teacher=teacher)
        losses.append([epoch.train.loss for epoch in history.epochs])
    if precision == "fp32":
        assert_close(*nets)
    assert losses[1] == pytest.approx(losses[0], rel=1e-2 if precision == "fp32" else 5e-2)
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
    assert teacher.training


@pytest.mark.parametrize("speed", ["captured", "recorded"])
def test_averaged_weights_are_those_of_plain_training(speed: str, make_config) -> None:
    settings = {"epochs": 4, "precision": "fp32", "lr": 0.01, "weight_average": 0.9}
    plain, fast = make_net(), make_net()
    train(plain, make_loader(), make_config(speed="plain", **settings), test=make_test())
    train(fast, make_loader(), make_config(speed=speed, **settings), test=make_test())
    assert_close(fast, plain)


def test_a_captured_stack_learns_from_one_teacher_what_each_net_learns_alone(make_config) -> None:
    distill = DistillConfig(weight=0.7, temperature=2.0)
    settings = {"epochs": 4, "precision": "fp32", "lr": 0.01, "distill": distill, "weight_average": 0.9}
    teacher, seeds = make_net(seed=7, quantizer=IRNet), range(3)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    alone, stacked = ([make_net(seed) for seed in seeds] for _ in range(2))
    for seed, net in enumerate(alone):
        train(net, make_loader(seed=seed), make_config(speed="plain", seed=seed, **settings), teacher=teacher)
    configs = seeded(make_config(speed="captured", **settings), seeds)
    train_stack(stacked, [make_loader(seed=seed) for seed in seeds], configs, test=make_test(), teacher=teacher)
    for mine, theirs in zip(stacked, alone, strict=True):
        assert_close(mine, theirs)
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
