"""CIFAR-10 and CIFAR-100: the publisher's binary edition, or numpy files. Never a pickle.

The binary edition (https://www.cs.toronto.edu/~kriz/cifar.html) is records of one label byte (CIFAR-100: the coarse
and the fine label) and 3072 pixel bytes: red, green and blue planes of 32×32, row by row.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equalbits.data.dataset import DataError, check_labels

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Edition:
    """A data set's binary edition: address and checksum of its archive, file names and record layout."""

    archive: str
    checksum: str
    folder: str
    pickled: str
    """Folder of the pickled edition, which is never read."""
    train: tuple[str, ...]
    test: tuple[str, ...]
    class_names: str
    label_classes: tuple[int, ...]
    """Number of classes of each label byte of a record; the last byte is the label."""
    site: str = "https://www.cs.toronto.edu/~kriz/"

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.label_classes[-1]

    @property
    def files(self) -> tuple[str, ...]:
        """Every file of the edition."""
        return (*self.train, *self.test, self.class_names)

    def of(self, split: str) -> tuple[str, ...]:
        """Return the files of one split."""
        return self.train if split == "train" else self.test

    def folders(self, name: str, root: Path) -> list[Path]:
        """Return the folders that may hold the files: as the archive has them or not, in ``root/<name>`` or not."""
        return [folder for home in (root / name, root) for folder in (home / self.folder, home)]


EDITIONS = {
    "cifar10": Edition(
        archive="cifar-10-binary.tar.gz",
        checksum="md5:c32a1d4ab5d03f1284b67883e8d87530",
        folder="cifar-10-batches-bin",
        pickled="cifar-10-batches-py",
        train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        test=("test_batch.bin",),
        class_names="batches.meta.txt",
        label_classes=(10,),
    ),
    "cifar100": Edition(
        archive="cifar-100-binary.tar.gz",
        checksum="md5:03b5dce01913d631647c71ecec9e9cb8",
        folder="cifar-100-binary",
        pickled="cifar-100-python",
        train=("train.bin",),
        test=("test.bin",),
        class_names="fine_label_names.txt",
        label_classes=(20, 100),
    ),
}


def read_cifar(name: str, root: Path, split: str) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Return images (image, 3, 32, 32), labels and class names of one split of ``cifar10`` or ``cifar100``.

    Looks in ``root`` and in ``root/<name>``, for the binary edition (in its own folder or not) and for numpy files.
    """
    edition = EDITIONS[name]
    for folder in edition.folders(name, root):
        if any((folder / file).is_file() for file in edition.of(split)):
            return _read_binary(edition, folder, split)
    for home in (root / name, root):
        if (home / f"{split}_images.npy").is_file():
            return _read_numpy(edition, home, split)
    pickles = any((home / edition.pickled).is_dir() for home in (root / name, root))
    note = f" except as pickles ({edition.pickled}), which may run code and are never read" if pickles else ""
    raise DataError(
        f"{name} is not in {root}{note}: download it with `equalbits download {name} --data {shlex.quote(str(root))}`, "
        f"or put {Path(edition.folder) / edition.of(split)[0]} of {edition.archive} or {split}_images.npy there"
    )


def _read_binary(edition: Edition, folder: Path, split: str) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    classes = _read_class_names(folder / edition.class_names, edition)
    records = np.concatenate([_read_records(folder / file, edition) for file in edition.of(split)])
    images = np.ascontiguousarray(records[:, -PIXELS:]).reshape(-1, 3, 32, 32)
    return torch.from_numpy(images), torch.from_numpy(records[:, -PIXELS - 1].astype(np.int64)), classes


def _read_records(path: Path, edition: Edition) -> NDArray[np.uint8]:
    """Read one file of records (record, byte); raise if its size or labels are invalid."""
    width = len(edition.label_classes) + PIXELS
    _check_regular(path)
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}; unpack or download {edition.archive} again") from None
    if content.size == 0 or content.size % width:
        raise DataError(
            f"{path}: {content.size} bytes is not a whole number of {width}-byte records; "
            f"it is truncated or of another data set: delete it and unpack or download {edition.archive} again"
        )
    records = content.reshape(-1, width)
    for column, classes in enumerate(edition.label_classes):
        labels = torch.from_numpy(records[:, column].astype(np.int64))
        check_labels(labels, count=len(records), classes=classes, where=str(path))
    return records


def _read_numpy(edition: Edition, folder: Path, split: str) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    classes = _read_class_names(folder / "classes.txt", edition)
    paths = [folder / f"{split}_{what}.npy" for what in ("images", "labels")]
    images, labels = map(_read_array, paths)
    if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3) or len(images) == 0:
        raise DataError(f"{paths[0]}: holds {images.dtype} {images.shape}, but must be uint8 (images, 32, 32, 3)")
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(f"{paths[1]}: holds {labels.dtype} {labels.shape}, but must be integers of one axis")
    found = torch.from_numpy(labels.astype(np.int64))
    check_labels(found, count=len(images), classes=edition.classes, where=str(paths[1]))
    planes = np.ascontiguousarray(images.transpose(0, 3, 1, 2))  # (image, channel, row, column)
    return torch.from_numpy(planes), found, classes


def _check_regular(path: Path) -> None:
    """Raise for a pipe or another thing that is no file: opening a pipe waits for a writer."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: not a file; delete it, and put the file there again")


def _read_array(path: Path) -> NDArray[np.generic]:
    _check_regular(path)
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(array, np.ndarray):
            return array
        reason = "holds several arrays"
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or 'cannot be read'}; put the file there again") from None
    except Exception:  # a damaged header raises exceptions of many types
        reason = "not a complete numpy file without pickles"
    raise DataError(f"{path}: {reason}; save one array there with np.save")


def _read_class_names(path: Path, edition: Edition) -> tuple[str, ...]:
    _check_regular(path)
    try:
        names = tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise DataError(f"{path}: {reason}; it must hold {edition.classes} class names, one a line") from None
    if len(names) != edition.classes:
        raise DataError(f"{path}: {len(names)} class names, but {edition.classes} are needed, one a line")
    return names
