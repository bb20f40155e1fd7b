"""Networks by name: creation and refusals."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import equalbits
from equalbits.models import LayerFactory, create_model, list_models, register_model, registry
from equalbits.nn import BiHalf, BinaryConv2d, BinaryLayer, IRNet, SignActivation


@pytest.fixture
def registry_restored() -> Iterator[None]:
    before = dict(registry._BUILDERS)
    yield
    registry._BUILDERS.clear()
    registry._BUILDERS.update(before)


def tiny(layers: LayerFactory, num_classes: int, *, in_channels: int = 3, hidden: int = 4) -> nn.Module:
    return nn.Sequential(
        layers.real_conv2d(in_channels, hidden, 3),
        layers.conv2d(hidden, hidden, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        layers.real_linear(hidden, num_classes),
    )


def test_the_root_exports_the_functions_of_the_registry() -> None:
    assert equalbits.create_model is create_model
    assert equalbits.list_models is list_models
    assert equalbits.register_model is register_model


def test_models_are_listed_by_pattern() -> None:
    assert list_models() == sorted(list_models())
    assert list_models("*resnet18") == ["imagenet_resnet18", "resnet18"]
    assert list_models("nothing*") == []


def test_a_custom_model_is_created_by_its_name(registry_restored: None) -> None:
    assert register_model("my-net")(tiny) is tiny
    model = create_model("my-net", num_classes=5, weight_quantizer=BiHalf(0.25), hidden=6)
    assert "my-net" in list_models()
    assert model(torch.randn(2, 3, 8, 8)).shape == (2, 5)
    assert [layer.out_channels for layer in model.modules() if isinstance(layer, BinaryConv2d)] == [6]


def test_a_registered_name_raises() -> None:
    with pytest.raises(ValueError, match="'conv2' is taken"):
        register_model("conv2")


def test_a_missing_name_raises() -> None:
    with pytest.raises(ValueError, match=r"write @register_model\('my-net'\)"):
        register_model(tiny)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("resnet81", {}, "model 'resnet81' is not known: did you mean 'resnet18'"),
        ("conv2", {"batchnorm": True}, "option 'batchnorm' is not known: did you mean 'batch_norm'"),
        ("shufflenet", {"width": 2}, "there are: 'image_size', 'in_channels'"),
        ("conv2", {"weight_quantizer": "bihlaf"}, "did you mean 'bihalf'"),
        ("conv2", {"weight_quantizer": BiHalf}, "pass a quantizer like"),
        ("conv2", {"weight_quantizer": SignActivation()}, "pass a quantizer like"),
        ("conv2", {"input_quantizer": "sing"}, "did you mean 'sign'"),
        ("conv2", {"input_quantizer": torch.sign}, "pass one like SignActivation"),
        ("conv2", {"init": "zeros"}, "choose one of 'torch', 'kaiming'"),
        ("conv2", {"num_classes": 0}, "num_classes=0: it must be an integer"),
        ("conv2", {"num_classes": 2.5}, "num_classes=2.5"),
        ("conv2", {"width": 0}, "width=0: the multiplier"),
        ("conv2", {"in_channels": 0}, "in_channels=0"),
    ],
)
def test_invalid_arguments_raise_with_the_remedy(name: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_model(name, **settings)  # type: ignore[arg-type]


def test_a_quantizer_can_be_passed_by_name_or_as_an_object() -> None:
    by_name = create_model("conv2", width=0.1, weight_quantizer="irnet:t_max=5", input_quantizer="approx-sign")
    as_is = create_model(
        "conv2", width=0.1, weight_quantizer=IRNet(t_max=5), input_quantizer=SignActivation("polynomial")
    )
    assert repr(by_name) == repr(as_is)


def test_each_layer_has_a_quantizer_of_its_own() -> None:
    model = create_model("conv2", width=0.1, weight_quantizer=IRNet())
    layers = [layer for layer in model.modules() if isinstance(layer, BinaryLayer)]
    assert len({id(layer.weight_quantizer) for layer in layers}) == len(layers)
