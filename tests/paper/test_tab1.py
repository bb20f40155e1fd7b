"""Table 1's flip form counts crossings of the median without synchronizing each step."""

import json
from pathlib import Path

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from equalbits.functional import transport_symbols
from equalbits.nn import BiHalf, BinaryLinear
from equalbits.paper.items import tab1_update_rules
from equalbits.paper.items.tab1_update_rules import FlipForm


class Calls(TorchDispatchMode):
    """The names of all operators that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def net():
    torch.manual_seed(0)
    return nn.Sequential(*(BinaryLinear(9, 4, bias=False, weight_quantizer=BiHalf()) for _ in range(2)))


def steps(model, count):
    """So many random steps of all latents."""
    for step in range(1, count + 1):
        with torch.no_grad():
            for latents in model.parameters():
                latents.add_(0.1 * torch.randn_like(latents))
        yield step


def test_the_flips_are_those_of_the_latents_before_and_after():
    model, form = net(), FlipForm()
    before, flips = [layer.weight.detach().clone() for layer in model], 0
    form(model, 0)
    assert form.read() == {"steps": 0, "flips": 0, "bits_that_differ": 0}
    for step in steps(model, 5):
        for place, layer in enumerate(model):
            bits = transport_symbols(before[place])
            flips += int((transport_symbols(layer.weight) != bits).sum())
            before[place] = layer.weight.detach().clone()
        form(model, step)
    assert form.read() == {"steps": 5, "flips": flips, "bits_that_differ": 0} and flips > 0


def test_bits_that_follow_another_rule_are_counted_as_differing():
    model, form = net(), FlipForm()
    form(model, 0)
    model[0].weight_quantizer = BiHalf(p_pos=1.0)
    form(model, 1)
    assert form.read() == {"steps": 1, "flips": 0, "bits_that_differ": 4 * 4}  # of nine, four were −1


def test_a_step_reads_no_number_and_sorts_each_layer_once():
    model, form = net(), FlipForm()
    form(model, 0)
    for step in steps(model, 1):
        with Calls() as calls:
            form(model, step)
    assert not [name for name in calls.names if "_local_scalar_dense" in name or "nonzero" in name]
    assert sum("sort" in name for name in calls.names) == len(model)


def test_what_is_kept_of_table_1_is_drawn_without_the_curves():
    kept = json.loads((Path(__file__).parents[2] / "results" / "tab1.json").read_text())
    figure = tab1_update_rules.draw({**kept, **kept["measured"], "quick": False})
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert labels == ["flips in all, millions", "filters exactly half, %", "test accuracy, %"]
    highest = max(bar.get_height() for bar in figure.axes[0].patches)
    assert 1 < highest < 100, "millions, without a power of ten beside the axis"
