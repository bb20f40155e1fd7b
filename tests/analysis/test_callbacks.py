"""The meter of bits counts what the watchers count, and the callbacks hand it to their trainers."""

import pytest
import torch
from torch import nn

import equalbits as eb
from equalbits.analysis import BitMeter, EntropyWatcher, FlipWatcher


def test_the_meter_agrees_with_the_watchers():
    torch.manual_seed(0)
    model = nn.Sequential(eb.BinaryLinear(32, 8, weight_quantizer=eb.Sign()), eb.BinaryLinear(8, 4))
    meter, flips, entropy = BitMeter(), FlipWatcher(), EntropyWatcher()
    for step in range(3):
        values = meter(model)
        flips(model, step)
        entropy(model, step)
        if step:
            up, down = (
                sum(getattr(s, name)[-1] for s in flips.layers.values()) for name in ("to_positive", "to_negative")
            )
            assert (values["bits/to_positive"], values["bits/to_negative"]) == (up, down) and up + down > 0
        assert values["bits/entropy"] == entropy.network[-1]
        assert values["bits/inexact_filters"] == 0
        for layer in model:
            layer.weight.data.add_(torch.randn_like(layer.weight))


def test_updates_add_flips_until_a_reset_as_metrics_do():
    torch.manual_seed(0)
    model = nn.Sequential(eb.BinaryLinear(32, 8, weight_quantizer=eb.BiHalf()))
    metric, single = BitMeter(exactness=False), BitMeter()
    with pytest.raises(ValueError, match="the meter has measured no model"):
        metric.compute()
    metric.update(model), single(model)
    flips = 0
    for _ in range(3):
        model[0].weight.data.add_(torch.randn_like(model[0].weight))
        metric.update(model)
        flips += single(model)["bits/to_positive"]
    assert flips > 0
    assert metric.compute() == {"bits/entropy": 1.0, "bits/to_positive": flips, "bits/to_negative": flips}
    metric.reset()
    metric.update(model)
    assert metric.compute()["bits/to_positive"] == 0
