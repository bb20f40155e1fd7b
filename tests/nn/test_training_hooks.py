"""Hooks of a method: before an epoch, after a step, in the loss."""

import copy

import pytest
import torch
from torch import nn

from equalbits.nn import (
    RBNN,
    BiHalf,
    BinaryConnect,
    BinaryConv2d,
    BinaryConvTranspose2d,
    BinaryLinear,
    BNNPlus,
    Sign,
    after_step_,
    at_epoch_,
    layers_with_hook,
)
from equalbits.nn.training_hooks import penalty


def test_binary_connect_clips_only_its_own_latents() -> None:
    model = nn.Sequential(*(BinaryLinear(6, 3, weight_quantizer=kind()) for kind in (BinaryConnect, Sign)))
    for layer in model:
        layer.weight.data.mul_(100)
    before = [layer.weight.detach().clone() for layer in model]
    after_step_(model)
    assert torch.equal(model[0].weight, before[0].clamp(-1, 1))
    assert torch.equal(model[1].weight, before[1])


def test_transposed_layers_are_clipped_too() -> None:
    layer = BinaryConvTranspose2d(4, 6, 3, groups=2, weight_quantizer=BinaryConnect())
    layer.weight.data.mul_(100)
    expected = layer.weight.detach().clamp(-1, 1)
    after_step_(layer)
    assert torch.equal(layer.weight, expected)


def test_rotations_are_refitted_at_an_epoch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(BinaryConv2d(4, 8, 3, weight_quantizer=RBNN()))
    model[0].weight.data.normal_()
    twin = copy.deepcopy(model)
    at_epoch_(model)
    twin[0].weight_quantizer.at_epoch_(twin[0].latents())
    assert torch.equal(model[0].weight_quantizer.left, twin[0].weight_quantizer.left)


def test_the_penalty_is_the_weighted_one_of_bnn_plus() -> None:
    model = nn.Sequential(
        BinaryLinear(6, 3, weight_quantizer=BNNPlus(penalty_weight=0.5)), BinaryLinear(3, 2, weight_quantizer=BiHalf())
    )
    found = penalty(layers_with_hook(model, "penalty"))
    quantizer, weight = model[0].weight_quantizer, model[0].weight
    torch.testing.assert_close(found, 0.5 * (quantizer.gains[:, None] - weight.abs()).abs().sum())
    found.backward()
    assert model[0].weight.grad is not None and model[1].weight.grad is None
    with pytest.raises(ValueError, match="penalty_weight=-1 would push"):
        BNNPlus(penalty_weight=-1)


def test_most_methods_have_no_hooks() -> None:
    model = nn.Sequential(BinaryLinear(6, 3, weight_quantizer=BiHalf()), nn.Linear(3, 2))
    assert [layers_with_hook(model, moment) for moment in ("at_epoch_", "after_step_", "penalty")] == [[], [], []]
    assert model[0].weight_quantizer.penalty(model[0].weight) == 0


def test_a_custom_method_acts_by_overriding_the_hooks() -> None:
    class Halving(Sign):
        def after_step_(self, latents: torch.Tensor) -> None:
            latents.mul_(0.5)

    layer = BinaryLinear(6, 3, weight_quantizer=Halving())
    before = layer.weight.detach().clone()
    after_step_(layer)
    assert torch.equal(layer.weight, before / 2)


@pytest.mark.parametrize("make", [lambda **k: BinaryLinear(6, 4, **k), lambda **k: BinaryConvTranspose2d(6, 4, 2, **k)])
def test_parametrized_latents_are_clipped_at_their_original(make):
    layer = nn.utils.parametrizations.weight_norm(make(weight_quantizer=BinaryConnect()))
    with torch.no_grad():
        layer.parametrizations.weight.original0.mul_(20)  # each one's length
        before = layer.weight.clone()
    assert before.abs().max() > 1.5
    after_step_(layer)
    torch.testing.assert_close(layer.weight.detach(), before.clamp(-1, 1))
