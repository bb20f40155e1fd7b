"""Gradients that are not finite show in the bits they would have moved."""

import pytest
import torch
from torch import Tensor, nn

from equalbits.nn import BinaryLinear, Bits, bop_parameters
from equalbits.optim import BalancedBop, Bop
from equalbits.training import NonFiniteError, OptimizerConfig, TrainConfig, train


@pytest.mark.parametrize("kind", [Bop, BalancedBop])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_bit_whose_gradient_is_not_finite_becomes_nan_and_no_other(kind, value):
    torch.manual_seed(0)
    net = nn.Sequential(BinaryLinear(8, 4, weight_quantizer=Bits(0.5)))
    optimizer = kind(bop_parameters(net).bits, gamma=0.5, tau=0.0)
    net[0].weight.grad = torch.randn(4, 8)
    net[0].weight.grad[1, 2] = value
    optimizer.step()
    bad = torch.zeros(4, 8, dtype=torch.bool)
    bad[1, 2] = True
    assert torch.equal(net[0].weight.isnan(), bad)
    assert net[0].weight[~bad].abs().unique().tolist() == [1.0]


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs: Tensor) -> Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient * torch.nan


class Lost(nn.Module):
    """Passes values on, and NaN back."""

    def forward(self, inputs: Tensor) -> Tensor:
        return _NoGradient.apply(inputs)


def test_training_stops_when_bit_gradients_are_non_finite_though_the_loss_is_finite():
    net = nn.Sequential(BinaryLinear(8, 4, bias=False, weight_quantizer=Bits()), Lost())
    config = TrainConfig(epochs=1, optimizer=OptimizerConfig(name="bop"))
    with pytest.raises(NonFiniteError, match="non-finite weights"):
        train(net, [(torch.randn(6, 8), torch.arange(6) % 4)] * 2, config)
