"""Inputs of binary layers are counted per channel over all batches."""

import pytest
import torch
from torch import nn

from equalbits.analysis import activation_bits
from equalbits.nn import BinaryConv1d, BinaryConv2d, BinaryConvTranspose2d, BinaryLayer, BinaryLinear, SignActivation


def test_counts_are_per_channel_over_positions_and_batches():
    inputs = torch.randn(6, 3, 5, 4)
    model = nn.Sequential(BinaryConv2d(3, 2, 3, input_quantizer=SignActivation()))
    (found,) = activation_bits(model, [inputs[:4], (inputs[4:], torch.zeros(2))]).values()
    assert found.total == 6 * 20
    assert found.positive.tolist() == [int((inputs[:, channel] >= 0).sum()) for channel in range(3)]
    share = found.positive / 120
    expected = -(share * share.log2() + (1 - share) * (1 - share).log2())
    torch.testing.assert_close(found.entropy, expected)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (BinaryLinear(3, 2), (5, 3)),
        (BinaryLinear(3, 2), (5, 7, 3)),
        (BinaryConv1d(3, 2, 1), (5, 3, 7)),
        (BinaryConv2d(3, 2, 1), (3, 4, 4)),
        (BinaryConvTranspose2d(3, 2, 1), (5, 3, 4, 4)),
    ],
)
def test_the_channel_is_found_in_every_kind_of_layer(layer, shape):
    axis = shape.index(3)
    inputs = torch.full(shape, -1.0)
    inputs.select(axis, 1).fill_(0.0)  # counts as +1
    found = activation_bits(nn.Sequential(layer), [inputs])["0"]
    assert found.share.tolist() == [0, 1, 0]
    assert found.entropy.tolist() == [0, 0, 0]


class ChannelsLast(BinaryLayer):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 3))
        self.make_binary_(None, None)

    def input_channels(self):
        return 3, -1

    def forward(self, inputs):
        return inputs @ self.binary_weight().T


class Silent(ChannelsLast):
    def input_channels(self):
        return None


def test_a_custom_layer_names_its_channel_axis_or_has_it_second():
    inputs = torch.tensor([[1.0, -1.0, -1.0], [1.0, 1.0, -1.0]])
    for layer in (ChannelsLast(), Silent()):
        assert activation_bits(nn.Sequential(layer), [inputs])["0"].share.tolist() == [1, 0.5, 0]
    assert activation_bits(nn.Sequential(ChannelsLast()), [inputs[:, None]])["0"].share.tolist() == [1, 0.5, 0]


class Shifted(nn.Module):
    def forward(self, inputs):
        return torch.where(inputs >= 5, 1.0, -1.0)


def test_inputs_are_counted_after_the_input_quantizer():
    model = nn.Sequential(BinaryLinear(2, 2, input_quantizer=Shifted()))
    assert activation_bits(model, [torch.tensor([[4.0, 6.0]])])["0"].positive.tolist() == [0, 1]


def test_a_layer_called_twice_counts_twice():
    layer = BinaryLinear(2, 2)
    found = activation_bits(nn.Sequential(layer, layer), [torch.ones(3, 2)])
    assert found["0"].total == 6


def test_the_model_is_unchanged():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(), BinaryLinear(4, 2)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    activation_bits(model, [torch.randn(8, 4)])
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_no_batches_or_no_binary_layer_raises():
    with pytest.raises(ValueError, match="no input reached a binary layer"):
        activation_bits(nn.Sequential(BinaryLinear(4, 2)), [])
    with pytest.raises(ValueError, match="has no binary layer"):
        activation_bits(nn.Sequential(nn.Linear(4, 2)), [torch.ones(1, 4)])
