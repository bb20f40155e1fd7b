"""Attention, gates, norms and activations pack: in the file, in ONNX and in OpenVINO they give the model's logits."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as nnf

from equalbits.deploy import PackError, export_onnx, pack
from equalbits.nn import BiHalf, binarize_
from equalbits.runtime import build_openvino


def packs(model, images):
    """The packed model, whose logits are the model's for other images too."""
    packed = pack(model, images)
    others = torch.randn_like(images)[:1]
    with torch.no_grad():
        answer = model.eval()(others).numpy()
    np.testing.assert_allclose(packed(others.numpy()), answer, atol=2e-5 * np.abs(answer).max())
    return packed


class Attention(nn.Module):
    """Self-attention as timm writes it: the batch is not the first axis between permute and unbind."""

    def __init__(self, width=16, heads=2, **options):
        super().__init__()
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.options = heads, options

    def forward(self, x):
        batch, tokens, width = x.shape
        parts = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        made = nnf.scaled_dot_product_attention(query, key, value, **self.options)
        return self.project(made.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    def __init__(self, width=16, **options):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(width), Attention(width, **options), nn.LayerNorm(width)
        self.up, self.down, self.gamma = nn.Linear(width, 32), nn.Linear(32, width), nn.Parameter(torch.rand(width))

    def forward(self, x):
        x = x + self.gamma * self.attention(self.norm1(x))
        return x + self.down(nnf.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """One causal block, and one with a mask over some of the tokens."""

    def __init__(self):
        super().__init__()
        mask = torch.rand(5, 5) < torch.eye(5) + 0.5
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.blocks = nn.Sequential(Block(is_causal=True), Block(attn_mask=mask))
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 5, 16))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


class Windows(nn.Module):
    """Attention within windows, as in Swin: windows are folded into the batch meanwhile."""

    def __init__(self):
        super().__init__()
        self.norm, self.attention, self.bias = nn.LayerNorm(16), Attention(), nn.Parameter(torch.randn(1, 2, 4, 4))
        self.flat = nn.BatchNorm1d(16)
        self.flat.running_mean.normal_()

    def forward(self, images):
        x = self.norm(images.permute(0, 2, 3, 1))
        batch, rows, columns, width = x.shape
        x = x.roll((1, 1), (1, 2)).view(batch, rows // 2, 2, columns // 2, 2, width).transpose(2, 3)
        x = self.flat(x.reshape(-1, width)).reshape(-1, 4, width)
        scores = (x @ x.transpose(1, 2)).unsqueeze(1) + self.bias
        x = self.attention(x) + (scores.softmax(-1).mean(1) @ x) * torch.sigmoid(x)
        x = x.view(batch, rows // 2, columns // 2, 2, 2, width).transpose(2, 3).reshape(batch, rows, columns, width)
        return x.permute(0, 3, 1, 2).mean((2, 3))


class Gates(nn.Module):
    """Activations, norms over channels and groups, and gates, as convolutional nets have them."""

    def __init__(self):
        super().__init__()
        self.stem, self.deep, self.squeeze = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 1)
        self.norms = nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU(), nn.InstanceNorm2d(8, affine=True), nn.Hardswish())
        self.smooth = nn.Sequential(nn.Mish(), nn.ELU(0.5), nn.Softplus(2), nn.Tanh(), nn.SELU(), nn.CELU(0.7))
        self.rms, self.head = nn.RMSNorm(8), nn.Linear(8, 3)

    def forward(self, images):
        x = self.norms(self.stem(images))
        x = x * nnf.hardsigmoid(self.squeeze(x.mean((2, 3), keepdim=True)))
        x = self.smooth(self.deep(x)).permute(0, 2, 3, 1)
        x = nnf.gelu(self.rms(x), approximate="tanh") / (1 + x.norm(dim=-1, keepdim=True))
        x = (x - x.mean((1, 2), keepdim=True)) * torch.rsqrt(x.var((1, 2), keepdim=True) + 1e-3) + x**2 + x.abs() ** 0.5
        return self.head(x.amax((1, 2)))


