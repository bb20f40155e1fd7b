"""Nets and batches small enough that a step takes a millisecond."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from equalbits.data import Loader, load_dataset
from equalbits.nn import BiHalf, BinaryConv2d, BinaryLinear
from equalbits.training import OptimizerConfig, ScheduleConfig, TrainConfig

MakeNet = Callable[..., nn.Module]
MakeLoader = Callable[..., Loader]
MakeConfig = Callable[..., TrainConfig]


@pytest.fixture
def make_net() -> MakeNet:
    """A net for 1×8×8 images of 4 classes, half of it binary."""

    def make(seed: int = 0, *, dropout: float = 0.0, norm: bool = False) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.Sequential(
                nn.Conv2d(1, 4, 3, padding=1),
                nn.BatchNorm2d(4) if norm else nn.Identity(),
                nn.ReLU(),
                BinaryConv2d(4, 4, 3, stride=2, weight_quantizer=BiHalf()),
                nn.ReLU(),
                nn.Flatten(),
                nn.Dropout(dropout),
                BinaryLinear(36, 4),
            )

    return make


@pytest.fixture
def make_loader() -> MakeLoader:
    """Batches of 8 out of 44 images, so the last one is smaller; ``split="test"`` gives 11 images in order."""

    def make(split: str = "train", *, count: int = 44, batch_size: int = 8, **settings: Any) -> Loader:
        dataset = load_dataset(f"synthetic:1x8x8:4:{count}", split=split)
        training = {"shuffle": True, "augment": True} if split == "train" else {}
        return Loader(dataset, batch_size=batch_size, **{**training, **settings})

    return make


@pytest.fixture
def make_config() -> MakeConfig:
    """Three epochs of SGD with momentum; ``lr``, ``schedule`` and ``warmup`` may be given by themselves."""

    def make(*, lr: float = 0.05, schedule: str = "cosine", warmup: int = 0, **settings: Any) -> TrainConfig:
        known: dict[str, Any] = {
            "epochs": 3,
            "optimizer": OptimizerConfig(lr=lr),
            "schedule": ScheduleConfig(name=schedule, per="step", warmup_epochs=warmup),
        }
        return TrainConfig(**{**known, **settings})

    return make
