"""Packing compares before it returns, names the layer that differs, and reports the effect of rounding."""

import copy
import logging
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from equalbits.deploy import PackError, Preprocessing, pack
from equalbits.deploy.graph import to_network
from equalbits.deploy.pack_weights import quantize_int8
from equalbits.deploy.torch_export import trace_program
from equalbits.deploy.translate import translate
from equalbits.deploy.verify import _check_ties, verify, verify_native
from equalbits.models import create_model
from equalbits.nn import BinaryConv2d, BinaryLinear, SignActivation
from equalbits.runtime import native
from equalbits.runtime.engine import run_numpy


def small(inputs=None):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        BinaryConv2d(16, 16, 3, padding=1, bias=False, input_quantizer=inputs),
        nn.PReLU(16),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 5),
    ).eval()


@pytest.mark.parametrize("layer", ["0", "2", "3", "6"])
def test_a_layer_packed_wrongly_is_named(layer):
    frozen = trace_program(small(), torch.randn(2, 3, 8, 8))
    graph = translate(frozen)
    step = next(step for step in graph.steps if step.layer == layer)
    part = "scale" if layer == "2" else next(iter(step.arrays))
    step.arrays[part] = step.arrays[part] * np.float32(1.5)
    with pytest.raises(PackError, match=f"layer '{layer}' .* differs from the model's by up to"):
        verify(to_network(graph), graph, frozen)


def test_a_flipped_bit_is_noticed():
    frozen = trace_program(small(), torch.randn(2, 3, 8, 8))
    graph = translate(frozen)
    step = next(step for step in graph.steps if step.layer == "2")
    step.arrays["weight"][3, 0] ^= 1
    with pytest.raises(PackError, match="layer '2'"):
        verify(to_network(graph), graph, frozen)


@pytest.mark.skipif(native.BUILT is None, reason=native.REASON)
def test_an_answer_that_the_native_engine_does_not_give_is_refused():
    frozen = trace_program(small(SignActivation()), torch.randn(2, 3, 8, 8))
    graph = translate(frozen)
    network, images = to_network(graph), frozen.images.numpy()
    answer = run_numpy(network, images)
    verify_native(network, graph, images, (answer,))
    verify_native(network, graph, images, (answer + 1, answer))
    with pytest.raises(PackError, match="the native engine differs from numpy"):
        verify_native(network, graph, images, (answer + 1,))


class Amplifying(nn.Module):
    """A deep net that doubles a small difference at each of 15 steps, on average."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 6)

    def forward(self, images):
        x = torch.sigmoid(self.first(images.flatten(1)))
        for _ in range(15):
            x = 4 * x * (1 - x)
        return x


def test_rounding_that_adds_up_over_a_deep_net_is_no_fault():
    """The bias moves by 2⁻¹⁹: as much as rounding may, and far more than two libraries on one processor differ by."""
    torch.manual_seed(3)
    frozen = trace_program(Amplifying(), torch.randn(4, 1, 8, 8))
    graph = translate(frozen)
    step = next(step for step in graph.steps if step.layer == "first")
    step.arrays["bias"] = step.arrays["bias"] + np.float32(2**-19)
    network = to_network(graph)
    change = np.abs(run_numpy(network, frozen.images.numpy()) - frozen.logits.numpy()).max()
    assert 1e-3 < change < 0.1
    verify(network, graph, frozen)


class OwnRandom(nn.Module):
    calls = 0

    def forward(self, images):
        OwnRandom.calls += 1
        return images * OwnRandom.calls


def test_a_model_that_is_no_function_of_the_image_is_refused():
    with pytest.raises(PackError, match="make it a function of the image only"):
        pack(nn.Sequential(OwnRandom(), nn.Flatten()), torch.randn(2, 3, 4, 4))


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "equalbits"]


def classes_that_differ(model, packed, images):
    with torch.no_grad():
        return int((model.eval()(images).argmax(dim=1).numpy() != packed(images.numpy()).argmax(axis=1)).sum())


def test_sums_of_zero_have_the_sign_of_exact_arithmetic(caplog):
    """A fresh batch norm leaves a sum of 0 at 0, where torch's float32 sum may be 1e-8 to either side."""
    torch.manual_seed(0)
    layers = [BinaryConv2d(24, 24, 3, bias=False, input_quantizer=SignActivation()) for _ in range(3)]
    parts = [part for layer in layers for part in (layer, nn.BatchNorm2d(24))]
    model, images = nn.Sequential(*parts, nn.Flatten(), nn.Linear(24 * 36, 5)).eval(), torch.randn(4, 24, 12, 12)
    with caplog.at_level(logging.WARNING, "equalbits"):
        packed = pack(model, images)
    exact = model.double()(images.double()).detach().numpy()
    assert np.abs(packed(images.numpy()) - exact).max() <= 1e-4 * np.abs(exact).max()
    (warning,) = warnings_of(caplog)
    assert warning.startswith(f"{classes_that_differ(model.float(), packed, images)} of 4 example images get another")


