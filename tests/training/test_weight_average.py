"""The moving average of the weights: its formula; it is evaluated, saved and resumed."""

import os
import signal

import pytest
import torch
from torch import nn

from equalbits.nn import PrunedSign
from equalbits.training import InterruptedTraining, evaluate, load_checkpoint, train, train_stack, with_prefix
from equalbits.training.weight_average import WeightAverage


def averaged_by_hand(model: nn.Module, decay: float) -> tuple[dict[str, torch.Tensor], list]:
    """A watcher that averages weights and batch-norm statistics of the model, and the averages it makes."""
    average = {name: value.clone() for name, value in model.state_dict().items() if value.is_floating_point()}

    def watch(net: nn.Module, step: int) -> None:
        for name, value in net.state_dict().items() if step else ():
            if name in average:
                average[name] += (1 - min(decay, step / (9 + step))) * (value - average[name])

    return average, [watch]


def test_the_average_of_every_step_is_scored_and_kept(make_net, make_loader, make_config, tmp_path) -> None:
    model, test = make_net(norm=True), make_loader("test")
    average, watchers = averaged_by_hand(model, 0.9)
    history = train(model, make_loader(), make_config(weight_average=0.9), test=test, watchers=watchers, out=tmp_path)
    found = model.state_dict()
    for name, value in average.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)
    assert {int(row.sum()) for row in model[3].symbols().flatten(1)} == {0}  # latents are averaged, then binarized
    assert evaluate(model, test) == history.last.test
    tensors, _ = load_checkpoint(tmp_path / "last.safetensors")
    assert all(torch.equal(value, found[name]) for name, value in with_prefix("average.", tensors).items())
    assert not torch.equal(tensors["model.0.weight"], found["0.weight"])


def test_buffers_of_quantizers_are_not_averaged(make_net, make_loader, make_config) -> None:
    model = make_net(norm=True)
    model[3].weight_quantizer = PrunedSign(0.75, scope="layer", ramp=0.5)
    train(model, make_loader(), make_config(weight_average=0.99), test=make_loader("test"))
    assert int((model[3].symbols() == 0).sum()) == 108


def test_the_decay_is_smaller_at_first_and_continues_after_a_load() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    average = WeightAverage(model, 0.999)
    nn.init.zeros_(model.weight)
    for _ in range(237):
        average.update()
    assert float(average.tensors["weight"]) < 1e-6
    resumed = WeightAverage(model, 0.999)
    resumed.load(average.tensors, 237)
    for each in (average, resumed):
        nn.init.ones_(model.weight)
        each.update()
    assert torch.equal(average.tensors["weight"], resumed.tensors["weight"])


def test_training_itself_does_not_see_the_average(make_net, make_loader, make_config) -> None:
    losses = []
    for decay in (0.0, 0.99):
        history = train(make_net(norm=True), make_loader(), make_config(weight_average=decay), test=make_loader("test"))
        losses.append([epoch.train.loss for epoch in history.epochs])
    assert losses[0] == losses[1]


def test_an_average_is_resumed_and_a_finished_run_gives_it_again(make_net, make_loader, make_config, tmp_path) -> None:
    config, test = make_config(weight_average=0.9), make_loader("test")
    whole, parts = make_net(norm=True), make_net(norm=True)
    expected = train(whole, make_loader(), config, test=test)
    stop = [lambda model, step: os.kill(os.getpid(), signal.SIGTERM) if step == 8 else None]
    with pytest.raises(InterruptedTraining):
        train(parts, make_loader(), config, test=test, watchers=stop, out=tmp_path)
    for seed in (1, 2):  # the second time nothing is left to train
        parts = make_net(seed, norm=True)
        found = train(parts, make_loader(), config, test=test, out=tmp_path)
        assert found.epochs[-1].test == expected.epochs[-1].test
        assert all(torch.equal(value, parts.state_dict()[name]) for name, value in whole.state_dict().items())


def test_a_run_interrupted_while_its_average_is_scored_resumes_to_the_same_bits(
    make_net, make_loader, make_config, tmp_path
) -> None:
    config, test = make_config(weight_average=0.9), make_loader("test")
    whole, parts = make_net(norm=True), make_net(norm=True)
    expected = train(whole, make_loader(), config, test=test)

    class Interrupting(list):
        def __iter__(self):
            os.kill(os.getpid(), signal.SIGTERM)
            return super().__iter__()

    with pytest.raises(InterruptedTraining):
        train(parts, make_loader(), config, test=Interrupting(test), out=tmp_path)
    parts = make_net(1, norm=True)
    found = train(parts, make_loader(), config, test=test, out=tmp_path)
    assert [epoch.test for epoch in found.epochs] == [epoch.test for epoch in expected.epochs]
    assert all(torch.equal(value, parts.state_dict()[name]) for name, value in whole.state_dict().items())


def test_a_net_in_a_stack_has_the_average_of_a_net_alone(make_net, make_loader, make_config) -> None:
    config, test = make_config(weight_average=0.9), make_loader("test")
    alone, stacked = make_net(norm=True), [make_net(norm=True), make_net(1, norm=True)]
    train(alone, make_loader(), config, test=test)
    train_stack(stacked, [make_loader(), make_loader()], [config, config], test=test)
    assert all(torch.equal(value, stacked[0].state_dict()[name]) for name, value in alone.state_dict().items())
