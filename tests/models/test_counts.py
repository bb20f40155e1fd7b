"""Exact number of weights of each network, and of binary ones."""

import pytest
import torch
from torch import nn

from equalbits.models import create_model
from equalbits.nn import BinaryLayer

CONVNETS = {
    "conv2": (4_300_992, [27, 576, 16384, 256, 256]),
    "conv4": (2_425_024, [27, 576, 576, 1152, 8192, 256, 256]),
    "conv6": (2_261_184, [27, 576, 576, 1152, 1152, 2304, 4096, 256, 256]),
    "conv8": (5_275_840, [27, 576, 576, 1152, 1152, 2304, 2304, 4608, 2048, 256, 256]),
}
# name, inputs, classes, parameters, binary weights
DEEP = [
    ("resnet20", None, 10, 269_850, 267_264),
    ("resnet20", "sign", 10, 269_850, 267_264),
    ("resnet18", None, 100, 11_220_132, 10_985_472),
    ("resnet18", "sign", 100, 11_222_116, 10_985_472),
    ("resnet34", None, 100, 21_328_292, 21_086_208),
    ("resnet34", "sign", 100, 21_332_132, 21_086_208),
    ("vgg16", None, 100, 34_003_044, 33_583_104),
    ("vgg_small", None, 10, 4_660_106, 4_571_136),
    ("vgg_small", "sign", 10, 4_660_106, 4_571_136),
    ("inception_v3", None, 100, 22_318_148, 22_077_952),
    ("shufflenet", None, 100, 1_041_868, 908_400),
    ("imagenet_resnet18", None, 1000, 11_689_512, 10_985_472),  # the real ResNet-18's known size
    ("imagenet_resnet18", "sign", 1000, 11_691_496, 10_985_472),
    ("imagenet_resnet34", None, 1000, 21_797_672, 21_086_208),
    ("imagenet_resnet34", "sign", 1000, 21_801_512, 21_086_208),
]


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def binary_layers(model: nn.Module) -> list[BinaryLayer]:
    return [layer for layer in model.modules() if isinstance(layer, BinaryLayer)]


def connections(model: nn.Module) -> list[int]:
    return [layer.weight[0].numel() for layer in binary_layers(model)]


@pytest.mark.parametrize("inputs", [None, "sign"])
@pytest.mark.parametrize("name", CONVNETS)
def test_a_shallow_network_has_only_binary_weights(name: str, inputs: str | None) -> None:
    total, filter_sizes = CONVNETS[name]
    with torch.device("meta"):
        model = create_model(name, input_quantizer=inputs)
    assert parameters(model) == total
    assert sum(layer.weight.numel() for layer in binary_layers(model)) == total
    assert connections(model) == filter_sizes


@pytest.mark.parametrize(("name", "inputs", "classes", "total", "binary"), DEEP)
def test_a_deep_network_has_the_papers_size(
    name: str, inputs: str | None, classes: int, total: int, binary: int
) -> None:
    with torch.device("meta"):
        model = create_model(name, num_classes=classes, input_quantizer=inputs)
        real = create_model(name, num_classes=classes, input_quantizer=inputs, weight_quantizer=None)
    assert parameters(model) == parameters(real) == total
    assert sum(layer.weight.numel() for layer in binary_layers(model)) == binary


@pytest.mark.parametrize("name", ["resnet20", "resnet18", "imagenet_resnet34", "vgg16", "vgg_small", "shufflenet"])
def test_first_last_and_shortcut_layers_stay_real(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name)
    kinds = {label: layer for label, layer in model.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)}
    first, *_, last = kinds
    real = {label for label, layer in kinds.items() if not isinstance(layer, BinaryLayer)}
    assert real == {first, last} | {label for label in kinds if "shortcut" in label}


def test_a_shufflenet_has_filters_of_9_connections_and_real_biases() -> None:
    with torch.device("meta"):
        model = create_model("shufflenet")
    stages = [(24, 240, 20, 4), (80, 160, 40, 8), (160, 320, 80, 4)]  # first 1×1, later ones, last 1×1, units
    expected = [d for first, later, last, units in stages for d in (first, 9, last, *(later, 9, last) * (units - 1))]
    assert connections(model) == expected
    assert all(layer.bias is not None for layer in binary_layers(model))
