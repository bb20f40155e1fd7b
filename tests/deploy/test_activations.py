"""Packed with rounded activations, binary convolutions work in integers; pack says how many images keep their class."""

import logging

import numpy as np
import pytest
import torch
from torch import nn

from equalbits.deploy import PackError, pack
from equalbits.deploy.activations import choose_range
from equalbits.nn import BinaryConv2d, SignActivation
from equalbits.runtime import load_packed, native
from equalbits.runtime.engine import NativeEngine, run_numpy


class Residual(nn.Module):
    """Two binary convolutions with a shortcut around them; a third one reads signs, a depthwise one reals."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.first, self.second = (BinaryConv2d(32, 32, 3, padding=1) for _ in range(2))
        self.norm = nn.BatchNorm2d(32)
        self.signs = BinaryConv2d(32, 32, 1, input_quantizer=SignActivation())
        self.depthwise = BinaryConv2d(32, 32, 3, groups=32)
        self.head = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        y = torch.relu(self.norm(self.first(x)))
        x = torch.relu(x + self.second(y))
        x = self.depthwise(x + torch.relu(self.signs(x)))
        return self.head(x.mean((2, 3)))


@pytest.fixture(scope="module")
def residual() -> Residual:
    torch.manual_seed(0)
    return Residual().eval()


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(24, 3, 12, 12, generator=torch.Generator().manual_seed(1))


def kinds(packed) -> list[str]:
    return [operation.kind for operation in packed.network.operations]


@pytest.mark.parametrize(("activations", "largest", "most"), [("int8", 255, 0.02), ("int4", 15, 0.3)])
def test_inputs_of_binary_convolutions_are_rounded_and_answers_stay_close(
    residual, images, activations, largest, most, tmp_path, caplog
):
    with caplog.at_level(logging.INFO, "equalbits"):
        packed = pack(residual, images[:4], activations=activations, calibration=images)
    found = [operation.settings for operation in packed.network.operations if operation.kind == "quantize"]
    assert [(each["min"], each["max"]) for each in found] == [(0, largest)] * 2
    logits = residual(images).detach().numpy()
    change = np.abs(packed(images.numpy()) - logits).max() / np.abs(logits).max()
    assert 1e-4 < change < most
    assert f"activations='{activations}': " in caplog.text
    assert "of 24 calibration images keep the class of the exact file" in caplog.text
    packed.save(tmp_path / "net.ebits")
    loaded = load_packed(tmp_path / "net.ebits")
    np.testing.assert_array_equal(loaded(images.numpy()), packed(images.numpy()))
    if native.BUILT is not None:
        assert NativeEngine(packed.network).step_kinds.count("CONV_BYTES") == 2


def test_numpy_and_every_instruction_set_agree(residual, images):
    packed = pack(residual, images[:4], activations="int8", calibration=images)
    truth = run_numpy(packed.network, images.numpy())
    for name in [] if native.BUILT is None else native.BUILT.instruction_sets():
        np.testing.assert_allclose(NativeEngine(packed.network, name)(images.numpy()), truth, atol=1e-2)


def test_the_ranges_come_from_the_calibration_images(residual, images):
    gains = {}
    for name, shown in (("example", None), ("same", images[:4]), ("larger", 3 * images)):
        packed = pack(residual, images[:4], activations="int8", calibration=shown)
        gains[name] = [op.settings["gain"] for op in packed.network.operations if op.kind == "quantize"]
    assert gains["example"] == gains["same"]
    assert all(larger < same for larger, same in zip(gains["larger"], gains["same"], strict=True))


def test_one_value_is_rounded_once_for_all_its_readers_and_the_image_keeps_8_bits(images):
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = (BinaryConv2d(3, 16, 3) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.left(x) + self.right(x)).mean((2, 3))

    packed = pack(Branches().eval(), images[:4], activations="int4")
    (settings,) = [op.settings for op in packed.network.operations if op.kind == "quantize"]
    assert settings["max"] - settings["min"] == 255
    assert settings["min"] < 0


def test_with_an_int8_rest_the_stem_reads_rounded_images_too(residual, images):
    packed = pack(residual, images[:4], rest="int8", activations="int8", calibration=images)
    assert kinds(packed)[:2] == ["quantize", "conv"]
    logits = residual(images).detach().numpy()
    assert np.abs(packed(images.numpy()) - logits).max() / np.abs(logits).max() < 0.05
    four = pack(residual, images[:4], rest="int8", activations="int4", calibration=images)
    assert kinds(four)[0] == "conv"


def test_the_default_stays_exact(residual, images):
    assert "quantize" not in kinds(pack(residual, images[:4]))


def test_a_range_holds_zero_and_clips_what_is_rare():
    random = np.random.default_rng(0)
    normal = np.maximum(random.standard_normal(20_000), 0).astype(np.float32)
    outlier = np.append(normal, np.float32(8))
    eight, four = choose_range(outlier, 8), choose_range(outlier, 4)
    assert (eight["min"], eight["max"], four["min"], four["max"]) == (0, 255, 0, 15)
    assert 15 / four["gain"] < 4 < 255 / eight["gain"]
    both = choose_range(random.standard_normal(20_000).astype(np.float32), 8)
    assert both["max"] - both["min"] == 255
    assert -150 < both["min"] < -100
    assert choose_range(np.zeros(3, np.float32), 8)["max"] == 255


def test_wrong_requests_are_refused_in_one_line(residual, images):
    signs = nn.Sequential(BinaryConv2d(3, 16, 3, input_quantizer=SignActivation()), nn.Flatten()).eval()
    with pytest.raises(PackError, match="the model has no such layer: leave it at 'float32'"):
        pack(signs, images[:2], activations="int4")
    with pytest.raises(PackError, match="activations='int2' is not known: choose one of 'float32', 'int8', 'int4'"):
        pack(residual, images[:2], activations="int2")
    with pytest.raises(
        PackError, match=r"calibration has shape \(4, 3, 5, 5\): give images of shape \(batch, 3, 12, 12\)"
    ):
        pack(residual, images[:2], activations="int8", calibration=torch.randn(4, 3, 5, 5))
    with pytest.raises(PackError, match="calibration holds numbers that are not finite"):
        pack(residual, images[:2], activations="int8", calibration=torch.full((1, 3, 12, 12), float("nan")))
    with pytest.raises(PackError, match="calibration is for activations"):
        pack(residual, images[:2], calibration=images)