MODELS = {
    "transformer": (Transformer, (3, 3, 8, 8)),
    "windows": (Windows, (3, 16, 4, 6)),
    "gates": (Gates, (3, 3, 9, 9)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_gives_its_own_logits_packed_and_exported(name, tmp_path):
    torch.manual_seed(0)
    build, shape = MODELS[name]
    model, images = build().eval(), torch.randn(shape)
    binarize_(model, BiHalf(), where=lambda found: found.name not in ("patches", "stem", "head"))
    packed = packs(model, images)
    assert packed.engine.startswith("native") or packed.engine == "numpy"
    expected = packed(images.numpy())
    onnxruntime = pytest.importorskip("onnxruntime")
    export_onnx(packed, tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"images": images.numpy()})
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())
    ov = pytest.importorskip("openvino")
    compiled = ov.Core().compile_model(build_openvino(packed.network, 3), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    np.testing.assert_allclose(compiled(images.numpy())[0], expected, atol=2e-5 * np.abs(expected).max())


class Constant(nn.Module):
    """A binary layer whose input is the same for every image, as of positions in XCiT."""

    def __init__(self):
        super().__init__()
        self.places, self.layer = nn.Parameter(torch.randn(1, 5, 1, 1)), nn.Conv2d(5, 4, 1)

    def forward(self, images):
        return (images + self.layer(self.places)).flatten(1)


def test_a_binary_layer_with_a_constant_input_is_a_constant():
    torch.manual_seed(0)
    model = Constant()
    binarize_(model, BiHalf(), where="layer")
    assert [step.kind for step in packs(model, torch.randn(3, 4, 5, 6)).network.operations] == ["affine", "flatten"]


class Written(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.written = forward

    def forward(self, images):
        return self.written(images)


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (lambda x: x**0.3, r"layer 'pow_1' raises to the power 0\.3: a packed network has whole and half ones"),
        (lambda x: x.norm(p=1, dim=1, keepdim=True), "layer 'linalg_vector_norm' takes a norm of order 1"),
        (lambda x: x.softmax(0), "layer 'softmax' takes a softmax over the batch"),
        (lambda x: x.flatten(0, 1).softmax(0).unflatten(0, (3, 4)), "layer 'softmax' works along the batch"),
        (lambda x: x.flatten(0, 1).cumsum(1).unflatten(0, (3, 4)), "does aten.cumsum.default, which a packed network"),
        (lambda x: nnf.softplus(x, threshold=3), "has a softplus with threshold=3"),
        (lambda x: x.transpose(0, 1).softmax(2).transpose(0, 1), "does softmax.int while the batch is axis 1: keep"),
    ],
)
def test_models_that_cannot_be_packed_are_named(forward, words):
    with pytest.raises(PackError, match=words):
        pack(Written(forward), torch.rand(3, 4, 5, 6))


TURNED = {
    "a choice": lambda y: torch.where(y > 0, 1.0, -1.0),
    "two choices": lambda y: torch.where(y > 0.5, 2.0, torch.where(y > 0, 1.0, -1.0)),
    "a bool": lambda y: (y >= 0).float(),
    "its negation": lambda y: (~(y >= 0)).float(),
    "times its bool": lambda y: y * (y > 0),
    "two values": lambda y: (y + 2 * y) * y[..., :1],
}


@pytest.mark.parametrize("batch", [2, 4])  # 4 is also the number of channels
@pytest.mark.parametrize("name", TURNED)
def test_comparisons_and_sums_keep_the_place_of_the_batch(name, batch):
    def forward(x):
        return TURNED[name](x.flatten(2).transpose(0, 1)).transpose(0, 1).flatten(1)

    torch.manual_seed(0)
    packed = pack(Written(forward), torch.randn(batch, 4, 5, 6))
    images = torch.randn(3, 4, 5, 6)
    np.testing.assert_allclose(packed(images.numpy()), forward(images).numpy(), atol=1e-5)
