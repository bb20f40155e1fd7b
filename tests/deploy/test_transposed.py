"""Transposed convolutions pack, real and binary: each binary filter keeps its bits, and so its share of +1."""

import numpy as np
import pytest
import torch
from torch import nn

from equalbits.deploy import PackError, pack
from equalbits.nn import (
    AdaBin,
    BiHalf,
    BinaryConv2d,
    BinaryConvTranspose2d,
    PrunedBiHalf,
    SignActivation,
    all_layers,
    binarize_,
)
from equalbits.runtime import PackedModel

SETTINGS = [
    {"kernel_size": 2, "stride": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1},
    {"kernel_size": 4, "stride": 2, "padding": 1, "groups": 2},
    {"kernel_size": 3, "dilation": 2, "padding": 1},
    {"kernel_size": (3, 2), "stride": (3, 1), "padding": (1, 0), "bias": False},
    {"kernel_size": 1, "stride": 3, "output_padding": 2},
    {"kernel_size": 3, "padding": (4, 3)},
    {"kernel_size": (1, 5), "stride": (1, 2), "dilation": (1, 2), "groups": 2},
]


def packs(model, images):
    """The packed model, whose outputs in both engines are the model's."""
    packed = pack(model, images)
    for batch in (images, images[:1]):
        answer = model.eval()(batch).detach().numpy()
        for engine in ("numpy", "auto"):
            found = PackedModel(packed.network, engine=engine)(batch.numpy())
            np.testing.assert_allclose(found, answer, atol=1e-5 * np.abs(answer).max())
    return packed


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_real_ones_pack(settings):
    torch.manual_seed(0)
    packed = packs(nn.ConvTranspose2d(4, 6, **settings), torch.randn(3, 4, 9, 10))
    assert "weight" in next(iter(packed.network.tensors))


@pytest.mark.parametrize("inputs", [None, SignActivation()], ids=["reals", "signs"])
@pytest.mark.parametrize(
    ("settings", "quantizer"),
    [
        *((settings, BiHalf(0.25)) for settings in SETTINGS),
        *((settings, PrunedBiHalf(0.4)) for settings in SETTINGS[1::3]),
        *((settings, AdaBin()) for settings in SETTINGS[1::3]),
    ],
    ids=str,
)
def test_binary_ones_pack_with_the_filters_of_the_layer(settings, inputs, quantizer):
    torch.manual_seed(0)
    layer = BinaryConvTranspose2d(4, 6, **settings, weight_quantizer=quantizer, input_quantizer=inputs)
    counted = packs(nn.Sequential(layer), torch.randn(3, 4, 9, 10)).audit()
    assert counted.exact and counted.layers[0].name == "0"
    for symbol, found in ((1, counted.layers[0].positive), (-1, counted.layers[0].negative)):
        np.testing.assert_array_equal(found, (layer.symbols() == symbol).flatten(1).sum(1).numpy())


@pytest.mark.parametrize("settings", [{"stride": 2, "padding": 1}, {"groups": 2, "dilation": 3, "output_padding": 2}])
def test_rows_pack(settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(2), nn.ConvTranspose1d(4, 6, 4, **settings), nn.ReLU(), nn.Conv1d(6, 3, 3))
    packs(model, torch.randn(3, 4, 1, 10))


class Decoder(nn.Module):
    """Down by pooling and up by transposed convolutions, one of them used twice."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 8, 2, 2)
        self.norm, self.last = nn.BatchNorm2d(8), nn.Conv2d(16, 3, 1)

    def forward(self, images):
        wide = self.first(images)
        deep = self.second(nn.functional.max_pool2d(wide, 4))
        return self.last(torch.cat([wide, self.norm(self.up(self.up(deep), output_size=wide.shape[2:]))], 1))


@pytest.mark.parametrize("inputs", [None, SignActivation()], ids=["reals", "signs"])
def test_a_decoder_packs_and_stores_a_layer_once(inputs):
    torch.manual_seed(0)
    model = Decoder()
    model.norm.running_mean.normal_()
    binarize_(model, BiHalf(), input_quantizer=inputs, where=all_layers)
    packed = packs(model, torch.randn(3, 4, 16, 16))
    assert [name for name in packed.network.tensors if name.startswith("up")] == ["up.weight", "up.scale", "up.bias"]


def test_weights_in_another_order_than_the_layers_are_refused():
    class Swapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = BinaryConv2d(4, 4, 3)

        def forward(self, images):
            return nn.functional.conv_transpose2d(images, self.layer.binary_weight().transpose(2, 3))

    with pytest.raises(PackError, match="layer 'layer' is binary, but the model changes its weights"):
        pack(Swapped(), torch.randn(3, 4, 6, 6))
