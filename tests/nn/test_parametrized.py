"""Latents that torch computes from other parameters, as its norms do."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from equalbits.nn import (
    MPT,
    BinaryConnect,
    BinaryLinear,
    Bits,
    after_step_,
    bop_parameters,
    freeze_latents_,
)


class Doubled(nn.Module):
    def forward(self, latents: Tensor) -> Tensor:
        return 2 * latents


class DoubledAndBack(Doubled):
    def right_inverse(self, latents: Tensor) -> Tensor:
        return latents / 2


def test_latents_that_cannot_be_assigned_raise_with_the_remedy() -> None:
    nets = [nn.Sequential(BinaryLinear(6, 4, weight_quantizer=BinaryConnect())) for _ in range(2)]
    for net, computed_by in zip(nets, (Doubled(), DoubledAndBack()), strict=True):
        parametrize.register_parametrization(net[0], "weight", computed_by)
        net[0].parametrizations["weight"].original.data.fill_(3.0)
    with pytest.raises(RuntimeError, match="Doubled does not implement right_inverse"):
        after_step_(nets[0])
    after_step_(nets[1])
    assert nets[1][0].weight.unique().tolist() == [1.0]


def test_a_clip_that_torchs_pruning_would_undo_raises() -> None:
    net = nn.Sequential(BinaryLinear(6, 4, weight_quantizer=BinaryConnect()))
    prune.l1_unstructured(net[0], "weight", 0.5)
    with pytest.raises(ValueError, match="weight_orig or weight_v cannot be changed"):
        after_step_(net)
    prune.remove(net[0], "weight")
    net[0].weight.data.mul_(100)
    after_step_(net)
    assert net[0].weight.abs().max() == 1


def test_parametrized_latents_are_frozen_at_their_original() -> None:
    net = nn.Sequential(parametrizations.weight_norm(BinaryLinear(6, 4, weight_quantizer=MPT())))
    assert freeze_latents_(net) == ["0"]
    assert [name for name, parameter in net.named_parameters() if parameter.requires_grad] == [
        "0.bias",
        "0.weight_quantizer.scores",
    ]
    net(torch.randn(3, 6)).sum().backward()


def test_parametrized_bits_raise() -> None:
    net = nn.Sequential(parametrizations.weight_norm(BinaryLinear(6, 4, weight_quantizer=Bits())))
    with pytest.raises(ValueError, match="layer '0' computes its weight from other parameters"):
        bop_parameters(net)


def test_a_training_pass_computes_parametrized_latents_once() -> None:
    torch.manual_seed(0)
    binary = parametrizations.spectral_norm(BinaryLinear(6, 4))
    real = parametrizations.spectral_norm(nn.Linear(6, 4))
    real.load_state_dict(binary.state_dict(), strict=False)
    for layer in (binary, real):
        layer(torch.ones(2, 6)).sum().backward()
    moved = [layer.parametrizations["weight"][0]._u for layer in (binary, real)]  # by one step each time it is asked
    assert torch.equal(*moved)