@pytest.mark.parametrize("seed", range(2))
def test_a_warning_counts_images_whose_class_depends_on_rounding(seed, caplog):
    """Shortcuts and fresh batch norms leave hundreds of sums at 0: float64 gives another class, too."""
    torch.manual_seed(seed)
    model = create_model("resnet20", num_classes=5, input_quantizer="sign", image_size=16)
    images = torch.randn(8, 3, 16, 16)
    with caplog.at_level(logging.WARNING, "equalbits"):
        packed = pack(model, images)
    differ = classes_that_differ(model, packed, images)
    (warning,) = warnings_of(caplog)
    assert differ > 0
    assert warning.startswith(f"{differ} of 8 example images get another class from the packed model")
    doubled = copy.deepcopy(model).double()(images.double()).argmax(dim=1)
    assert f"gives {int((doubled != model(images).argmax(dim=1)).sum())} of the 8 another class" in warning


def test_equal_answers_give_no_warning(caplog):
    model, images = small(SignActivation()), torch.randn(8, 3, 8, 8)
    with caplog.at_level(logging.WARNING, "equalbits"):
        packed = pack(model, images)
    assert classes_that_differ(model, packed, images) == 0
    assert warnings_of(caplog) == []


def side_by_side(change):
    """Inputs of the check of ties, with the model's numbers changed."""
    frozen = trace_program(small(SignActivation()), torch.randn(2, 3, 32, 32))
    graph = translate(frozen)
    traced = frozen.run()
    (sign,) = (step.node for step in graph.steps if step.kind == "sign")
    (before,) = (graph.steps[step.inputs[0] - 1].node for step in graph.steps if step.kind == "sign")
    network, values = to_network(graph), {0: frozen.images.numpy()}
    for place, (operation, step) in enumerate(zip(network.operations, graph.steps, strict=True)):
        values[place + 1] = network.run_operation(operation, values)
        if step.node == sign:  # rounding may have flipped one of them already
            traced[sign] = torch.from_numpy(values[place + 1].copy()).view_as(traced[sign])
    change(traced[sign], traced[before])
    _check_ties(network, graph, traced, values[0], np.array([True, False]))


def test_a_sign_that_differs_where_rounding_does_not_decide_is_refused():
    def change(sign, before):
        place = before[0].abs().flatten().argmax()
        sign[0].view(-1)[place] *= -1

    with pytest.raises(PackError, match=r"layer '2.input_quantizer' .* takes the sign of a number [0-9.]+ away from 0"):
        side_by_side(change)


def test_a_sign_that_rounding_decides_is_accepted():
    def change(sign, before):
        place = before[0].abs().flatten().argmin()
        assert before[0].flatten()[place].abs() < 1e-4 * before[0].abs().max()
        sign[0].view(-1)[place] *= -1

    side_by_side(change)


def test_another_class_without_a_sign_that_differs_is_refused():
    with pytest.raises(PackError, match="1 of 2 example images get another class from the packed model, though"):
        side_by_side(lambda sign, before: None)


@pytest.mark.parametrize(("rest", "width"), [("float16", 2), ("int8", 1)])
def test_the_rest_can_be_stored_in_fewer_bits(rest, width, tmp_path, caplog):
    model, images = small(), torch.randn(4, 3, 8, 8)
    with caplog.at_level(logging.INFO, "equalbits"):
        packed = pack(model, images, rest=rest)
    assert "of 4 images keep their class" in caplog.text
    stored = packed.network.tensors
    for name in ("0.weight", "6.weight"):
        assert stored[name].itemsize == width
    assert stored["0.bias"].dtype == stored["3.slope"].dtype == np.float16
    assert stored["2.weight"].dtype == np.uint8
    assert stored["2.scale"].dtype == np.float32
    answer = model(images).detach().numpy()
    assert np.abs(packed(images.numpy()) - answer).max() < {2: 0.002, 1: 0.02}[width] * np.abs(answer).max()
    pack(model, images).save(tmp_path / "whole.ebits")
    packed.save(tmp_path / "less.ebits")
    assert (tmp_path / "less.ebits").stat().st_size < (tmp_path / "whole.ebits").stat().st_size


