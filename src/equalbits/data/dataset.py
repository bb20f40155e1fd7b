"""Data sets as frozen records, validated at construction.

A :class:`Dataset` holds all images as one uint8 tensor, so that batches can be made on the device. A
:class:`FolderDataset` holds the paths of image files, for sets that do not fit into memory.
"""

import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from equalbits.runtime import FITS, MAX_PIXELS


class DataError(ValueError):
    """A missing, damaged or wrongly requested data set: one line with the path, the cause and the way out."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels of one split, on one device.

    ``images`` is uint8 (image, channel, row, column); ``labels`` is int64; ``mean`` and ``std`` normalise pixels
    scaled to [0, 1], one number per channel. Batches hold crops of ``crop`` pixels a side (0: whole images): from the
    center, or at random with augmentation.
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
        """Device of the images."""
        return self.images.device

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images."""
        return self.images.shape[2], self.images.shape[3]

    @property
    def crop_size(self) -> tuple[int, int]:
        """Height and width of the images in a batch."""
        return (self.crop, self.crop) if self.crop else self.image_size

    def to(self, device: torch.device | str) -> Self:
        """Return the same data on another device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def fingerprint(self) -> dict[str, str]:
        """Return digests of the labels and of up to 256 images, spread evenly, by which other data are noticed."""
        images = self.images[spread(256, len(self)).to(self.device)].cpu()
        text = f"{tuple(self.images.shape)} {self.mean} {self.std} {self.classes}".encode()
        return {"labels": _digest(self.labels.cpu().numpy().tobytes()), "images": _digest(text, images.numpy().data)}

    def take(self, count: int) -> Self:
        """Return the first ``count`` images, for a quick run."""
        if not 1 <= count <= len(self):
            raise DataError(f"{self.name}: cannot take {count} images; choose 1 to {len(self)} (data.limit)")
        return replace(self, images=self.images[:count], labels=self.labels[:count])

    def select(self, places: Tensor) -> Self:
        """Return the images at these indices."""
        places = places.to(self.device)
        return replace(self, images=self.images[places], labels=self.labels[places])


@dataclass(frozen=True)
class Decoding:
    """Decoding of image files to square uint8 images, and the crop of them that a batch holds.

    A file is scaled to ``resize``×``resize``: by ``fit`` without keeping its aspect ratio ("stretch"), keeping it and
    cutting the longer side ("crop"), or adding black ("pad"). A batch holds ``crop``×``crop`` of it:
    the center, or with augmentation a random window. ``workers`` processes decode in advance, at most one per core (0:
    this process decodes). A file of more than ``max_pixels`` is refused before it is decoded.
    """

    resize: int = 256
    crop: int = 224
    workers: int = 4
    max_pixels: int = MAX_PIXELS
    fit: str = "stretch"

    def __post_init__(self) -> None:
        if self.fit not in FITS:
            raise DataError(f"fit={self.fit!r} must be one of {', '.join(FITS)}")
        if not 1 <= self.crop <= self.resize:
            raise DataError(f"crop={self.crop} must be 1 to resize={self.resize}")
        if self.workers < 0:
            raise DataError(f"workers={self.workers} must be 0 or more")


@dataclass(frozen=True, eq=False)
class FolderDataset:
    """Image files of one split and their labels; files are decoded, as ``decoding`` says, when a batch needs them.

    ``device`` is the device of the batches. ``labels`` stay on the CPU.
    """

    name: str
    paths: tuple[str, ...]
    labels: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    device: torch.device
    decoding: Decoding = Decoding()

    def __post_init__(self) -> None:
        if not self.paths:
            raise DataError(f"{self.name}: no image files; give a tree root/train/<class>/<image>")
        check_labels(self.labels, count=len(self.paths), classes=len(self.classes), where=self.name)
        check_statistics(self.mean, self.std, channels=3, where=self.name)

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"FolderDataset({self.name!r}, {len(self)} files, {len(self.classes)} classes, for {self.device})"

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the decoded images."""
        return self.decoding.resize, self.decoding.resize

    @property
    def crop_size(self) -> tuple[int, int]:
        """Height and width of the images in a batch."""
        return self.decoding.crop, self.decoding.crop

    def to(self, device: torch.device | str) -> Self:
        """Return the same files, with batches on another device."""
        return replace(self, device=torch.device(device))

    def fingerprint(self) -> dict[str, str]:
        """Return digests of labels, names and sizes, of the bytes of some files, and of the times of their changes.

        Names include the folder of the class, but not those above it: the tree may be moved. Of large sets, sizes and
        times are those of 10,000 files, spread evenly.
        """
        names = "\n".join("/".join(Path(path).parts[-2:]) for path in self.paths).encode(errors="surrogateescape")
        found = [_stat(self.paths[place]) for place in spread(10_000, len(self)).tolist()]
        fit = "" if self.decoding.fit == "stretch" else f" {self.decoding.fit}"
        some = (self.paths[place] for place in spread(32, len(self)).tolist())
        return {
            "labels": _digest(self.labels.numpy().tobytes()),
            "names": _digest(f"{self.decoding.resize}{fit} {self.mean} {self.std} {self.classes}".encode(), names),
            "sizes": _digest(repr([size for size, _ in found]).encode()),
            "images": _digest(*map(_first_bytes, some)),
            "times": _digest(repr([changed for _, changed in found]).encode()),
        }

    def select(self, places: Tensor) -> Self:
        """Return the files at these indices."""
        return replace(self, paths=tuple(self.paths[i] for i in places.tolist()), labels=self.labels[places])


def spread(count: int, total: int) -> Tensor:
    """Return up to ``count`` indices spread evenly below ``total``: of files sorted by class, images of every class."""
    count = min(count, total)
    return torch.arange(count) * total // count


def _digest(*parts: bytes | memoryview) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:16]


def _stat(path: str) -> tuple[int, int]:
    """Return size and time of change of a file; -1 where it cannot be read, which the loader reports."""
    try:
        found = Path(path).stat()
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns


def _first_bytes(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(1 << 16) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except OSError:
        return b""


def check_labels(labels: Tensor, *, count: int, classes: int, where: str) -> None:
    """Raise unless there is one int64 label in [0, classes) for each of ``count`` images."""
    if labels.dtype != torch.int64 or labels.dim() != 1:
        raise DataError(f"{where}: labels must be int64 of one axis, not {labels.dtype} {tuple(labels.shape)}")
    if len(labels) != count:
        raise DataError(f"{where}: {count} images but {len(labels)} labels; each image needs one")
    wrong = ((labels < 0) | (labels >= classes)).nonzero().flatten().tolist()
    if wrong:
        raise DataError(
            f"{where}: label {int(labels[wrong[0]])} of image {wrong[0]} is outside 0..{classes - 1}; "
            "the file is damaged or of another data set"
        )


def check_statistics(mean: Sequence[float], std: Sequence[float], *, channels: int, where: str) -> None:
    """Raise unless there is a mean and a positive std per channel."""
    if len(mean) != channels or len(std) != channels:
        raise DataError(f"{where}: {channels} channels need {channels} means and stds, not {len(mean)} and {len(std)}")
    if not all(value > 0 for value in std):
        raise DataError(f"{where}: every std must be above 0, not {tuple(std)}")
