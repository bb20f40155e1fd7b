"""Flips of every tenth step are those that a watcher of every step counts there."""

from torch import nn

from equalbits.analysis import FlipWatcher
from equalbits.data import Loader, load_dataset
from equalbits.nn import BinaryLinear, Sign
from equalbits.paper.items.flip_rate import SampledFlips
from equalbits.training import TrainConfig, train


def test_flips_of_sampled_steps_are_those_counted_at_every_step():
    layers = [BinaryLinear(64, 32, weight_quantizer=Sign()), nn.ReLU(), BinaryLinear(32, 4, weight_quantizer=Sign())]
    model = nn.Sequential(nn.Flatten(), *layers)
    every, sampled = FlipWatcher(), SampledFlips(every=10)
    batches = Loader(load_dataset("synthetic:1x8x8:4:128", split="train"), batch_size=8, shuffle=True)
    train(model, batches, TrainConfig(epochs=2), watchers=[every, sampled])
    series = list(every.layers.values())
    steps = [place for place, step in enumerate(series[0].steps) if step % 10 == 1]
    assert [series[0].steps[place] for place in steps] == [1, 11, 21, 31]
    expected = sum(each.to_positive[place] + each.to_negative[place] for each in series for place in steps)
    assert (int(sampled.flipped), sampled.steps) == (expected, 4) and expected > 0