def test_numbers_beyond_float16_are_refused():
    model = small()
    model[1].weight.data[0] = 1e6
    with pytest.raises(PackError, match=r"layer '0' has a weight of [0-9e+.]+, above float16's 65504"):
        pack(model, torch.randn(2, 3, 8, 8), rest="float16")


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-30, 1e30))
def test_quantize_int8_lie_within_half_a_step_of_each_weight(seed, size):
    weight = (np.random.default_rng(seed).normal(size=(3, 2, 3, 3)) * size).astype(np.float32)
    weight[1] = 0
    stored = quantize_int8(weight)
    scale = stored["scale"].astype(np.float32).reshape(-1, 1, 1, 1)
    assert (np.abs(stored["weight"] * scale - weight) <= scale * 0.5001).all()
    assert np.abs(stored["weight"].reshape(3, -1)).max(axis=1).tolist() == [127, 0, 127]
    assert stored["scale"].dtype == (np.float16 if scale.min() > 6.2e-5 and scale.max() < 65000 else np.float32)


def test_names_mean_and_std_go_into_the_file_and_are_checked():
    preprocessing = Preprocessing(mean=[0.5] * 3, std=[0.25] * 3)
    packed = pack(small(), torch.randn(2, 3, 8, 8), class_names=list("abcde"), preprocessing=preprocessing)
    assert packed.network.classes == ("a", "b", "c", "d", "e")
    bytes_ = np.random.default_rng(0).integers(0, 256, (2, 3, 8, 8), np.uint8)
    reals = (bytes_.astype(np.float32) / 255 - 0.5) / 0.25
    assert np.allclose(packed(bytes_), packed(reals.astype(np.float32)), atol=1e-5)
    with pytest.raises(PackError, match="2 class names"):
        pack(small(), torch.randn(2, 3, 8, 8), class_names=["a", "b"])
    with pytest.raises(PackError, match="mean and std belong together"):
        pack(small(), torch.randn(2, 3, 8, 8), preprocessing=Preprocessing(mean=[0.5] * 3))
    with pytest.raises(PackError, match="rest='int4' is not known"):
        pack(small(), torch.randn(2, 3, 8, 8), rest="int4")


def test_numbers_that_are_not_finite_are_refused():
    model = nn.Sequential(nn.Flatten(), BinaryLinear(12, 3))
    model[1].bias.data[0] = float("nan")
    with pytest.raises(PackError, match="not finite"):
        pack(model, torch.randn(2, 3, 2, 2))


@pytest.mark.parametrize("behind", [nn.Conv2d(3, 4, 1), nn.MaxPool2d(2)], ids=["in weights", "by itself"])
def test_a_batch_norm_beyond_float32_is_refused_in_a_line(behind):
    channels = 4 if isinstance(behind, nn.Conv2d) else 3
    norm = nn.BatchNorm2d(channels, eps=1e-50)
    norm.running_mean.copy_(torch.arange(channels) - 1.0)
    norm.running_var.fill_(1e-38)
    norm.weight.data.fill_(1e38)
    signs = BinaryConv2d(channels, 2, 3, input_quantizer=SignActivation())  # which would hide it
    model = nn.Sequential(behind, norm, signs, nn.Flatten())
    with pytest.raises(PackError, match=r"^tensor '[01]\.\w+' holds a number that is not finite: it cannot be packed$"):
        pack(model, torch.randn(2, 3, 8, 8))


def test_one_image_is_example_enough():
    model = small()
    image = torch.randn(1, 3, 8, 8)
    assert np.allclose(pack(model, image)(image.numpy()), model(image).detach().numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({"preprocessing": Preprocessing(mean=0.5)}, "mean=0.5: give a number per channel"),
        ({"preprocessing": Preprocessing(std=["a", "b", "c"])}, "std=['a', 'b', 'c']: give a number per channel"),
        ({"class_names": 5}, "class_names=5: give a name per class"),
        ({"class_names": "zebra"}, "class_names='zebra': give a name per class"),  # five letters, five classes
    ],
)
def test_facts_that_are_no_lists_are_refused_in_one_line(facts, line) -> None:
    with pytest.raises(PackError, match=re.escape(line)):
        pack(small(), torch.randn(2, 3, 8, 8), **facts)
