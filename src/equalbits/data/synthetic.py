"""Synthetic images of any shape and number of classes, to try a model without data."""

import re

import numpy as np
import torch
from torch import Tensor

from equalbits.data.dataset import DataError

_FORM = re.compile(r"synthetic(?::(\d+)x(\d+)x(\d+)(?::(\d+)(?::(\d+)(?::(\d+))?)?)?)?")
_DEFAULTS = (3, 32, 32, 10, 1024, 0)


def make_synthetic(name: str, split: str) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Return images, labels and class names for ``synthetic[:CxHxW[:classes[:count[:seed]]]]``.

    Defaults are 3x32x32, 10 classes, 1024 training images and seed 0; there are a quarter as many test images. Each
    class has a coarse pattern, shared by both splits, under noise, so that a network can learn it. Labels are balanced.
    The same name returns the same bytes on every machine.

    >>> images, labels, classes = make_synthetic("synthetic:1x8x8:3:12", "train")
    >>> tuple(images.shape), torch.bincount(labels).tolist()
    ((12, 1, 8, 8), [4, 4, 4])
    """
    found = _FORM.fullmatch(name)
    if not found:
        raise DataError(f"{name!r} must be written synthetic:CxHxW:classes:count:seed, as in synthetic:3x32x32:10")
    channels, height, width, classes, count, seed = (
        int(given or default) for given, default in zip(found.groups(), _DEFAULTS, strict=True)
    )
    if 0 in (channels, height, width, classes, count):
        raise DataError(f"{name!r}: the shape, the classes and the count of synthetic data must be 1 or more")
    if split == "test":
        count = max(1, count // 4)
    shared = np.random.default_rng([seed, 0])
    coarse = shared.integers(0, 2, (classes, channels, 4, 4), dtype=np.uint8)
    rows, columns = np.arange(height) * 4 // height, np.arange(width) * 4 // width
    pattern = coarse[:, :, rows[:, None], columns] * np.uint8(64)  # (class, channel, row, column): 0 or 64
    fresh = np.random.default_rng([seed, 1 if split == "train" else 2])
    labels = fresh.permutation(np.arange(count) % classes)
    images = fresh.integers(0, 192, (count, channels, height, width), dtype=np.uint8)
    images += pattern[labels]
    return torch.from_numpy(images), torch.from_numpy(labels), tuple(f"class {number}" for number in range(classes))
