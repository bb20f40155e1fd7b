"""Latents updated in the backward pass equal those that an optimizer updates after it."""

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from equalbits.nn import BackwardUpdates, BinaryConv2d, BinaryLinear, SeveralGradientsError, SignActivation
from equalbits.nn.rank_ahead import ACTIVE_RANKERS
from equalbits.training import OptimizerConfig, TrainConfig, make_optimizer
from equalbits.training.optimizer import backward_updates, update_latents_

SGD = OptimizerConfig(lr=0.1, weight_decay=1e-3)
ADAM = OptimizerConfig(name="adamw", lr=0.01)


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    conv = BinaryConv2d(4, 6, 3, padding=1, input_quantizer=SignActivation())
    net = nn.Sequential(nn.Conv2d(3, 4, 3), conv, nn.BatchNorm2d(6), nn.Flatten(), BinaryLinear(96, 5))
    for number, layer in enumerate(binary_layers(net)):
        layer.ranked_ahead = number, torch.float32
    return net


def binary_layers(net: nn.Module) -> list[BinaryConv2d | BinaryLinear]:
    return [layer for layer in net.modules() if isinstance(layer, BinaryConv2d | BinaryLinear)]


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rank the layers of the last net made at each call."""
    nets: list[nn.Module] = []

    def symbols(number: int) -> Tensor:
        layer = binary_layers(nets[-1])[number]
        return (layer.symbols() * layer.scale).detach()

    monkeypatch.setattr(ACTIVE_RANKERS, "stack", [symbols])
    return nets.append


def train_steps(net: nn.Module, optimizer: torch.optim.Optimizer, updates: BackwardUpdates | None, forward) -> None:
    torch.manual_seed(1)
    for _ in range(4):
        optimizer.zero_grad()
        images, labels = torch.randn(8, 3, 6, 6), torch.randint(5, (8,))
        with updates or nullcontext():
            loss = nn.functional.cross_entropy(forward(images), labels)
        loss.backward()
        if updates is not None:
            updates.check()
            assert all(layer.weight.grad is None for layer in binary_layers(net))
        optimizer.step()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("settings", [SGD, OptimizerConfig(lr=0.1, nesterov=True), OptimizerConfig(momentum=0.0), ADAM])
def test_latents_updated_in_the_backward_pass_are_those_of_the_optimizer(
    settings: OptimizerConfig, compiled: bool, rank
) -> None:
    found = []
    for in_backward in (False, True):
        net = make_net()
        rank(net)
        optimizer = make_optimizer(net, settings, capture=settings is not ADAM)  # on a CPU Adam cannot be captured
        config = TrainConfig(epochs=1, optimizer=settings, memory="small")
        updates = backward_updates(binary_layers(net), optimizer, config) if in_backward else None
        torch._dynamo.reset()
        forward = torch.compile(net, backend="aot_eager", fullgraph=True) if compiled else net
        train_steps(net, optimizer, updates, forward)
        states = [optimizer.state[parameter].values() for parameter in net.parameters()]
        found.append([*net.state_dict().values(), *itertools.chain(*states)])
    assert len(found[0]) == len(found[1])
    # SGD on a CPU rounds in another order than on a GPU, whose order the updates have.
    exact = {"rtol": 0, "atol": 0} if settings is ADAM else {}
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, **exact)


def test_gradients_are_kept_where_all_are_needed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net = make_net()
    layers, make = binary_layers(net), partial(TrainConfig, epochs=1, memory="small")
    assert backward_updates(layers, make_optimizer(net, SGD), make()) is not None
    for config in (make(clip_norm=1.0), make(accumulate=2)):
        assert backward_updates(layers, make_optimizer(net, SGD), config) is None
    assert backward_updates(layers, make_optimizer(net, SGD), make(memory="normal")) is None
    layers[1].weight.requires_grad_(False)
    updates = backward_updates(layers, make_optimizer(net, SGD), make())
    assert [gate.layer for gate in updates.gates] == layers[:1]
    tied = BinaryConv2d(4, 6, 3)
    tied.weight = layers[0].weight
    assert backward_updates([layers[0], tied], make_optimizer(net, SGD), make()) is None
    monkeypatch.setattr("equalbits.training.optimizer.UPDATES_IN_BACKWARD", ())
    assert backward_updates(layers, make_optimizer(net, SGD), make()) is None


@pytest.mark.parametrize("way", ["twice", "penalty"])
def test_a_second_gradient_of_the_same_latents_is_an_error(way: str, rank) -> None:
    net = make_net()
    rank(net)
    layer = binary_layers(net)[1]
    updates = BackwardUpdates([layer], partial(update_latents_, make_optimizer(net, SGD, capture=True)))
    with updates:
        loss = layer(torch.randn(2, 96)).sum()
        loss = loss + (layer(torch.randn(2, 96)).sum() if way == "twice" else layer.weight.square().sum())
    loss.backward()
    with pytest.raises(SeveralGradientsError, match="more than once"):
        updates.check()
    assert layer.update_gate is None
