"""Image folders: list the files of a tree with a folder per class, and decode one."""

import logging
import os
import shlex
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from equalbits.data.records import DataError, Decoding
from equalbits.runtime import FORMATS, scaled_square

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
HELD_OUT = {"imagenet": ("val", "test"), "imagefolder": ("test", "val")}
"""Folder names of the test split. ImageNet's own test images have no public labels, so there it is ``val``."""


def scan_tree(name: str, root: Path, split: str) -> tuple[tuple[str, ...], Tensor, tuple[str, ...]]:
    """Return file paths, labels and class names of ``root/train/<class>/*`` or of ``root/val`` or ``root/test``.

    Classes are numbered by the sorted names of the training folders, so that both splits agree on the numbers.
    """
    homes = (root / name, root)
    trained = next((home for home in homes if (home / "train").is_dir()), None)  # a test/ elsewhere is another's
    home = next((home for home in ([trained] if trained else homes) if _split_folder(name, home, split)), None)
    folder = _split_folder(name, home, split) if home else None
    if home is None or folder is None:
        raise DataError(_missing(name, trained or root, split))
    classes = _class_folders(home / "train" if (home / "train").is_dir() else folder)
    if len(classes) == 1:
        raise DataError(f"{folder}: only one class, {classes[0]!r}; make a folder for each class")
    unknown = sorted(set(_class_folders(folder)) - set(classes))
    if unknown:
        raise DataError(f"{folder / unknown[0]}: no class of that name in {home / 'train'}; use the same folder names")
    paths: list[str] = []
    labels: list[int] = []
    skipped = [entry.path for entry in os.scandir(folder) if entry.is_file() and _is_image(entry)]
    for number, label in enumerate(classes):
        if not (folder / label).is_dir():
            continue  # a class may have no test images; it keeps its number
        found, others = _image_files(folder / label)
        if not found:
            raise DataError(f"{folder / label}: no images ({' '.join(SUFFIXES)}); fill the folder or remove it")
        paths += found
        labels += [number] * len(found)
        skipped += others
    if skipped:
        _warn_skipped(folder, len(skipped), skipped[0])
    return tuple(paths), torch.tensor(labels, dtype=torch.int64), classes


def _missing(name: str, home: Path, split: str) -> str:
    """Return the error text for a missing split."""
    wanted = [f"{option}/" for option in _split_names(name, split)]
    where = f"no {' or '.join(wanted)} in it" if home.is_dir() else "there is no such folder"
    trained = (home / "train").is_dir()
    if home.name == "train" and home.is_dir():
        return f"{home}: {where}; name its parent folder (--data {shlex.quote(str(home.parent))})"
    instead = "hold training images back (data.hold_out=200)" if trained else "name another folder (--data)"
    return f"{home}: {where}; put the images there as {wanted[0]}<class>/<image>.png (or .jpg, …), or {instead}"


def _split_names(name: str, split: str) -> tuple[str, ...]:
    return ("train",) if split == "train" else HELD_OUT[name]


def _split_folder(name: str, home: Path, split: str) -> Path | None:
    return next((home / option for option in _split_names(name, split) if (home / option).is_dir()), None)


def _class_folders(folder: Path) -> tuple[str, ...]:
    names = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != "."))
    if not names:
        raise DataError(f"{folder}: no class folders; put the images there as <class>/<image>.png (or .jpg, …)")
    return names


def _image_files(folder: Path) -> tuple[list[str], list[str]]:
    """Return the images of a class, sorted, and all other entries."""
    with os.scandir(folder) as entries:  # up to a million names: strings, not Path objects
        seen = [(entry.path, _is_image(entry)) for entry in entries if entry.name[0] != "."]
    return sorted(path for path, image in seen if image), sorted(path for path, image in seen if not image)


def _is_image(entry: "os.DirEntry[str]") -> bool:
    return entry.name.lower().endswith(SUFFIXES) and entry.name[0] != "."


@cache  # a sweep reads the same folder for each of its runs
def _warn_skipped(folder: Path, count: int, first: str) -> None:
    """Log a warning once: there may be images among the skipped files."""
    logging.getLogger("equalbits").warning(
        "%s: %d %s skipped, such as %s: images end in %s, directly in the folder of their class",
        folder, count, "file or folder is" if count == 1 else "files or folders are", first, " ".join(SUFFIXES),
    )  # fmt: skip


def decode_image(path: str, decoding: Decoding) -> Tensor:
    """Decode the image file ``path`` to uint8 (3, resize, resize)."""
    from PIL import Image  # heavy, and only image folders need it

    try:
        with Image.open(path, formats=FORMATS) as image:
            pixels = scaled_square(image, decoding.resize, draft=decoding.draft, middle=decoding.fit == "shorter")
    except Image.DecompressionBombError:
        raise DataError(f"{path}: more pixels than Pillow reads, or damaged; make it smaller, or remove it") from None
    except Exception as error:  # decoders raise exceptions of many types
        raise DataError(f"{path}: not a readable image ({_one_line(error)}); replace or remove the file") from None
    return torch.from_numpy(pixels).permute(2, 0, 1)


def _one_line(error: Exception) -> str:
    words = (isinstance(error, OSError) and error.strerror) or str(error)  # without the path, which the error names
    return " ".join(words.split()) or type(error).__name__
