"""What a data set is once it is read: plain records of tensors, checked at birth.

A :class:`Dataset` holds all its images as one uint8 tensor, so that it can live on the device and be cut into
batches there. A :class:`FolderDataset` holds the names of image files, for sets that do not fit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple, Self

import torch
from torch import Tensor


class DataError(ValueError):
    """A data set that is missing, broken or asked for wrongly; one line with the path, the fault and the way out."""


class Statistics(NamedTuple):
    """Mean and standard deviation of each channel, of pixels scaled to [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


STATISTICS: Mapping[str, Statistics] = MappingProxyType(
    {
        "fashion": Statistics((0.286,), (0.353,)),
        "cifar10": Statistics((0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
        "cifar10-resnet18": Statistics((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        "cifar100": Statistics((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        "imagenet": Statistics((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    }
)
"""Normalisation by name. ``cifar10`` is the shallow nets' recipe; ``cifar10-resnet18`` is that of the deep one."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels of one split, whole and on one device.

    ``images`` is uint8 (image, channel, row, column); ``labels`` is int64; ``mean`` and ``std`` normalise pixels
    scaled to [0, 1], one number per channel. ``crop`` is the side of the part of an image that a batch holds (0: all of
    it): the middle, or with augmentation a window at random.
    """

    name: str
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: int = 0

    def __post_init__(self) -> None:
        shape = tuple(self.images.shape)
        if self.images.dtype != torch.uint8 or self.images.dim() != 4 or 0 in shape:
            raise DataError(f"{self.name}: images must be uint8 of 4 axes, none empty, not {self.images.dtype} {shape}")
        if self.labels.device != self.images.device:
            raise DataError(
                f"{self.name}: images are on {self.images.device} and labels on {self.labels.device}; use .to(device)"
            )
        if self.crop and not (1 <= self.crop <= shape[2] == shape[3]):
            raise DataError(f"{self.name}: crop={self.crop} must be 1 to the side of square images, not of {shape[2:]}")
        check_labels(self.labels, count=shape[0], classes=len(self.classes), where=self.name)
        check_statistics(self.mean, self.std, channels=shape[1], where=self.name)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        channels, height, width = self.images.shape[1:]
        return (
            f"Dataset({self.name!r}, {len(self)} images {channels}×{height}×{width}, "
            f"{len(self.classes)} classes, on {self.device})"
        )

    @property
    def device(self) -> torch.device:
        """Where the images are."""
        return self.images.device

    def to(self, device: torch.device | str) -> Self:
        """Return the same data on another device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def take(self, count: int) -> Self:
        """Return the first ``count`` images, as a quick run wants them."""
        if not 1 <= count <= len(self):
            raise DataError(f"{self.name}: cannot take {count} images; choose 1 to {len(self)} (data.limit)")
        return replace(self, images=self.images[:count], labels=self.labels[:count])


@dataclass(frozen=True, eq=False)
class FolderDataset:
    """Image files of one split and their labels; the images are decoded when a batch needs them.

    ``device`` is where a loader puts its batches. ``labels`` stay on the CPU: they are looked up batch by batch.
    """

    name: str
    paths: tuple[str, ...]
    labels: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    device: torch.device

    def __post_init__(self) -> None:
        if not self.paths:
            raise DataError(f"{self.name}: no image files; give a tree root/train/<class>/<image>")
        check_labels(self.labels, count=len(self.paths), classes=len(self.classes), where=self.name)
        check_statistics(self.mean, self.std, channels=3, where=self.name)

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"FolderDataset({self.name!r}, {len(self)} files, {len(self.classes)} classes, for {self.device})"

    def to(self, device: torch.device | str) -> Self:
        """Return the same files, with batches bound for another device."""
        return replace(self, device=torch.device(device))

    def take(self, count: int) -> Self:
        """Return the first ``count`` files. They are sorted by class, so few of them hold few classes."""
        if not 1 <= count <= len(self):
            raise DataError(f"{self.name}: cannot take {count} files; choose 1 to {len(self)} (data.limit)")
        return replace(self, paths=self.paths[:count], labels=self.labels[:count])


def check_labels(labels: Tensor, *, count: int, classes: int, where: str) -> None:
    """Refuse labels that are not one whole number in [0, classes) for each of ``count`` images."""
    if labels.dtype != torch.int64 or labels.dim() != 1:
        raise DataError(f"{where}: labels must be int64 of one axis, not {labels.dtype} {tuple(labels.shape)}")
    if len(labels) != count:
        raise DataError(f"{where}: {count} images but {len(labels)} labels; each image needs one")
    wrong = ((labels < 0) | (labels >= classes)).nonzero()
    if len(wrong):
        first = int(wrong[0])
        raise DataError(
            f"{where}: label {int(labels[first])} of image {first} is outside 0..{classes - 1}; "
            "the file is damaged or of another data set"
        )


def check_statistics(mean: Sequence[float], std: Sequence[float], *, channels: int, where: str) -> None:
    """Refuse a normalisation that does not fit the channels or would divide by nothing."""
    if len(mean) != channels or len(std) != channels:
        raise DataError(f"{where}: {channels} channels need {channels} means and stds, not {len(mean)} and {len(std)}")
    if not all(value > 0 for value in std):
        raise DataError(f"{where}: every std must be above 0, not {tuple(std)}")
