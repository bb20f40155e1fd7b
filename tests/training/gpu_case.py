"""A small net, its data and a record of its inputs, for the tests on a GPU."""

import dataclasses
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from equalbits.data import Loader, load_dataset
from equalbits.models import resnet
from equalbits.nn import BiHalf, BinaryConv2d, BinaryLinear
from equalbits.training import TrainConfig

SPEEDS = ["compiled", "captured", "recorded"]


def make_resnets_shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give ResNet-18 two blocks, one with stride, which compile in a third of the time."""
    monkeypatch.setattr(resnet, "_CHANNELS", (64, 128))
    monkeypatch.setitem(resnet._DEPTHS, 18, (1, 1))


def seeded(config: TrainConfig | Sequence[TrainConfig], seeds: Sequence[int]) -> list[TrainConfig]:
    configs = [config] * len(seeds) if isinstance(config, TrainConfig) else config
    return [dataclasses.replace(each, seed=seed) for each, seed in zip(configs, seeds, strict=True)]


def make_net(seed: int = 0, *, quantizer=BiHalf) -> nn.Sequential:
    """No bias before a batch norm: its gradient is rounding noise alone, which Adam would make a step of."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        BinaryConv2d(16, 16, 3, stride=2, bias=False, weight_quantizer=quantizer()),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        BinaryLinear(144, 4),
    ).cuda()


def make_loader(count: int = 84, batch_size: int = 16, **settings) -> Loader:
    """Five batches of 16 and one of 4."""
    data = load_dataset(f"synthetic:1x8x8:4:{count}", split="train", device="cuda")
    return Loader(data, batch_size=batch_size, **{"shuffle": True, "augment": True, **settings})


def make_test() -> Loader:
    return Loader(load_dataset("synthetic:1x8x8:4:84", split="test", device="cuda"), batch_size=8)


def assert_close(model: nn.Module, other: nn.Module) -> None:
    for (name, mine), theirs in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-3, msg=name)


class Witness(nn.Module):
    """Sums the images it saw and the outputs of its dropout, each weighted by its step."""

    def __init__(self, share: float = 0.0) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(64, 4), nn.Dropout(share)
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(8, 8, dtype=torch.float64))
        self.register_buffer("passed", torch.zeros(64, dtype=torch.float64))

    def forward(self, images: Tensor) -> Tensor:
        self.count += 1
        self.seen += self.count * images.double().sum(dim=(0, 1))
        kept = self.dropout(torch.ones_like(images.flatten(1)))
        self.passed += self.count * kept.double().sum(dim=0)
        return self.linear(images.flatten(1) * kept)


def assert_same_images(one: Witness, other: Witness) -> None:
    """A compiled batch is normalised with other last digits; another crop or order would be off by a thousandfold."""
    torch.testing.assert_close(one.seen, other.seen, rtol=0, atol=1e-3)
