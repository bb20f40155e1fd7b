"""Load a data set by name."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, overload

import torch

from equalbits._extras import install_hint
from equalbits._text import nearest_name
from equalbits.data import embedded
from equalbits.data.cifar import EDITIONS, read_cifar
from equalbits.data.folder import HELD_OUT, scan_tree
from equalbits.data.records import STATISTICS, DataError, Dataset, FolderDataset, Statistics
from equalbits.data.synthetic import make_synthetic

NAMES = ("fashion", *EDITIONS, *HELD_OUT, "synthetic")

StatisticsLike = str | tuple[Sequence[float], Sequence[float]] | None


def data_root(root: str | Path | None = None) -> Path:
    """Return the directory of data sets: the argument, else $EQUALBITS_DATA, else ~/.cache/equalbits."""
    return Path(root or os.environ.get("EQUALBITS_DATA") or "~/.cache/equalbits").expanduser()


@overload
def load_dataset(
    name: Literal["fashion", "cifar10", "cifar100", "synthetic"],
    root: str | Path | None = None,
    *,
    split: str,
    device: torch.device | str = "cpu",
    statistics: StatisticsLike = None,
) -> Dataset: ...
@overload
def load_dataset(
    name: str,
    root: str | Path | None = None,
    *,
    split: str,
    device: torch.device | str = "cpu",
    statistics: StatisticsLike = None,
) -> Dataset | FolderDataset: ...
def load_dataset(
    name: str,
    root: str | Path | None = None,
    *,
    split: str,
    device: torch.device | str = "cpu",
    statistics: StatisticsLike = None,
) -> Dataset | FolderDataset:
    """Load the ``train`` or ``test`` split of a data set to the device.

    ============================  =======================================================================
    ``fashion``                   10,000 + 2,000 images of Fashion-MNIST, part of the package
    ``cifar10``, ``cifar100``     the binary edition, or numpy files, in ``root`` or ``root/<name>``
    ``imagenet``, ``imagefolder``  ``root/train/<class>/*.png``, jpg, …, and ``root/val/...`` or ``root/test``;
                                  returns a :class:`FolderDataset`, which holds paths only
    ``synthetic:CxHxW:classes``   random images, see :func:`~equalbits.data.synthetic.make_synthetic`
    ============================  =======================================================================

    ``root`` is the directory of the files: by default ``$EQUALBITS_DATA``, else ``~/.cache/equalbits``.
    ``statistics`` replaces the data set's own mean and std: a name in ``STATISTICS``, or a pair of sequences.

    >>> load_dataset("fashion", split="test")
    Dataset('fashion', 2000 images 1×28×28, 10 classes, on cpu)
    """
    if split not in ("train", "test"):
        raise DataError(f"split={split!r} must be 'train' or 'test' (the held-out images)")
    kind = name.partition(":")[0]
    if kind not in NAMES or (kind != name and kind != "synthetic"):
        nearest = nearest_name(kind, NAMES)
        hint = f"did you mean {nearest!r}? There are" if nearest else "there are"
        raise DataError(f"no data set {name!r}; {hint} {', '.join(NAMES)}")
    if kind in HELD_OUT:
        if find_spec("PIL") is None:
            raise DataError(f"image folders need Pillow: {install_hint('images')}")
        mean, std = _statistics(statistics or "imagenet")
        paths, numbers, classes = scan_tree(kind, data_root(root), split)
        return FolderDataset(name, paths, numbers, classes, mean, std, torch.device(device))
    if kind == "fashion":
        pixels, digits = embedded.read(split)
        images, labels = torch.from_numpy(pixels)[:, None], torch.from_numpy(digits).long()
        classes = embedded.CLASSES
    elif kind == "synthetic":
        images, labels, classes = make_synthetic(name, split)
        statistics = statistics or ((0.5,) * images.shape[1], (0.25,) * images.shape[1])
    else:
        images, labels, classes = read_cifar(kind, data_root(root), split)
    mean, std = _statistics(statistics or kind)
    return Dataset(name, images, labels, classes, mean, std).to(device)


def _statistics(wanted: str | tuple[Sequence[float], Sequence[float]]) -> Statistics:
    if not isinstance(wanted, str):
        mean, std = wanted
        return Statistics(tuple(map(float, mean)), tuple(map(float, std)))
    if wanted not in STATISTICS:
        raise DataError(f"no statistics {wanted!r}; there are {', '.join(STATISTICS)}, or give (mean, std)")
    return STATISTICS[wanted]
