"""On a GPU: captured, recorded and compiled steps train as plain ones do."""

import pytest
import torch
from gpu_case import SPEEDS, Witness, assert_close, assert_same_images, make_loader, make_net, make_test
from torch import nn

from equalbits.nn import BinaryConv2d, BinaryLinear, IRNet
from equalbits.training import OptimizerConfig, optimizer, train

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize(
    ("speed", "name"), [*((speed, "sgd") for speed in SPEEDS), ("captured", "adamw"), ("recorded", "adamw")]
)
def test_twenty_steps_are_those_of_plain_training(speed: str, name: str, make_config) -> None:
    settings = {"epochs": 4, "precision": "fp32", "optimizer": OptimizerConfig(name=name, lr=0.01)}
    plain, fast = make_net(), make_net()
    expected = train(plain, make_loader(), make_config(speed="plain", **settings), test=make_test())
    found = train(fast, make_loader(), make_config(speed=speed, **settings), test=make_test())
    assert_close(fast, plain)
    for mine, theirs in zip(found.epochs, expected.epochs, strict=True):
        assert mine.train.total == theirs.train.total == 84  # warm-up steps do not count; the last batch does
        assert mine.train.loss == pytest.approx(theirs.train.loss, rel=1e-2)
        assert mine.lr == theirs.lr


def test_a_layer_that_is_used_twice_trains_as_in_plain_training(make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer, "UPDATES_IN_BACKWARD", ("normal",))
    runs = []
    for speed in ("plain", "captured"):
        torch.manual_seed(0)
        twice = BinaryConv2d(16, 16, 3, padding=1, bias=False)
        rows = [nn.Conv2d(1, 16, 3, bias=False), nn.BatchNorm2d(16), twice, nn.BatchNorm2d(16), nn.ReLU(), twice]
        net = nn.Sequential(*rows, nn.BatchNorm2d(16), nn.Flatten(), nn.Linear(576, 4)).cuda()
        train(net, make_loader(), make_config(speed=speed, precision="fp32", lr=0.01))
        runs.append(net)
    assert_close(*runs)


@pytest.mark.parametrize("speed", SPEEDS)
def test_the_images_are_the_same_to_the_last_crop_and_in_the_same_order(speed: str, make_config) -> None:
    plain, fast = Witness().cuda(), Witness().cuda()
    train(plain, make_loader(), make_config(speed="plain", precision="fp32"))
    train(fast, make_loader(), make_config(speed=speed, precision="fp32"))
    assert float(fast.count) == float(plain.count) == 18
    assert_same_images(fast, plain)


def test_quantizers_see_the_progress_of_training_inside_a_graph(make_config) -> None:
    plain, fast = make_net(quantizer=IRNet), make_net(quantizer=IRNet)
    settings = {"epochs": 4, "precision": "fp32", "lr": 0.01}
    train(plain, make_loader(), make_config(speed="plain", **settings))
    train(fast, make_loader(), make_config(speed="captured", **settings))
    assert float(fast[3].weight_quantizer.progress) == 0.75
    assert_close(fast, plain)


@pytest.mark.parametrize(("count", "speed"), [(16, "recorded"), (40, "captured"), (40, "recorded"), (10, "recorded")])
def test_epochs_of_very_few_batches_can_be_captured(count: int, speed: str, make_config) -> None:
    plain, fast = Witness().cuda(), Witness().cuda()
    train(plain, make_loader(count), make_config(speed="plain", precision="fp32"))
    history = train(fast, make_loader(count), make_config(speed=speed, precision="fp32"))
    assert [record.train.total for record in history.epochs] == [count] * 3
    assert_same_images(fast, plain)


@pytest.mark.parametrize("speed", ["captured", "recorded"])
def test_gradients_after_a_step_are_its_own_even_after_a_smaller_batch(speed: str, make_config) -> None:
    seen: dict[str, list[float]] = {"plain": [], speed: []}
    for way, sizes in seen.items():

        def watch(model: nn.Module, step: int, sizes: list[float] = sizes) -> None:
            if step:
                sizes.append(float(model[0].weight.grad.abs().sum()))

        train(make_net(), make_loader(), make_config(speed=way, precision="fp32", lr=0.01), watchers=[watch])
    assert len(seen[speed]) == 18
    assert seen[speed] == pytest.approx(seen["plain"], rel=0.02)


def test_parts_of_a_batch_and_clipping_can_be_captured(make_config) -> None:
    settings = {"precision": "fp32", "lr": 0.01, "accumulate": 2, "clip_norm": 0.5}
    plain, fast = Witness().cuda(), Witness().cuda()
    fast.load_state_dict(plain.state_dict())
    train(plain, make_loader(), make_config(speed="plain", **settings))
    train(fast, make_loader(), make_config(speed="captured", **settings))
    torch.testing.assert_close(fast.linear.weight, plain.linear.weight, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("speed", "precision", "settings"),
    [
        ("captured", "bf16", {}),
        ("recorded", "fp32", {}),
        ("recorded", "fp32", {"nesterov": True}),
        ("recorded", "bf16", {"momentum": 0.0, "weight_decay": 0.0}),
    ],
)
def test_latents_updated_in_the_backward_pass_train_as_by_the_optimizer(
    speed: str, precision: str, settings: dict[str, float], make_config, monkeypatch: pytest.MonkeyPatch
) -> None:
    nets = []
    for in_backward in (False, True):
        monkeypatch.setattr(optimizer, "UPDATES_IN_BACKWARD", ("normal",) if in_backward else ())
        torch.manual_seed(0)
        inner = nn.Sequential(nn.BatchNorm1d(128), nn.ReLU(), BinaryLinear(128, 256), nn.BatchNorm1d(256), nn.ReLU())
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 128, bias=False), inner, BinaryLinear(256, 4)).cuda()
        config = make_config(speed=speed, precision=precision, optimizer=OptimizerConfig(lr=0.01, **settings))
        train(net, make_loader(), config)
        assert (net[3].weight.grad is None) == in_backward
        nets.append(net)
    assert_close(*nets)  # torch rounds in another order
