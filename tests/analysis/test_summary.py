"""``summarize`` counts weights, bytes and multiply-accumulates correctly, and leaves the model unchanged."""

import json
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from equalbits.analysis import summarize
from equalbits.nn import (
    HWGQ,
    ABCNet,
    BiHalf,
    BinaryConv1d,
    BinaryConv2d,
    BinaryConvTranspose2d,
    BinaryLinear,
    SignActivation,
    WeightQuantizer,
    binarize_,
)


def by_name(summary):
    return {layer.name: layer for layer in summary.layers}


def test_counts_match_a_calculation_by_hand():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        BinaryConv2d(8, 16, 3, groups=2, padding=1, stride=2, input_quantizer=SignActivation()),
        nn.ReLU(),
        BinaryConvTranspose2d(16, 4, 2, stride=2, bias=False),
        nn.Flatten(),
        nn.Linear(4 * 8 * 8, 10),
    )
    summary = summarize(model, (2, 3, 8, 8))
    layers = by_name(summary)
    assert list(layers) == ["0", "1", "2", "4", "6"], "a row for what has weights"

    first = layers["0"]
    assert (first.symbols, first.bits, first.real, first.entropy) == (0, None, 216, None)
    assert first.real_macs == 216 * 64
    assert layers["1"].real == 4 * 8, "weight, bias, mean, variance; not the count of batches"

    grouped = layers["2"]
    assert (grouped.symbols, grouped.bits) == (16 * 4 * 9, 1)
    assert grouped.real == 16 + 1, "bias and scale"
    assert grouped.packed_bytes == 16 * 5 + 4 * 17, "36 bits are 5 bytes"
    assert grouped.float32_bytes == 4 * (576 + 16)
    assert (grouped.binary_macs, grouped.mixed_macs) == (576 * 16, 0)
    assert grouped.output == (2, 16, 4, 4)
    assert grouped.entropy == pytest.approx(1.0)

    transposed = layers["4"]
    assert (transposed.binary_macs, transposed.mixed_macs) == (0, 256 * 16), "real inputs"
    assert layers["6"].real_macs == 2560
    assert summary.total["symbols"] == 576 + 256
    assert summary.total["real_macs"] == 216 * 64 + 2560
    assert summary.compression == pytest.approx(summary.total["float32_bytes"] / summary.total["packed_bytes"])


def test_multiply_accumulates_are_per_example_and_add_up_over_calls():
    shared = BinaryLinear(6, 6)
    model = nn.Sequential(shared, nn.Tanh(), shared)
    for batch in (1, 5):
        (row,) = summarize(model, (batch, 6)).layers
        assert row.mixed_macs == 72
        assert row.calls == 2
        assert row.symbols == 36


def test_every_position_of_a_sequence_is_counted():
    model = nn.Sequential(BinaryConv1d(4, 6, 3), nn.Flatten(1), nn.Unflatten(1, (6, 8)), nn.Linear(8, 2))
    rows = by_name(summarize(model, (3, 4, 10)))
    assert rows["0"].mixed_macs == 72 * 8
    assert rows["3"].real_macs == 6 * 16


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (torch.tensor([[1.0, -1.0, 1.0, -1.0]]), "binary_macs"),
        (torch.tensor([[0.0, 3.0, 3.0, 0.0]]), "binary_macs"),
        (torch.tensor([[0.0, 3.0, 1.0, 0.0]]), "mixed_macs"),
        (torch.tensor([[0.0, 0.7, 0.0, 0.0]]), "mixed_macs"),  # a ReLU that lets one number through
        (torch.zeros(1, 4), "mixed_macs"),
    ],
)
def test_inputs_are_binary_when_they_take_two_values(inputs, expected):
    (row,) = summarize(nn.Sequential(BinaryLinear(4, 2)), inputs).layers
    assert getattr(row, expected) == 8


class Pruned(BiHalf):
    forward = WeightQuantizer.forward

    def symbols(self, latents):
        return super().symbols(latents) * (torch.arange(latents.shape[1]) > 0)


def test_a_pruned_layer_takes_two_planes():
    (row,) = summarize(nn.Sequential(BinaryLinear(12, 5, bias=False, weight_quantizer=Pruned())), (1, 12)).layers
    assert row.bits == 2
    assert row.packed_bytes == 5 * 2 * 2 + 4


class PerFilter(BiHalf):
    def forward(self, latents):
        return super().forward(latents) * torch.arange(1.0, 1 + len(latents))[:, None]


class Lopsided(BiHalf):
    def forward(self, latents):
        return super().forward(latents) + 0.5


@pytest.mark.parametrize(("quantizer", "scales"), [(BiHalf(), 1), (PerFilter(), 5), (Lopsided(), 10), (Pruned(), 1)])
def test_every_scale_a_method_needs_is_counted(quantizer, scales):
    (row,) = summarize(nn.Sequential(BinaryLinear(8, 5, bias=False, weight_quantizer=quantizer)), (1, 8)).layers
    assert row.real == scales
    assert row.packed_bytes == 5 * row.bits + 4 * scales
    assert row.float32_bytes == 4 * 40


def test_training_state_takes_no_byte_and_shared_tensors_count_once():
    class Scored(BiHalf):
        def fit_(self, latents):
            self.scores = nn.Parameter(torch.zeros_like(latents))

    model = nn.Sequential(nn.Linear(8, 8), BinaryLinear(8, 8, weight_quantizer=Scored()), BinaryLinear(8, 8))
    model[2].weight = model[1].weight
    model[2].bias = model[0].bias
    rows = by_name(summarize(model, (1, 8)))
    assert (rows["1"].symbols, rows["1"].real) == (64, 9)
    assert (rows["2"].symbols, rows["2"].real) == (0, 1)


