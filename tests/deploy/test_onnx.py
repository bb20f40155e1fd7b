"""The ONNX file stores bits as bits, with the outputs of the packed file. Needs onnx and onnxruntime."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as nnf

from equalbits.deploy import pack
from equalbits.models import create_model
from equalbits.nn import BinaryConv2d, BinaryLinear, PrunedBiHalf, SignActivation
from equalbits.runtime import Network, PackedModel, export_onnx, make_operation
from equalbits.runtime.bits import pack_symbols

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def answers(packed, path, images):
    """Outputs of ONNX Runtime for the file, and of numpy for the packed model."""
    export_onnx(packed, path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"images": images.numpy()})
    return found, PackedModel(packed.network, engine="numpy")(images.numpy())


class Everything(nn.Module):
    """Each operation of the packed file at least once."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm, self.prelu = nn.Conv2d(4, 8, 3, padding="same"), nn.BatchNorm2d(8), nn.PReLU(8)
        self.conv = BinaryConv2d(8, 12, 3, stride=2, padding=1, groups=2, input_quantizer=SignActivation())
        self.pruned = BinaryConv2d(12, 12, (2, 1), dilation=2, weight_quantizer=PrunedBiHalf(0.6))
        self.head = BinaryLinear(12 * 4 * 3, 5)
        self.norm.running_mean.normal_()

    def forward(self, images):
        x = self.prelu(self.norm(self.stem(images)))
        x = torch.cat([nnf.relu(x[:, :4, 1:-1, ::2]), nnf.hardtanh(x[:, 4:, 1:-1, ::2])], dim=1)
        x = nnf.max_pool2d(nnf.pad(x, (1, 2, 0, 1), value=0.5), 3, stride=1, padding=1)
        x = self.conv(nnf.avg_pool2d(x, 2, stride=1, padding=1, count_include_pad=False))
        x = torch.channel_shuffle(x.transpose(2, 3), 3) + 0.5 * x.transpose(2, 3)
        x = self.pruned(x).flatten(2).unflatten(2, (-1, 2))
        return self.head(nnf.adaptive_avg_pool2d(x, (4, 3)).flatten(1))


@pytest.mark.parametrize("rest", ["float32", "float16", "int8"])
def test_every_operation_answers_the_same(rest, tmp_path):
    torch.manual_seed(0)
    images = torch.randn(3, 4, 12, 11)
    packed = pack(Everything(), images, rest=rest)
    kinds = {operation.kind for operation in packed.network.operations}
    assert len(kinds) >= 16
    found, expected = answers(packed, tmp_path / "net.onnx", images)
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize(("name", "inputs"), [("conv4", None), ("resnet20", "sign"), ("vgg16", None)])
def test_packed_networks_give_the_same_logits_and_are_small(name, inputs, tmp_path):
    torch.manual_seed(0)
    model = create_model(name, weight_quantizer="bihalf", input_quantizer=inputs, image_size=16, width=0.5)
    images = torch.randn(2, 3, 16, 16)
    packed = pack(model, images, class_names=map(str, range(10)))
    found, expected = answers(packed, tmp_path / "net.onnx", images)
    if inputs is None:
        assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
    assert found.shape == (2, 10)
    stored = packed.summary().total("stored_bytes")
    assert (tmp_path / "net.onnx").stat().st_size < stored + 80_000, "the graph itself, and the bits"
    assert {entry.key for entry in onnx.load(tmp_path / "net.onnx").metadata_props} == {"classes"}


class Again(nn.Module):
    """A binary layer and a PReLU that see tokens, rows and images in turn."""

    def __init__(self):
        super().__init__()
        self.linear, self.act = BinaryLinear(6, 6), nn.PReLU(6)

    def forward(self, images):
        tokens = self.act(self.linear(images.flatten(2).transpose(1, 2)))
        return self.act(self.linear(tokens.mean(1))) + self.act(images).mean((2, 3))


@pytest.mark.parametrize("rest", ["float32", "float16"])
def test_a_layer_may_be_used_on_values_of_several_ranks(rest, tmp_path):
    torch.manual_seed(0)
    images = torch.randn(3, 6, 2, 3)
    found, expected = answers(pack(Again(), images, rest=rest), tmp_path / "net.onnx", images)
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("name", ["images", "logits", "v1", "n0", "c0", "zero", "row0", "plus", "kept"])
def test_tensors_may_have_any_name_and_share_a_plane_pruned_and_not(name, tmp_path):
    random = np.random.default_rng(0)
    sign, kept = pack_symbols(random.choice([-1, 0, 1], (8, 8)))
    layers = [{"weight": name}, {"weight": name, "kept": "pruned"}]
    build = [make_operation("sign", (0,), {}, {}), make_operation("flatten", (1,), {}, {})]
    build += [make_operation("linear", (place + 2,), layer, {}) for place, layer in enumerate(layers)]
    build += [make_operation("affine", (4,), {"gain_shift": "norm"}, {}), make_operation("sign", (5,), {}, {})]
    norm = np.stack([np.ones(8), np.full(8, 0.5)]).astype(np.float32)
    network = Network((8, 1, 1), tuple(build), {name: sign, "pruned": kept, "norm": norm})
    images = torch.from_numpy(random.standard_normal((5, 8, 1, 1)).astype(np.float32))
    np.testing.assert_array_equal(*answers(PackedModel(network), tmp_path / "net.onnx", images))


def test_a_decoder_answers_the_same(decoder, tmp_path):
    images = torch.randn(3, 4, 5, 6)
    found, expected = answers(pack(decoder, images), tmp_path / "net.onnx", images)
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
