"""Load a data set by name."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, overload

import torch

from equalbits._extras import install_hint
from equalbits._text import nearest_name
from equalbits.data import embedded
from equalbits.data.cifar import EDITIONS, read_cifar
from equalbits.data.dataset import DataError, Dataset, Decoding, FolderDataset
from equalbits.data.image_folder import HELD_OUT, scan_tree
from equalbits.data.normalization import STATISTICS, Statistics
from equalbits.data.synthetic import make_synthetic
from equalbits.data.tiny_imagenet import NAME as TINY_IMAGENET
from equalbits.data.tiny_imagenet import scan_tiny_imagenet

NAMES = ("fashion", *EDITIONS, *HELD_OUT, TINY_IMAGENET, "synthetic")
#: Data sets that are part of the package, or drawn: they read no directory.
WITHOUT_FILES = ("fashion", "synthetic")


def data_root(root: str | Path | None = None) -> Path:
    """Return the directory of data sets: the argument, else $EQUALBITS_DATA, else ~/.cache/equalbits."""
    return Path(root or os.environ.get("EQUALBITS_DATA") or "~/.cache/equalbits").expanduser()


def check_root_is_read(name: str, root: str | Path | None) -> None:
    """Raise if a directory is given for a data set that reads none.

    >>> check_root_is_read("fashion", "pets")
    Traceback (most recent call last):
    equalbits.data.dataset.DataError: fashion is not read from files, so not from pets: omit --data, or name other data
    """
    if root and name.partition(":")[0] in WITHOUT_FILES:
        raise DataError(f"{name} is not read from files, so not from {root}: omit --data, or name other data")


@overload
def load_dataset(
    name: Literal["fashion", "cifar10", "cifar100", "synthetic"],
    root: str | Path | None = None,
    *,
    split: str,
    device: torch.device | str = "cpu",
    statistics: str | None = None,
) -> Dataset: ...
@overload
def load_dataset(
    name: str,
    root: str | Path | None = None,
    *,
    split: str,
    device: torch.device | str = "cpu",
    statistics: str | None = None,
    decoding: Decoding | None = None,
) -> Dataset | FolderDataset: ...
def load_dataset(
    name: str,
    root: str | Path | None = None,
    *,
    split: str,
    device: torch.device | str = "cpu",
    statistics: str | None = None,
    decoding: Decoding | None = None,
) -> Dataset | FolderDataset:
    """Load the ``train`` or ``test`` split of a data set to the device.

    ============================  =======================================================================
    ``fashion``                   10,000 + 2,000 images of Fashion-MNIST, part of the package
    ``cifar10``, ``cifar100``     the binary edition, or numpy files, in ``root`` or ``root/<name>``
    ``imagenet``, ``imagefolder``  ``root/train/<class>/*.png``, jpg, …, and ``root/val/...`` or ``root/test``;
                                  returns a :class:`FolderDataset`, which holds paths only
    ``tinyimagenet``              ``root/tiny-imagenet-200`` as published; a :class:`FolderDataset` too
    ``synthetic:CxHxW:classes``   random images, see :func:`~equalbits.data.synthetic.make_synthetic`
    ============================  =======================================================================

    ``root`` is the directory of the files: by default ``$EQUALBITS_DATA``, else ``~/.cache/equalbits``.
    ``statistics`` is the name in ``STATISTICS`` of the mean and std to use instead of the data set's own.
    ``decoding`` is the size of image files, as in ``Decoding(resize=36, crop=32)``.

    >>> load_dataset("fashion", split="test")
    Dataset('fashion', 2000 images 1×28×28, 10 classes, on cpu)
    """
    if split not in ("train", "test"):
        raise DataError(f"split={split!r} must be 'train' or 'test' (the held-out images)")
    name = os.fspath(name)
    kind = name.partition(":")[0]
    if kind not in NAMES or (kind != name and kind != "synthetic"):
        nearest = nearest_name(kind, NAMES)
        hint = f"did you mean {nearest!r}? There are" if nearest else "there are"
        folder = f"; give a folder as load_dataset('imagefolder', {name!r}, …)" if Path(name).is_dir() else ""
        raise DataError(f"no data set {name!r}; {hint} {', '.join(NAMES)}{folder}")
    if statistics and statistics not in STATISTICS:
        raise DataError(f"no statistics {statistics!r}; there are {', '.join(STATISTICS)}")
    if kind in HELD_OUT or kind == TINY_IMAGENET:
        if find_spec("PIL") is None:
            raise DataError(f"image folders need Pillow: {install_hint('images')}")
        mean, std = STATISTICS[statistics or "imagenet"]
        where = data_root(root)
        paths, numbers, classes = (
            scan_tree(kind, where, split) if kind in HELD_OUT else scan_tiny_imagenet(where, split)
        )
        return FolderDataset(name, paths, numbers, classes, mean, std, torch.device(device), decoding or Decoding())
    if decoding is not None:
        raise DataError(f"decoding={decoding!r} is for image files: {name} has images of one size; omit it")
    if kind == "fashion":
        pixels, digits = embedded.read(split)
        images, labels = torch.from_numpy(pixels)[:, None], torch.from_numpy(digits).long()
        classes = embedded.CLASSES
    elif kind == "synthetic":
        images, labels, classes = make_synthetic(name, split)
    else:
        images, labels, classes = read_cifar(kind, data_root(root), split)
    own = STATISTICS.get(kind) or Statistics((0.5,) * images.shape[1], (0.25,) * images.shape[1])
    mean, std = STATISTICS[statistics] if statistics else own
    return Dataset(name, images, labels, classes, mean, std).to(device)