def test_weights_computed_from_others_count_in_every_layer():
    model = nn.Sequential(*(weight_norm(BinaryLinear(16, 16, bias=False)) for _ in range(80)))
    assert [layer.symbols for layer in summarize(model, (1, 16)).layers] == [256] * 80


def test_a_layer_that_is_never_called_is_marked():
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.skipped = BinaryLinear(4, 4), BinaryLinear(4, 4)

        def forward(self, inputs):
            return self.used(inputs)

    summary = summarize(Skips(), (1, 4))
    assert by_name(summary)["skipped"].calls == 0
    assert "never called" in str(summary).splitlines()[2]


def test_a_call_of_the_replaced_real_layer_is_not_counted():
    class Captures(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
            self.through = partial(nn.Module.__call__, self[1])  # stays the real one

        def forward(self, inputs):
            return self[2](self.through(self[0](inputs)))

    model = Captures()
    binarize_(model, BiHalf())
    model[1].register_forward_hook(lambda *_: None)  # the two share their hooks
    assert [row.calls for row in summarize(model, (1, 4)).layers] == [1, 0, 1]


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_unchanged(training):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 8), nn.Linear(8, 2))
    binarize_(model, BiHalf())
    model.train(training)
    model[1].train(not training)
    modes = [module.training for module in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.get_rng_state()
    summarize(model, (3, 4))
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
    assert torch.equal(torch.get_rng_state(), random_state)


def test_hooks_are_removed_even_when_the_model_fails():
    model = nn.Sequential(BinaryLinear(4, 8), nn.Linear(9, 2)).train()
    with pytest.raises(ValueError, match="shapes cannot be multiplied"):
        summarize(model, (1, 4))
    assert not any(module._forward_hooks for module in model.modules())
    assert all(module.training for module in model.modules())


def test_modules_with_several_outputs_or_bare_parameters_are_listed():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.zeros(6))
            self.memory = nn.LSTM(6, 4, batch_first=True)
            self.register_buffer("mask", torch.zeros(99), persistent=False)

        def forward(self, inputs):
            return {"outputs": self.memory(inputs + self.token)[0]}

    rows = by_name(summarize(Model(), (2, 5, 6)))
    assert rows[""].real == 6
    assert rows[""].output == rows["memory"].output == (2, 5, 4)


def test_the_summary_prints_a_table_and_converts_to_json():
    model = nn.Sequential(nn.Linear(8, 16), BinaryLinear(16, 16, bias=False, input_quantizer=SignActivation()))
    summary = summarize(model, torch.randn(1, 8))
    assert str(summary) == (
        "layer  kind          output  symbols  real  bytes  MACs 1×1  MACs 32×32  entropy\n"
        "0      Linear        16            –   144    576         –         128        –\n"
        "1      BinaryLinear  16          256     1     36       256           –   1.0000\n"
        "total                            256   145    612       256         128\n"
        "packed 612 bytes, float32 1,600 bytes: 2.6 times smaller"
    )
    batch = summarize(model, torch.randn(8, 8))
    assert str(batch) == str(summary), "shapes and MACs are those of one example"
    assert batch.total["real_macs"] == 128
    read = json.loads(json.dumps(summary.as_dict(), allow_nan=False))
    assert read["total"]["symbols"] == 256
    assert read["layers"][1]["output"] == [1, 16]
    assert read["layers"][1]["packed_bytes"] == 36


def test_a_real_model_can_be_summarized():
    summary = summarize(nn.Sequential(nn.Linear(4, 2)), (1, 4))
    assert summary.compression == 1.0
    assert summary.total["real_macs"] == 8


def test_random_inputs_have_the_dtype_of_the_model():
    assert summarize(nn.Sequential(BinaryLinear(4, 2)).double(), (1, 4)).total["symbols"] == 8


@pytest.mark.parametrize("example", ["photo.png", (), (3, 2.5), None, (0, 4), torch.tensor(1.0)])
def test_an_invalid_example_raises(example):
    with pytest.raises(ValueError, match=r"example(=| has)"):
        summarize(nn.Sequential(BinaryLinear(4, 2)), example)


@pytest.mark.parametrize(
    ("quantizer", "given", "binary"),
    [
        (SignActivation(), [0.5, 0.5, 0.5, 0.5], True),  # all alike
        (SignActivation(), [1.0, 2.0, -3.0, 4.0], True),
        (HWGQ(bits=1), [-1.0, -1.0, -1.0, -1.0], True),
        (HWGQ(bits=2), [-1.0, -1.0, -1.0, -1.0], False),  # two bits, though one value is here
        (nn.Identity(), [0.0, 0.0, 0.3, 0.0], False),
        (None, [1.0, 1.0, 1.0, -1.0], True),  # a sign that stands before the layer
        (None, [1.0, 0.0, 1.0, 0.0], True),
        (None, [0.0, 0.0, 0.3, 0.0], False),  # what a dying layer gives
        (None, [0.0, 0.0, 0.0, 0.0], False),
        (None, [0.1, 0.2, 0.1, 0.3], False),
    ],
)
def test_inputs_count_as_binary_where_one_bit_represents_each(quantizer, given, binary):
    layer = summarize(BinaryLinear(4, 2, input_quantizer=quantizer), torch.tensor([given])).layers[0]
    assert (layer.binary_macs, layer.mixed_macs) == ((8, 0) if binary else (0, 8))


def test_the_bits_of_a_weight_have_a_column_where_some_weight_has_more_than_one():
    for bases, shown in ((1, False), (3, True)):
        summary = summarize(BinaryLinear(16, 16, bias=False, weight_quantizer=ABCNet(bases=bases)), torch.randn(1, 16))
        assert ("bits" in str(summary).splitlines()[0].split()) == shown
