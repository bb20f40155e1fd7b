"""OpenVINO gives the outputs of the packed file, with binary convolutions on bits. Needs openvino."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as nnf

from equalbits.deploy import pack
from equalbits.models import create_model
from equalbits.nn import BiHalf, BinaryConv2d, BinaryLinear, PrunedBiHalf, SignActivation
from equalbits.runtime import PackedModel, build_openvino, export_openvino

ov = pytest.importorskip("openvino")


def compiled(model):
    return ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def ran(model):
    """Names of the operations that OpenVINO runs."""
    return [node.get_rt_info()["layerType"].value for node in model.get_runtime_model().get_ops()]


@pytest.mark.parametrize("quantizer", [BiHalf(), PrunedBiHalf(0.6)])
@pytest.mark.parametrize("shape", [(3, 1, 1, 1), (3, 2, 1, 1), (3, 1, 0, 2), (1, 1, 0, 1), ((1, 5), 1, (0, 2), 1)])
def test_binary_convolutions_are_exact_with_zero_padding(quantizer, shape):
    kernel, stride, padding, dilation = shape
    settings = {"stride": stride, "padding": padding, "dilation": dilation, "bias": False}
    conv = BinaryConv2d(24, 20, kernel, **settings, weight_quantizer=quantizer, input_quantizer=SignActivation())
    conv.scale.fill_(1.0)
    images = torch.randn(2, 24, 7, 8)
    images[0, :, 0] = 0
    packed = pack(nn.Sequential(conv), images)
    model = compiled(build_openvino(packed.network, batch=2))
    assert "BinaryConvolution" in ran(model)
    assert (model(images.numpy())[0] == PackedModel(packed.network, engine="numpy")(images.numpy())).all()


class Everything(nn.Module):
    """Each operation of the packed file at least once."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm, self.prelu = nn.Conv2d(4, 8, 3, padding="same"), nn.BatchNorm2d(8), nn.PReLU(8)
        self.conv = BinaryConv2d(8, 12, 3, stride=2, padding=1, input_quantizer=SignActivation())
        self.grouped = BinaryConv2d(12, 12, 3, padding=1, groups=3, weight_quantizer=PrunedBiHalf(0.3))
        self.pruned = BinaryConv2d(12, 12, (2, 1), dilation=2, weight_quantizer=PrunedBiHalf(0.6))
        self.hidden = BinaryLinear(12 * 4 * 3, 16, input_quantizer=SignActivation())
        self.head = BinaryLinear(16, 5)
        self.norm.running_mean.normal_()

    def forward(self, images):
        x = self.prelu(self.norm(self.stem(images)))
        x = torch.cat([nnf.relu(x[:, :4, 1:-1, ::2]), nnf.hardtanh(x[:, 4:, 1:-1, ::2])], dim=1)
        x = nnf.max_pool2d(nnf.pad(x, (1, 2, 0, 1), value=0.5), 3, stride=1, padding=1)
        x = self.conv(nnf.avg_pool2d(x, 2, stride=1, padding=1, count_include_pad=False))
        x = torch.channel_shuffle(x.transpose(2, 3), 3) + 0.5 * x.transpose(2, 3)
        x = self.pruned(self.grouped(x)).flatten(2).unflatten(2, (-1, 2))
        return self.head(self.hidden(nnf.adaptive_avg_pool2d(x, (4, 3)).flatten(1)))


@pytest.mark.parametrize("rest", ["float32", "float16", "int8"])
def test_every_operation_answers_the_same(rest, tmp_path):
    torch.manual_seed(0)
    images = torch.randn(3, 4, 12, 11)
    packed = pack(Everything(), images, rest=rest)
    assert len({operation.kind for operation in packed.network.operations}) >= 17
    export_openvino(packed, tmp_path / "net.xml", batch=3)
    model = compiled(tmp_path / "net.xml")
    assert ran(model).count("BinaryConvolution") == 2
    found, expected = model(images.numpy())["logits"], PackedModel(packed.network, engine="numpy")(images.numpy())
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def test_a_network_runs_on_bits_and_its_file_is_small(tmp_path):
    torch.manual_seed(0)
    model = create_model("resnet20", weight_quantizer="bihalf", input_quantizer="sign", image_size=16)
    packed = pack(model, torch.randn(1, 3, 16, 16))
    export_openvino(packed, tmp_path / "net.xml")
    assert ran(compiled(tmp_path / "net.xml")).count("BinaryConvolution") == 18
    assert (tmp_path / "net.bin").stat().st_size < 1.05 * packed.summary().total("stored_bytes") + 4096


def test_a_decoder_answers_the_same(decoder):
    images = torch.randn(3, 4, 5, 6)
    packed = pack(decoder, images)
    found = compiled(build_openvino(packed.network, batch=3))(images.numpy())[0]
    expected = PackedModel(packed.network, engine="numpy")(images.numpy())
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


MOVED = {
    "transposed": lambda x: x.transpose(2, 3),
    "beside each other": lambda x: torch.cat([x, x], 3),
    "moved, then scaled": lambda x: x.transpose(2, 3) * 2 + 1,
    "channels last for a while": lambda x: x.permute(0, 2, 3, 1).relu().permute(0, 3, 1, 2),
}


class Moved(nn.Module):
    """A binary convolution that reads the signs after data movement."""

    def __init__(self, move):
        super().__init__()
        self.stem, self.move = nn.Conv2d(4, 8, 1), move
        self.conv = BinaryConv2d(8, 8, 3, input_quantizer=SignActivation())

    def forward(self, images):
        return self.conv(self.move(self.stem(images)))


@pytest.mark.parametrize("name", MOVED)
def test_signs_after_data_movement_are_read_as_bits_without_a_crash(name):
    torch.manual_seed(0)
    images = torch.randn(3, 4, 5, 6)
    packed = pack(Moved(MOVED[name]), images)
    model = compiled(build_openvino(packed.network, batch=3))
    assert "BinaryConvolution" in ran(model)
    expected = PackedModel(packed.network, engine="numpy")(images.numpy())
    assert np.abs(model(images.numpy())[0] - expected).max() <= 1e-5 * np.abs(expected).max()
