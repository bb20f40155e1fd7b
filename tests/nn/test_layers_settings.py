"""Arguments of a binary layer: copied, shown, reset, and refused if invalid."""

import math

import pytest
import torch

from equalbits.nn import BiHalf, BinaryConv2d, BinaryLinear, SignActivation


def test_reset_parameters_resets_the_scale_too():
    layer = BinaryConv2d(16, 32, 3, init="kaiming", device="meta").to_empty(device="cpu")
    layer.scale.fill_(7.0)
    layer.reset_parameters()
    assert layer.scale.item() == pytest.approx(math.sqrt(2 / 144))
    assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / 144), rel=0.1)


def test_quantizers_are_copied_so_that_layers_share_no_state():
    weight_quantizer, input_quantizer = BiHalf(0.3), SignActivation("decaying")
    first, second = (
        BinaryLinear(8, 2, weight_quantizer=weight_quantizer, input_quantizer=input_quantizer) for _ in range(2)
    )
    first.weight_quantizer.p_pos = 0.9
    first.input_quantizer.progress.fill_(1.0)
    assert second.weight_quantizer.p_pos == weight_quantizer.p_pos == 0.3
    assert second.input_quantizer.progress == input_quantizer.progress == 0


def test_padding_stays_zero_when_the_input_is_binary():
    layer = BinaryConv2d(1, 1, 3, padding=1, bias=False, weight_quantizer=BiHalf(1.0), input_quantizer=SignActivation())
    corner = layer(torch.zeros(1, 1, 3, 3))[0, 0, 0, 0] / layer.scale
    assert corner.item() == pytest.approx(4), "four inputs of +1, and five places of padding that add nothing"


def test_print_shows_the_quantizers():
    text = str(BinaryConv2d(3, 4, 3, weight_quantizer=BiHalf(0.3), input_quantizer=SignActivation()))
    assert "BinaryConv2d" in text
    assert "3, 4, kernel_size=(3, 3)" in text
    assert "(weight_quantizer): BiHalf(p_pos=0.3)" in text
    assert "(input_quantizer): SignActivation(estimator='clipped')" in text


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"init": "xavier"}, "init='xavier' is not known: choose one of 'torch', 'kaiming'"),
        (
            {"weight_quantizer": BiHalf},
            r"weight_quantizer is the class BiHalf: pass a WeightQuantizer, as in .*BiHalf\(\)",
        ),
        ({"weight_quantizer": SignActivation()}, "weight_quantizer is a SignActivation: pass a WeightQuantizer"),
        ({"input_quantizer": torch.sign}, "input_quantizer is a builtin_function_or_method: pass a Module"),
        ({"input_quantizer": SignActivation}, "input_quantizer is the class SignActivation"),
    ],
)
def test_a_wrong_argument_raises_with_the_remedy(wrong, message):
    with pytest.raises(ValueError, match=message):
        BinaryLinear(4, 2, **wrong)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors is a no-op")
def test_a_layer_with_empty_filters_raises():
    with pytest.raises(ValueError, match="a filter needs at least one connection"):
        BinaryLinear(0, 3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("training", [True, False])
def test_non_finite_latents_raise(value, training):
    layer = BinaryLinear(4, 2).train(training)
    layer(torch.ones(1, 4))
    with torch.no_grad():
        layer.weight[1, 2] = value
    with pytest.raises(ValueError, match="only finite weights have symbols"):
        layer(torch.ones(1, 4))
