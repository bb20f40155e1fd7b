"""Methods with more than a gradient: Bop's flips, clipping, refitting, penalties."""

import copy
import os
import signal

import pytest
import torch
from torch import nn

from equalbits.nn import (
    MPT,
    RBNN,
    BinaryConnect,
    BinaryLayer,
    BinaryLinear,
    Bits,
    BNNPlus,
    PrunedBiHalf,
    PrunedSign,
    WeightQuantizer,
    at_epoch_,
)
from equalbits.training import InterruptedTraining, OptimizerConfig, train
from equalbits.training.config import TrainConfig
from equalbits.training.optimizer import make_optimizer, set_learning_rate


def net(quantizer: WeightQuantizer, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = BinaryLinear(64, 8, bias=False, weight_quantizer=quantizer)
        return nn.Sequential(nn.Flatten(), layer, nn.BatchNorm1d(8), nn.Linear(8, 4))


def first(model: nn.Module) -> BinaryLayer:
    return next(layer for layer in model.modules() if isinstance(layer, BinaryLayer))


def config(make_config, **settings) -> TrainConfig:
    return make_config(optimizer=OptimizerConfig(**{"lr": 0.05, **settings}))


@pytest.mark.parametrize(("name", "p_pos"), [("bop", None), ("balanced-bop", 0.5), ("balanced-bop", 0.25)])
def test_bop_keeps_bits_bits_and_balanced_bop_their_share(name, p_pos, make_loader, make_config) -> None:
    model = net(Bits(p_pos=p_pos))
    before = copy.deepcopy(model)
    train(model, make_loader(), config(make_config, name=name, gamma=0.01))
    bits = first(model).weight
    assert set(bits.abs().flatten().tolist()) == {1.0}
    assert not torch.equal(bits, first(before).weight)
    assert not torch.equal(model[3].weight, before[3].weight)
    if p_pos is not None:
        assert (bits > 0).sum(dim=1).tolist() == [64 * p_pos] * 8


@pytest.mark.parametrize("capture", [False, True])
def test_gamma_follows_the_learning_rate(capture) -> None:
    optimizer = make_optimizer(net(Bits()), OptimizerConfig(name="bop", lr=0.2, gamma=0.01), capture=capture)
    set_learning_rate(optimizer, 0.05)
    assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([0.05, 0.05])
    assert isinstance(optimizer.param_groups[0]["lr"], torch.Tensor) == capture
    (bits,) = optimizer.param_groups[0]["params"]
    bits.grad = torch.ones_like(bits)
    optimizer.step()
    assert optimizer.state[bits]["momentum"].unique().tolist() == pytest.approx([0.0025])


def test_gamma_on_the_device_flips_the_same_bits() -> None:
    models = [net(Bits(p_pos=0.5)) for _ in range(2)]
    for model, capture in zip(models, (False, True), strict=True):
        settings = OptimizerConfig(name="balanced-bop", gamma=0.25)
        optimizer = make_optimizer(model, settings, capture=capture)
        torch.manual_seed(0)
        for _ in range(5):
            first(model).weight.grad = torch.randn(8, 64)
            optimizer.step()
    assert torch.equal(first(models[0]).weight, first(models[1]).weight)


@pytest.mark.parametrize(
    ("name", "kind"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)]
)
def test_real_parameters_beside_bits_use_the_requested_optimizer(name, kind) -> None:
    model = net(Bits(p_pos=0.5))
    settings = OptimizerConfig(name="balanced-bop", reals=name, lr=0.02, weight_decay=0.0, betas=(0.8, 0.9), gamma=0.5)
    optimizer = make_optimizer(model, settings)
    assert type(optimizer.parts[1]) is kind
    assert optimizer.param_groups[1].get("betas", (0.8, 0.9)) == (0.8, 0.9)
    before = model[3].weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.25)
    optimizer.step()
    moved = 0.02 if name != "sgd" else 0.02 * 0.25  # Adam's first step is the rate, whatever the gradient
    torch.testing.assert_close(before - model[3].weight, torch.full_like(before, moved))
    assert set(first(model).weight.abs().flatten().tolist()) == {1.0}


def test_a_net_of_bits_trains_with_adam_and_resumes_from_a_checkpoint(tmp_path, make_loader, make_config) -> None:
    settings = config(make_config, name="bop", reals="adam", lr=0.01, gamma=0.01)
    whole, halted = net(Bits()), net(Bits())
    train(whole, make_loader(), settings)
    with pytest.raises(InterruptedTraining):
        train(halted, make_loader(), settings, out=tmp_path, reporters=[lambda _: os.kill(os.getpid(), signal.SIGTERM)])
    train(halted, make_loader(), settings, out=tmp_path)
    assert all(map(torch.equal, whole.parameters(), halted.parameters()))


