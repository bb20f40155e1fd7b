"""Tiny-ImageNet: 200 classes of ImageNet at 64×64, as published, in the unpacked ``tiny-imagenet-200``.

Training pictures lie in ``train/<class>/images``, those of the validation split, the test split here, all in
``val/images``; ``val/val_annotations.txt`` names their classes. The published test pictures have no labels.
"""

from pathlib import Path

import torch
from torch import Tensor

from equalbits.data.dataset import DataError
from equalbits.data.image_folder import class_folders, image_files, warn_skipped

NAME = "tinyimagenet"
_FOLDERS = ("tiny-imagenet-200", NAME, "")


def scan_tiny_imagenet(root: Path, split: str) -> tuple[tuple[str, ...], Tensor, tuple[str, ...]]:
    """Return file paths, labels and class names of a split; classes are the sorted names of the training folders."""
    home = next((root / name for name in _FOLDERS if (root / name / "train").is_dir()), None)
    if home is None:
        raise DataError(f"{root}: no {_FOLDERS[0]}/train in it; unpack Tiny-ImageNet there, or name another --data")
    classes = class_folders(home / "train")
    if split == "train":
        found = [(path, number) for number, name in enumerate(classes) for path in _pictures(home / "train" / name)]
    else:
        class_of = _annotations(home / "val" / "val_annotations.txt")
        numbers = {name: number for number, name in enumerate(classes)}
        found = []
        for path in _pictures(home / "val"):
            label = class_of.get(Path(path).name)
            if label not in numbers:
                problem = "no line on it" if label is None else f"its class {label!r} is not in {home / 'train'}"
                raise DataError(f"{path}: {problem} in val_annotations.txt; unpack the whole data set again")
            found.append((path, numbers[label]))
    return tuple(path for path, _ in found), torch.tensor([label for _, label in found]), classes


def _pictures(folder: Path) -> list[str]:
    """Return the pictures in the folder ``images`` of a folder, sorted."""
    inner = folder / "images"
    if not inner.is_dir():
        raise DataError(f"{inner}: there is no such folder; unpack the whole data set again")
    found, skipped = image_files(inner)
    if not found:
        raise DataError(f"{inner}: no images; unpack the whole data set again")
    if skipped:
        warn_skipped(inner, len(skipped), skipped[0])
    return found


def _annotations(path: Path) -> dict[str, str]:
    """Return the class of each validation picture; a line is its file, its class and a box, separated by tabs."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "it is not text"
        raise DataError(f"{path}: {reason}; unpack the whole data set again") from None
    fields = [line.split("\t") for line in lines if line.strip()]
    if short := next((number for number, each in enumerate(fields, start=1) if len(each) < 2), None):
        raise DataError(f"{path}: line {short} has no class; unpack the whole data set again")
    return {each[0]: each[1] for each in fields}
