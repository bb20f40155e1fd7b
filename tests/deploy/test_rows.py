"""One-dimensional networks pack to the same operations as their twins on images of one row."""

import numpy as np
import pytest
import torch
from torch import nn

from equalbits.analysis import summarize
from equalbits.deploy import pack
from equalbits.nn import BinaryConv1d, BinaryConv2d, BinaryLinear, SignActivation


class Residual(nn.Module):
    """Batch norms, a shortcut, a concatenation and pooling around binary convolutions, along one axis or two."""

    def __init__(self, *, along_one: bool) -> None:
        super().__init__()
        norm = nn.BatchNorm1d if along_one else nn.BatchNorm2d
        self.along_one = along_one
        self.stem, self.first = self.real(4, 8, 5), norm(8)
        self.left, self.right = self.binary(8, 8), self.binary(8, 8)
        self.norms = nn.ModuleList([norm(8), norm(8)])
        self.prelu, self.clip = nn.PReLU(8), nn.Hardtanh()
        self.pool = nn.MaxPool1d(2) if along_one else nn.MaxPool2d((1, 2))
        self.mean = nn.AdaptiveAvgPool1d(1) if along_one else nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(16, 3)

    def real(self, inputs: int, outputs: int, kernel: int) -> nn.Module:
        return nn.Conv1d(inputs, outputs, kernel) if self.along_one else nn.Conv2d(inputs, outputs, (1, kernel))

    def binary(self, inputs: int, outputs: int) -> nn.Module:
        if self.along_one:
            return BinaryConv1d(inputs, outputs, 3, padding=1, input_quantizer=SignActivation())
        return BinaryConv2d(inputs, outputs, (1, 3), padding=(0, 1), input_quantizer=SignActivation())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.first(self.stem(images.squeeze(2) if self.along_one else images))
        x = x + self.prelu(self.norms[0](self.left(x)))
        x = self.pool(torch.cat([x, self.clip(self.norms[1](self.right(x)))], 1).relu())
        return self.head(self.mean(x).flatten(1))


def test_a_network_along_one_axis_is_its_twin_of_images():
    torch.manual_seed(0)
    rows, twin = Residual(along_one=True), Residual(along_one=False)
    for norm in (rows.first, *rows.norms):
        norm.running_mean.normal_()
        norm.weight.data.normal_()
    with torch.no_grad():
        for name, tensor in twin.state_dict().items():
            tensor.copy_(rows.state_dict()[name].reshape(tensor.shape))
    images = torch.randn(3, 4, 1, 20)
    packed, expected = pack(rows, images), pack(twin, images)
    assert [(step.kind, step.settings) for step in packed.network.operations] == [
        (step.kind, step.settings) for step in expected.network.operations
    ]
    assert "reshape" not in {step.kind for step in packed.network.operations}
    np.testing.assert_array_equal(packed(images.numpy()), expected(images.numpy()))
    answer = rows.eval()(images).detach().numpy()
    np.testing.assert_allclose(packed(images.numpy()), answer, atol=1e-5 * np.abs(answer).max())
    assert summarize(rows, images).total["packed_bytes"] == packed.summary().total("stored_bytes")


@pytest.mark.parametrize("axes", [(6, 20), (2, 3, 20)])
def test_a_binary_layer_over_tokens_multiplies_bits_by_bits(axes):
    torch.manual_seed(0)
    mix = BinaryLinear(20, 7, bias=True, input_quantizer=SignActivation())
    model = nn.Sequential(nn.Flatten(1), nn.Unflatten(1, axes), mix)
    images = torch.randn(3, 6, 1, 20)
    images[0, :, :, :3] = 0
    packed = pack(model, images)
    kinds = [operation.kind for operation in packed.network.operations]
    assert kinds[kinds.index("conv") - 1] == "sign"
    assert kinds.count("sign") == 1
    np.testing.assert_allclose(packed(images.numpy()), model(images).detach().numpy(), atol=1e-5)
    assert packed.summary().total("binary_macs") == 6 * 20 * 7
    assert packed.summary().total("real_macs") == 0


class Causal(nn.Module):
    """Causal convolutions: padding on the left, or cropping on the right."""

    def __init__(self) -> None:
        super().__init__()
        self.first = BinaryConv1d(4, 16, 3, dilation=2, input_quantizer=SignActivation())
        self.second = BinaryConv1d(16, 16, 3, padding=2, input_quantizer=SignActivation())
        self.third = BinaryConv1d(16, 5, 1, input_quantizer=SignActivation())
        self.norm = nn.BatchNorm1d(16)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(nn.functional.pad(images.squeeze(2), (4, 0))))
        return self.third(self.second(x)[:, :, :-2]).flatten(1)


def test_a_causal_network_multiplies_bits_by_bits():
    torch.manual_seed(0)
    model = Causal()
    model.norm.running_mean.normal_()
    for conv in (model.first, model.second, model.third):
        conv.scale.fill_(1.0)  # whole numbers, which torch adds exactly too
        nn.init.zeros_(conv.bias)
    images = torch.randn(3, 4, 1, 20)
    packed = pack(model, images)
    operations = packed.network.operations
    convolutions = [step for step in operations if step.kind == "conv"]
    assert [operations[step.inputs[0] - 1].kind for step in convolutions] == ["sign"] * 3
    assert packed.summary().total("real_macs") == 0
    for batch in (images, images[:1]):
        answer = model.eval()(batch).detach().numpy()
        np.testing.assert_allclose(packed(batch.numpy()), answer, atol=1e-5 * np.abs(answer).max())


class Features(nn.Module):
    """Multiply the features of each row by constants of their own, then by bits."""

    def __init__(self) -> None:
        super().__init__()
        self.gains, self.layer = nn.Parameter(torch.randn(6)), BinaryLinear(6, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.layer(rows * self.gains).flatten(1)


@pytest.mark.parametrize("channels", [1, 3])
def test_constants_per_feature_of_one_row_pack(channels):
    torch.manual_seed(0)
    model, rows = Features().eval(), torch.randn(3, channels, 1, 6)
    packed = pack(model, rows)
    np.testing.assert_allclose(packed(rows.numpy()), model(rows).detach().numpy(), atol=1e-5)