def test_bits_without_real_parameters_need_no_second_optimizer() -> None:
    model = nn.Sequential(BinaryLinear(6, 2, bias=False, weight_quantizer=Bits()))
    assert [len(group["params"]) for group in make_optimizer(model, OptimizerConfig(name="bop")).param_groups] == [1]


def test_bop_is_refused_where_there_are_no_bits(make_net, make_loader, make_config) -> None:
    with pytest.raises(ValueError, match="the model has no bits to optimize"):
        train(make_net(), make_loader(), config(make_config, name="bop"))


def test_bits_are_not_given_to_an_optimizer_of_reals(make_loader, make_config) -> None:
    with pytest.raises(ValueError, match="'sgd' would make bits real numbers: a net of bits needs 'bop'"):
        train(net(Bits()), make_loader(), make_config())


@pytest.mark.parametrize(("setting", "value"), [("gamma", 0.0), ("gamma", 1.5), ("tau", -1.0)])
def test_settings_of_bop_are_validated_at_construction(setting, value) -> None:
    with pytest.raises(ValueError, match=rf"optimizer\.{setting}={value} must be"):
        OptimizerConfig(name="bop", **{setting: value})


def test_latents_of_binary_connect_stay_within_one(make_loader, make_config) -> None:
    model = net(BinaryConnect())
    first(model).weight.data.mul_(10)
    train(model, make_loader(), config(make_config, lr=1.0))
    assert first(model).weight.abs().max() == 1


def test_rotations_are_refitted_before_the_first_step_of_an_epoch(make_loader, make_config) -> None:
    model = net(RBNN())
    expected = copy.deepcopy(model)
    first(expected).weight.data.copy_(first(model).weight.data.normal_())
    at_epoch_(expected)
    train(model, make_loader(), make_config(epochs=1))
    assert torch.equal(first(model).weight_quantizer.left, first(expected).weight_quantizer.left)


def test_a_resumed_epoch_does_not_refit_again(make_loader, make_config, tmp_path) -> None:
    def stop(model: nn.Module, step: int) -> None:
        if step == 8:
            os.kill(os.getpid(), signal.SIGTERM)

    whole, cut = net(RBNN()), net(RBNN())
    train(whole, make_loader(), make_config())
    with pytest.raises(InterruptedTraining):
        train(cut, make_loader(), make_config(), watchers=[stop], out=tmp_path)
    other = net(RBNN(), seed=5)
    train(other, make_loader(), make_config(), out=tmp_path)
    assert all(map(torch.equal, whole.state_dict().values(), other.state_dict().values()))


def test_a_penalty_moves_the_weights_and_is_not_counted_as_loss(make_loader, make_config) -> None:
    free, pulled = net(BNNPlus(penalty_weight=0.0)), net(BNNPlus(penalty_weight=0.1))
    batch = [next(iter(make_loader().epoch(0)))]
    losses = [train(model, batch, make_config(epochs=1)).epochs[0].train.loss for model in (free, pulled)]
    assert losses[0] == losses[1]
    assert not torch.equal(first(free).weight, first(pulled).weight)


@pytest.mark.parametrize(
    "quantizer",
    [
        PrunedBiHalf(0.9, ramp=1.0),
        PrunedBiHalf(0.9, by="score", ramp=0.9),
        PrunedSign(0.9, scope="global", ramp=1.0),
        MPT(0.9, ramp=1.0),
    ],
)
def test_a_ramp_that_ends_in_the_last_epoch_ends_at_the_sparsity_asked_for(
    quantizer, tmp_path, make_loader, make_config
) -> None:
    zeros = []

    def watch(model: nn.Module, step: int) -> None:
        zeros.append(int((first(model).symbols() == 0).sum()))
        if step == 14 and len(zeros) == 15:  # within the third and last epoch of 6 steps, once
            os.kill(os.getpid(), signal.SIGTERM)

    whole, parts, rest = (net(quantizer, seed) for seed in (0, 0, 9))
    train(whole, make_loader(), make_config())
    with pytest.raises(InterruptedTraining):
        train(parts, make_loader(), make_config(), watchers=[watch], out=tmp_path)
    train(rest, make_loader(), make_config(), watchers=[watch], out=tmp_path)
    asked = 8 * 58 if quantizer.p_pos is not None and quantizer.by == "rank" else 460  # of 8 × 64, by filter or in all
    assert zeros[:7] == [256] * 7 and max(zeros[7:13]) < asked
    assert zeros[13:] == [asked] * 7  # steps 13 to 18, the 14th seen twice
    assert all(torch.equal(a, b) for a, b in zip(rest.state_dict().values(), whole.state_dict().values(), strict=True))
