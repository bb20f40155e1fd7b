"""The shallow networks: activations, and the effect of their options."""

import math

import pytest
import torch
from torch import Tensor, nn

from equalbits.models import create_model
from equalbits.nn import BinaryLayer, SignActivation


def layer_outputs(model: nn.Module, images: Tensor) -> list[Tensor]:
    found: list[Tensor] = []
    for layer in model.modules():
        if isinstance(layer, BinaryLayer):
            layer.register_forward_hook(lambda _module, _inputs, output: found.append(output))
    with torch.no_grad():
        model(images)
    return found


def start(name: str, **settings: object) -> list[Tensor]:
    torch.manual_seed(0)
    return layer_outputs(create_model(name, **settings), torch.randn(16, 3, 32, 32))  # type: ignore[arg-type]


@pytest.mark.parametrize("init", ["torch", "kaiming"])
def test_conv2_keeps_activations_near_unit_variance(init: str) -> None:
    spreads = [output.std().item() for output in start("conv2", init=init)]
    # On white noise the first layer's is √2, less what zero padding takes: (94/96)² of its inputs are there.
    assert spreads[0] == pytest.approx(math.sqrt(2) * 94 / 96, rel=0.02)
    assert spreads[1:] == pytest.approx([1.13, 1.10, 0.90, 0.75], rel=0.15)


def test_conv8_keeps_its_scores_of_the_order_of_one() -> None:
    outputs = start("conv8")
    assert 0.1 < outputs[-1].std() < 2
    assert outputs[-1].mean().abs() < 1
    assert all(0.1 < output.std() < 2 for output in outputs)


def test_a_share_above_one_half_shifts_every_mean_away() -> None:
    assert start("conv2", weight_quantizer="bihalf:p_pos=0.55")[-1].mean() > 100


def test_a_share_below_one_half_drives_activations_to_zero() -> None:
    assert start("conv2", weight_quantizer="bihalf:p_pos=0.45")[-1].std() < 0.05


def test_batch_norm_restores_scores_of_order_one_for_any_share() -> None:
    scores = start("conv2", weight_quantizer="bihalf:p_pos=0.55", batch_norm=True)[-1]
    assert 0.1 < scores.std() < 5
    assert scores.mean().abs() < 5


def test_batch_norm_follows_each_layer_but_the_last() -> None:
    names = list(dict(create_model("conv2", width=0.1, batch_norm=True).named_children()))
    assert names == [
        *("conv1", "conv1_norm", "conv1_relu", "conv2", "conv2_norm", "conv2_pool", "conv2_relu", "flatten"),
        *("fc1", "fc1_norm", "fc1_relu", "fc2", "fc2_norm", "fc2_relu", "fc3"),
    ]


def test_without_batch_norm_there_are_only_layers_relus_and_pools() -> None:
    kinds = {type(part).__name__ for part in create_model("conv8", width=0.1).children()}
    assert kinds == {"BinaryConv2d", "BinaryLinear", "ReLU", "MaxPool2d", "Flatten"}


def test_with_binary_inputs_the_pool_comes_first_and_the_norm_is_not_affine() -> None:
    model = create_model("conv2", width=0.1, input_quantizer="sign")
    names = list(dict(model.named_children()))
    assert names == [
        *("conv1", "conv1_norm", "conv2", "conv2_pool", "conv2_norm", "flatten"),
        *("fc1", "fc1_norm", "fc2", "fc2_norm", "fc3"),
    ]
    assert not any(part.affine for part in model.children() if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d))


def test_with_binary_inputs_every_layer_but_the_first_gets_signs() -> None:
    model = create_model("conv4", width=0.1, input_quantizer="sign")
    layers = [layer for layer in model.modules() if isinstance(layer, BinaryLayer)]
    assert layers[0].input_quantizer is None
    assert all(isinstance(layer.input_quantizer, SignActivation) for layer in layers[1:])


def test_width_scales_every_hidden_layer() -> None:
    model = create_model("conv4", width=0.25)
    assert [layer.weight.shape[0] for layer in model.modules() if isinstance(layer, BinaryLayer)] == [
        *(16, 16, 32, 32),
        *(64, 64, 10),
    ]
