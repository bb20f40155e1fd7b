"""A trained and packed net gives every test image the same class and logits in each engine."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from equalbits.data import load_dataset
from equalbits.deploy import Preprocessing, pack
from equalbits.nn import BiHalf, BinaryConv2d, BinaryLinear, PrunedBiHalf, SignActivation
from equalbits.runtime import PackedModel, load_packed, native

ENGINES = ["numpy"] if native.BUILT is None else ["numpy", "native"]


def reals() -> nn.Module:
    """Binary weights, one layer pruned, real values between them; the first and the last layer real."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        BinaryConv2d(16, 32, 3, padding=1, bias=False, weight_quantizer=BiHalf()),
        nn.BatchNorm2d(32),
        nn.PReLU(32),
        nn.MaxPool2d(2),
        BinaryConv2d(32, 32, 3, groups=2, bias=False, weight_quantizer=PrunedBiHalf(0.5)),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4, 10),
    )


class Block(nn.Module):
    """A residual block that is binary on both sides."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        sides = {"weight_quantizer": BiHalf(), "input_quantizer": SignActivation()}
        self.conv = BinaryConv2d(channels, channels, 3, padding=1, bias=False, **sides)
        self.norm, self.act = nn.BatchNorm2d(channels), nn.PReLU(channels)

    def forward(self, value: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(value)) + value)


def signs() -> nn.Module:
    """Binary weights and inputs throughout: every sum before a sign is an integer, unaffected by rounding."""
    sides = {"weight_quantizer": BiHalf(), "input_quantizer": SignActivation()}
    return nn.Sequential(
        BinaryConv2d(1, 32, 5, stride=2, padding=2, bias=False, **sides),
        nn.BatchNorm2d(32),
        Block(32),
        nn.MaxPool2d(2),
        Block(32),
        nn.MaxPool2d(2),
        nn.Flatten(),
        BinaryLinear(32 * 9, 10, **sides),
        nn.BatchNorm1d(10),
    )


def trained(model: nn.Module) -> nn.Module:
    data = load_dataset("fashion", split="train").take(3000)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    images = normalised(data.images, data)
    for _ in range(2):
        for start in range(0, len(images), 100):
            optimizer.zero_grad()
            part = slice(start, start + 100)
            nnf.cross_entropy(model(images[part]), data.labels[part].long()).backward()
            optimizer.step()
    return model.eval()


def normalised(images: Tensor, data) -> Tensor:
    mean, std = (torch.tensor(numbers).view(1, -1, 1, 1) for numbers in (data.mean, data.std))
    return (images.float() / 255 - mean) / std


@pytest.mark.parametrize("make", [reals, signs])
def test_a_trained_net_gives_every_test_image_the_same_class_packed(make, tmp_path):
    torch.manual_seed(0)
    model, data = trained(make()), load_dataset("fashion", split="test")
    images = normalised(data.images, data)
    with torch.no_grad():
        answer = model(images).numpy()
    right = (answer.argmax(axis=1) == data.labels.numpy()).mean()
    assert right > 0.5, "it was trained"
    packed = pack(model, images[:8], class_names=data.classes, preprocessing=Preprocessing(data.mean, data.std))
    packed.save(tmp_path / "net.ebits")
    answers = {}
    for engine in ENGINES:
        read: PackedModel = load_packed(tmp_path / "net.ebits", engine=engine)
        found = answers[engine] = read(images.numpy())
        assert np.abs(found - answer).max() <= 1e-4 * np.abs(answer).max()
        np.testing.assert_array_equal(found.argmax(axis=1), answer.argmax(axis=1))
        bytes_ = read(data.images.numpy())  # the file's own mean and std
        np.testing.assert_array_equal(bytes_.argmax(axis=1), answer.argmax(axis=1))
    if make is signs and len(answers) == 2:
        np.testing.assert_array_equal(answers["native"], answers["numpy"])
