"""Operations that packing folds or moves keep the model's outputs, and values with other readers unchanged."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from equalbits.analysis import summarize
from equalbits.deploy import pack
from equalbits.runtime import load_packed


def kinds(model: nn.Module, *shape: int) -> list[str]:
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                module.weight.data.normal_()
                module.bias.data.normal_()
    model.eval()
    images = torch.randn(3, *shape)
    packed = pack(model, images)
    answer = model(images).detach().numpy()
    np.testing.assert_allclose(packed(images.numpy()), answer, atol=1e-5 * np.abs(answer).max())
    assert summarize(model, images).total["packed_bytes"] == packed.summary().total("stored_bytes")
    return [operation.kind for operation in packed.network.operations]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_a_batch_norm_goes_into_the_real_layer_before_it(bias: bool, affine: bool) -> None:
    layers = [nn.Conv2d(4, 6, 3, groups=2, bias=bias), nn.BatchNorm2d(6, affine=affine), nn.ReLU(), nn.Flatten()]
    layers += [nn.Linear(6 * 36, 5, bias=bias), nn.BatchNorm1d(5, affine=affine)]
    assert kinds(nn.Sequential(*layers), 4, 8, 8) == ["conv", "relu", "flatten", "linear"]


def test_an_average_is_taken_before_a_convolution_of_one_pixel() -> None:
    short = nn.Sequential(nn.Conv2d(4, 6, 1, bias=False), nn.BatchNorm2d(6), nn.AvgPool2d(2), nn.Flatten())
    assert kinds(short, 4, 8, 8) == ["avg_pool", "conv", "flatten"]
    for other in (nn.Conv2d(4, 6, 3), nn.Conv2d(4, 6, 1, stride=2), nn.Conv2d(4, 6, 1, padding=1)):
        assert kinds(nn.Sequential(other, nn.AvgPool2d(2), nn.Flatten()), 4, 8, 8) == ["conv", "avg_pool", "flatten"]
    padded = nn.Sequential(nn.Conv2d(4, 6, 1), nn.AvgPool2d(3, padding=1), nn.Flatten())
    assert kinds(padded, 4, 8, 8) == ["conv", "avg_pool", "flatten"]


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.first, self.second = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.second(self.conv(self.first(self.conv(images)))).flatten(1)


def test_a_layer_that_is_used_twice_is_unchanged() -> None:
    assert kinds(Twice(), 3, 4, 4) == ["conv", "affine", "conv", "affine", "flatten"]


class ReadTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, affine=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = self.conv(images)
        return (found + torch.relu(self.norm(found) * 1.0)).flatten(1)


def test_a_value_with_other_readers_is_unchanged() -> None:
    torch.manual_seed(0)
    images = torch.randn(2, 3, 4, 4)
    packed = pack(ReadTwice().eval(), images)
    assert [operation.kind for operation in packed.network.operations][:2] == ["conv", "affine"]


def test_layers_whose_names_a_file_cannot_hold_get_others(tmp_path: Path) -> None:
    layers = {"a b": nn.Conv2d(3, 4, 3), "c=d": nn.PReLU(4), "c:d": nn.PReLU(4), "7": nn.Conv2d(4, 2, 1)}
    layers["c:d"].weight.data.fill_(0.5)
    model, images = nn.Sequential(*layers.values(), nn.Flatten()), torch.randn(2, 3, 5, 5)
    model._modules = {**layers, "flat": nn.Flatten()}
    packed = pack(model, images)
    packed.save(tmp_path / "net.ebits")
    assert {"a_b.weight", "c_d.slope", "c_d~2.slope", "7.bias"} <= set(packed.network.tensors)
    np.testing.assert_array_equal(load_packed(tmp_path / "net.ebits")(images.numpy()), packed(images.numpy()))
