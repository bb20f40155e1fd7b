"""The layer factory and the classifier around the layers."""

import math

import pytest
import torch
from torch import nn

from equalbits.models import LayerFactory, create_model
from equalbits.models.image_classifier import ImageClassifier, ImageShape
from equalbits.nn import BiHalf, BinaryConv2d, BinaryLinear, QuickConv2d, SignActivation


def test_a_quantizer_gives_binary_layers_and_none_gives_real_ones() -> None:
    binary, real = LayerFactory(BiHalf()), LayerFactory(None)
    assert type(binary.conv2d(4, 4, 3)) is BinaryConv2d
    assert type(binary.linear(4, 4)) is BinaryLinear
    assert type(real.conv2d(4, 4, 3)) is type(binary.real_conv2d(4, 4, 3)) is QuickConv2d
    assert type(real.linear(4, 4)) is type(binary.real_linear(4, 4)) is nn.Linear


@pytest.mark.parametrize("weights", [BiHalf(), None])
def test_only_requested_inputs_are_quantized(weights: BiHalf | None) -> None:
    layers = LayerFactory(weights, SignActivation())
    inputs = torch.tensor([[0.3, -2.0, 0.0, 5.0]])
    for make, images in ((layers.linear, inputs), (layers.conv2d, inputs[:, :, None, None])):
        shape = (4, 3) if images.dim() == 2 else (4, 3, 1)
        layer = make(*shape, bias=False)
        assert torch.equal(layer(images), layer(images.sign() + (images == 0)))
        untouched = make(*shape, bias=False, real_input=True)
        torch.testing.assert_close(untouched(2 * images), 2 * untouched(images))


@pytest.mark.parametrize("name", ["conv4", "resnet18", "shufflenet"])
@pytest.mark.parametrize("weights", ["bihalf", None])
def test_per_channel_shifts_exist_before_the_first_image(name: str, weights: str | None) -> None:
    model = create_model(name, weight_quantizer=weights, input_quantizer="rsign")
    model.to(memory_format=torch.channels_last)  # which refuses parameters without a shape
    shifts = {layer.input_quantizer.shift.shape for layer in model.modules() if hasattr(layer, "input_quantizer")
              and layer.input_quantizer is not None}  # fmt: skip
    assert len(shifts) > 1
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("weights", [BiHalf(), None])
def test_kaiming_initializes_every_layer_with_variance_two_over_connections(weights: BiHalf | None) -> None:
    layers = LayerFactory(weights, init="kaiming")
    made = [layers.conv2d(32, 64, 3), layers.conv2d(64, 64, 3, groups=4), layers.linear(512, 64)]
    made += [layers.real_conv2d(32, 64, 3), layers.real_linear(512, 64)]
    for layer in made:
        spread = math.sqrt(2 / layer.weight[0].numel())
        assert layer.weight.std().item() == pytest.approx(spread, rel=0.03)
        assert layer.weight.abs().max() > 3 * spread  # normal, where torch's own start is uniform


def test_torchs_initialization_is_uniform_within_one_over_the_root_of_the_connections() -> None:
    weight = LayerFactory(BiHalf()).conv2d(32, 64, 3).weight
    assert weight.abs().max().item() == pytest.approx(1 / math.sqrt(288), rel=0.01)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("conv8", {"image_size": 15}, "images of 15×15 do not fit: each side must be at least 16"),
        ("conv4", {"image_size": (32, 3)}, "images of 32×3 do not fit: each side must be at least 4"),
        ("conv4", {"image_size": (32, 32, 3)}, r"pass one side, or \(height, width\)"),
        ("conv4", {"image_size": 2.5}, r"image_size=2.5: pass one side, or \(height, width\), in whole pixels"),
        ("resnet20", {"image_size": (32, "32")}, r"pass one side, or \(height, width\), in whole pixels"),
        ("vgg16", {"width": "half"}, "width='half': the multiplier of all channel counts"),
        ("conv2", {"width": float("inf")}, "width=inf: the multiplier of all channel counts"),
        ("inception_v3", {"image_size": 8}, "each side must be at least 9"),
        ("imagenet_resnet18", {"image_size": 100, "input_quantizer": "sign"}, "each side must be a multiple of 32"),
        ("resnet18", {"image_size": 0}, "each side must be at least 1"),
    ],
)
def test_an_invalid_image_size_raises_at_construction(name: str, options: dict[str, object], message: str) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        create_model(name, **options)  # type: ignore[arg-type]


def test_images_of_another_shape_raise_with_the_expected_shape() -> None:
    model = create_model("conv2", width=0.1)
    for wrong in ((2, 1, 32, 32), (2, 3, 28, 28), (3, 32, 32)):
        with pytest.raises(
            ValueError, match=r"the network takes \(batch, 3, 32, 32\); create it with the in_channels="
        ):
            model(torch.zeros(wrong))


def test_images_can_have_another_size_if_no_layer_depends_on_it() -> None:
    resnet = create_model("resnet18", width=0.1, input_quantizer="sign")
    assert resnet(torch.zeros(2, 3, 20, 12)).shape == (2, 10)
    imagenet = create_model("imagenet_resnet18", width=0.1, input_quantizer="sign")
    assert imagenet(torch.zeros(2, 3, 64, 32)).shape == (2, 10)
    with pytest.raises(ValueError, match="images of 64×48 do not fit: each side must be a multiple of 32"):
        imagenet(torch.zeros(2, 3, 64, 48))


def test_images_need_not_be_square() -> None:
    for name in ("conv4", "vgg16"):
        model = create_model(name, width=0.05, image_size=(28, 20))
        assert model(torch.zeros(2, 3, 28, 20)).shape == (2, 10)


def test_a_slice_of_a_network_is_a_network() -> None:
    network = ImageClassifier({"a": nn.Conv2d(3, 4, 1), "b": nn.ReLU(), "c": nn.Flatten()}, ImageShape(3, 8))
    assert network[:2](torch.zeros(1, 3, 5, 5)).shape == (1, 4, 5, 5)
