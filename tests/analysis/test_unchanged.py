"""Measuring a model during training leaves it unchanged."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from equalbits.analysis import EntropyWatcher, FlipWatcher, activation_bits, audit, summarize
from equalbits.nn import BiHalf, BinaryConnect, BinaryConv2d, BinaryLinear, SignActivation, empty_filters

MEASUREMENTS = {
    "audit": audit,
    "summarize": lambda model: summarize(model, torch.ones(2, 3, 6, 6)),
    "flips": lambda model: FlipWatcher()(model, 0),
    "entropy": lambda model: EntropyWatcher()(model, 0),
    "inputs": lambda model: activation_bits(model, [torch.ones(2, 3, 6, 6)]),
    "empty filters": empty_filters,
}


def made(quantizer) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        spectral_norm(BinaryConv2d(3, 8, 3, weight_quantizer=quantizer)),
        nn.BatchNorm2d(8),
        nn.Dropout(0.5),
        nn.Flatten(),
        BinaryLinear(128, 4, weight_quantizer=quantizer, input_quantizer=SignActivation()),
    )


@pytest.mark.parametrize("measure", MEASUREMENTS.values(), ids=MEASUREMENTS)
@pytest.mark.parametrize("quantizer", [BiHalf(), BinaryConnect(stochastic=True)], ids=["bihalf", "stochastic"])
def test_a_measurement_changes_neither_model_nor_random_state(quantizer, measure):
    model = made(quantizer)
    before, drawn = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    measure(model)
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), drawn)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_stochastic_weights_are_summarized_as_they_are_packed():
    model = nn.Sequential(BinaryLinear(64, 8, bias=False, weight_quantizer=BinaryConnect(stochastic=True)))
    assert summarize(model, (1, 64)).total == summarize(model.eval(), (1, 64)).total
    assert summarize(model.train(), (1, 64)).layers[0].packed_bytes == 8 * 8 + 4
