"""Contract of every registered network, with real and with binary inputs."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equalbits.functional import positive_count
from equalbits.models import create_model, list_models
from equalbits.nn import BinaryLayer, set_progress

# Sizes that run in milliseconds.
OPTIONS: dict[str, dict[str, Any]] = {
    "conv*": {"width": 0.125, "image_size": 16},
    "resnet*": {"width": 0.125, "image_size": 16},
    "imagenet_*": {"width": 0.125, "image_size": 32},
    "vgg*": {"width": 1 / 16, "image_size": 32},
    "inception*": {"image_size": 9},
    "shufflenet": {"image_size": 16},
}
OPTIONS_OF = {name: options for pattern, options in OPTIONS.items() for name in list_models(pattern)}

every_form = pytest.mark.parametrize("inputs", [None, "sign"], ids=["real-inputs", "binary-inputs"])
every_model = pytest.mark.parametrize("name", OPTIONS_OF)
one_of_each_kind = pytest.mark.parametrize(
    "name", ["conv8", "resnet20", "resnet18", "imagenet_resnet18", "vgg16", "shufflenet"]
)


def small(name: str, seed: int = 0, **settings: Any) -> nn.Module:
    torch.manual_seed(seed)
    return create_model(name, **{**OPTIONS_OF[name], **settings})


def images_for(name: str, batch: int = 2, channels: int = 3) -> Tensor:
    side = OPTIONS_OF[name]["image_size"]
    return torch.randn(batch, channels, side, side, generator=torch.Generator().manual_seed(1))


def binary_layers(model: nn.Module) -> dict[str, BinaryLayer]:
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, BinaryLayer)}


def test_no_registered_model_is_left_out() -> None:
    assert sorted(OPTIONS_OF) == list_models()


@every_form
@every_model
def test_a_batch_runs_forward_and_back_in_training_and_evaluation(name: str, inputs: str | None) -> None:
    model = small(name, input_quantizer=inputs, num_classes=7)
    for mode in (True, False):
        model.train(mode).zero_grad()
        scores = model(images_for(name))
        assert scores.shape == (2, 7)
        scores.square().sum().backward()
        for label, parameter in model.named_parameters():
            assert parameter.grad is not None, label
            assert parameter.grad.isfinite().all(), label


@every_model
def test_a_single_image_scores_as_in_a_batch(name: str) -> None:
    model = small(name)
    images = images_for(name)
    with torch.no_grad():
        model(images)  # so that the norms have seen something
        model.eval()
        torch.testing.assert_close(model(images[:1]), model(images)[:1], rtol=1e-3, atol=1e-4)


@every_model
def test_a_single_image_runs_with_binary_inputs(name: str) -> None:
    # Its scores may differ: in a value that is 0 but for rounding, the sign is at the mercy of the order of a sum.
    assert small(name, input_quantizer="sign").eval()(images_for(name, batch=1)).shape == (1, 10)


@every_form
@every_model
def test_every_filter_has_exactly_the_requested_share_of_positive_weights(name: str, inputs: str | None) -> None:
    model = small(name, input_quantizer=inputs, weight_quantizer="bihalf:p_pos=0.3")
    assert binary_layers(model)
    for label, layer in binary_layers(model).items():
        rows = layer.symbols().flatten(1)
        assert rows.abs().eq(1).all(), label
        assert rows.eq(1).sum(dim=1).eq(positive_count(rows.shape[1], 0.3)).all(), label


@every_form
@every_model
def test_the_real_version_has_the_same_weights_in_the_same_positions(name: str, inputs: str | None) -> None:
    init = "kaiming" if inputs else "torch"
    binary = small(name, input_quantizer=inputs, init=init)
    real = small(name, input_quantizer=inputs, init=init, weight_quantizer=None)
    assert not binary_layers(real)
    held = {key: value for key, value in binary.state_dict().items() if not key.endswith(".scale")}
    assert list(held) == list(real.state_dict())
    for key, value in real.state_dict().items():
        assert torch.equal(held[key], value), key
    binary.load_state_dict(real.state_dict())  # the twin's checkpoint fits, scale or no scale
    assert real(images_for(name)).isfinite().all()


@every_form
@one_of_each_kind
def test_a_loaded_state_restores_the_scores(name: str, inputs: str | None) -> None:
    model, other = small(name, input_quantizer=inputs), small(name, seed=5, input_quantizer=inputs)
    with torch.no_grad():
        model(images_for(name))
        other.load_state_dict(model.state_dict())
        assert torch.equal(other.eval()(images_for(name)), model.eval()(images_for(name)))


@every_form
@one_of_each_kind
def test_a_copy_scores_the_same_and_shares_nothing(name: str, inputs: str | None) -> None:
    model = small(name, input_quantizer=inputs).eval()
    with torch.no_grad():
        scores = model(images_for(name))
        twin = copy.deepcopy(model)
        for parameter in model.parameters():
            parameter.zero_()
        assert torch.equal(twin(images_for(name)), scores)


@every_form
@one_of_each_kind
def test_no_two_entries_of_a_saved_state_are_one_tensor(name: str, inputs: str | None) -> None:
    places = [value.data_ptr() for value in small(name, input_quantizer=inputs).state_dict().values()]
    assert len(places) == len(set(places))


@every_form
@one_of_each_kind
def test_grey_images_of_28_pixels_run(name: str, inputs: str | None) -> None:
    side = 32 if name.startswith("imagenet") else 28
    model = small(name, input_quantizer=inputs, in_channels=1, image_size=side, num_classes=3)
    assert model(torch.randn(2, 1, side, side)).shape == (2, 3)


@every_form
@one_of_each_kind
def test_every_method_runs_in_every_network(name: str, inputs: str | None) -> None:
    for method in ("sign", "irnet", "irnet-stable"):
        model = small(name, input_quantizer="ede" if inputs else None, weight_quantizer=method)
        set_progress(model, 0.5)
        scores = model(images_for(name))
        scores.sum().backward()
        assert scores.isfinite().all(), method


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own, while it traces
@pytest.mark.parametrize(
    ("name", "inputs", "backend"),
    [
        ("conv2", None, "aot_eager"),
        ("conv2", "sign", "aot_eager"),
        ("resnet20", None, "eager"),
        ("resnet18", "sign", "eager"),
    ],
)
def test_the_whole_network_compiles_to_one_graph(name: str, inputs: str | None, backend: str) -> None:
    torch._dynamo.reset()
    plain = small(name, input_quantizer=inputs)
    model = small(name, input_quantizer=inputs)
    for run in (plain, torch.compile(model, fullgraph=True, backend=backend)):
        run(images_for(name)).square().sum().backward()
    for (label, parameter), twin in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, twin.grad, msg=label)
