import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

from equalbits.analysis import audit
from equalbits.nn import BiHalf, BinaryConvTranspose2d, BinaryLinear, Bits, PrunedBiHalf, bop_parameters
from equalbits.optim import BalancedBop, Bop


def averaged_while_learning(net, optimizer, average):
    """Average of the net's weights over random steps."""
    torch.manual_seed(0)
    mean = AveragedModel(net, multi_avg_fn=average)
    for _ in range(6):
        for parameter in net.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        mean.update_parameters(net)
    return mean


def net_of(quantizer):
    torch.manual_seed(0)
    return nn.Sequential(
        BinaryConvTranspose2d(4, 6, 3, groups=2, bias=False, weight_quantizer=quantizer),
        nn.Flatten(),
        BinaryLinear(54, 8, bias=False, weight_quantizer=quantizer),
    )


@pytest.mark.parametrize("average", [get_ema_multi_avg_fn(0.7), get_swa_multi_avg_fn()])
@pytest.mark.parametrize("p_pos", [0.25, 0.5])
def test_averaged_bits_keep_the_guaranteed_share(p_pos, average):
    net = net_of(Bits(p_pos))
    mean = averaged_while_learning(net, BalancedBop(bop_parameters(net).bits, gamma=0.5, tau=0.0), average).module
    for layer in (mean[0], mean[2]):
        weight = layer.to_filters(layer.weight.detach())
        assert not weight.abs().eq(1).all()
        assert (weight >= 0).flatten(1).sum(dim=1).unique().numel() > 1  # so their signs would not hold it
    assert audit(mean).exact
    found = mean[0].symbols()
    bop_parameters(mean)
    assert torch.equal(mean[0].symbols(), found)
    assert torch.equal(mean[0].to_filters(mean[0].weight), found)


@pytest.mark.parametrize("quantizer", [BiHalf(0.25), PrunedBiHalf(0.5), PrunedBiHalf(0.5, by="score")])
def test_averaged_latents_keep_the_guaranteed_share(quantizer):
    net = net_of(quantizer)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    assert audit(averaged_while_learning(net, optimizer, get_ema_multi_avg_fn(0.7))).exact


def test_bits_unbalanced_by_an_optimizer_are_not_rebalanced():
    net = net_of(Bits(0.5))
    averaged_while_learning(net, Bop(bop_parameters(net).bits, gamma=0.5, tau=0.0), None)
    assert torch.equal(net[2].symbols(), net[2].weight.detach())
    assert not audit(net, strict=False).exact
    bop_parameters(net)
    assert not audit(net, strict=False).exact
