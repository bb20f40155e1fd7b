"""Image folders: list the files of a tree with a folder per class; decode one file, or all of them."""

import logging
import os
import shlex
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from equalbits._text import escape_control_chars
from equalbits.data.dataset import DataError, Dataset, Decoding, FolderDataset
from equalbits.runtime import FORMATS, SUFFIXES, TooLargeError, check_pixels, scaled_square

HELD_OUT = {"imagenet": ("val", "test"), "imagefolder": ("test", "val")}
"""Folder names of the test split. ImageNet's own test images have no public labels, so there it is ``val``."""
#: Most bytes that the decoded images of one split may take.
MAX_BYTES = 2 << 30


def scan_tree(name: str, root: Path, split: str) -> tuple[tuple[str, ...], Tensor, tuple[str, ...]]:
    """Return file paths, labels and class names of ``root/train/<class>/*`` or of ``root/val`` or ``root/test``.

    Classes are numbered by the sorted names of the training folders, so that both splits agree on the numbers.
    """
    homes, names = (root / name, root), ("train",) if split == "train" else HELD_OUT[name]
    trained = next((home for home in homes if (home / "train").is_dir()), None)  # a test/ elsewhere is another's
    candidates = [home / option for home in ([trained] if trained else homes) for option in names]
    folder = next((option for option in candidates if option.is_dir()), None)
    if folder is None:
        raise DataError(_missing(trained or root, names))
    home = folder.parent
    classes = class_folders(home / "train" if (home / "train").is_dir() else folder)
    if len(classes) == 1:
        raise DataError(f"{folder}: only one class, {classes[0]!r}; make a folder for each class")
    unknown = sorted(set(class_folders(folder)) - set(classes))
    if unknown:
        raise DataError(f"{folder / unknown[0]}: no class of that name in {home / 'train'}; use the same folder names")
    paths: list[str] = []
    labels: list[int] = []
    skipped = [entry.path for entry in os.scandir(folder) if entry.is_file() and _is_image(entry)]
    for number, label in enumerate(classes):
        if not (folder / label).is_dir():
            continue  # a class may have no test images; it keeps its number
        found, others = image_files(folder / label)
        if not found:
            raise DataError(f"{folder / label}: no images ({' '.join(SUFFIXES)}); fill the folder or remove it")
        paths += found
        labels += [number] * len(found)
        skipped += others
    if skipped:
        warn_skipped(folder, len(skipped), skipped[0])
    return tuple(paths), torch.tensor(labels, dtype=torch.int64), classes


def _missing(home: Path, names: tuple[str, ...]) -> str:
    """Return the error text for a missing split."""
    where = f"no {'/ or '.join(names)}/ in it" if home.is_dir() else "there is no such folder"
    if home.name == "train" and home.is_dir():
        return f"{home}: {where}; name its parent folder (--data {shlex.quote(str(home.parent))})"
    trained = (home / "train").is_dir()
    instead = "hold training images back (data.hold_out=200)" if trained else "name another folder (--data)"
    return f"{home}: {where}; put the images there as {names[0]}/<class>/<image>.png (or .jpg, …), or {instead}"


def class_folders(folder: Path) -> tuple[str, ...]:
    """Return the class names of a folder, sorted; raise if there are none."""
    names = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != "."))
    if not names:
        raise DataError(f"{folder}: no class folders; put the images there as <class>/<image>.png (or .jpg, …)")
    return names


def image_files(folder: Path) -> tuple[list[str], list[str]]:
    """Return the images of a class, sorted, and all other entries."""
    with os.scandir(folder) as entries:  # up to a million names: strings, not Path objects
        seen = [(entry.path, _is_image(entry)) for entry in entries if entry.name[0] != "."]
    return sorted(path for path, image in seen if image), sorted(path for path, image in seen if not image)


def _is_image(entry: "os.DirEntry[str]") -> bool:
    """Return whether an entry is a file with the name of an image; a pipe would wait for a writer."""
    try:
        return entry.name.lower().endswith(SUFFIXES) and entry.name[0] != "." and entry.is_file()
    except OSError:  # a link that leads to itself
        return False


@cache  # a sweep reads the same folder for each of its runs
def warn_skipped(folder: Path, count: int, first: str) -> None:
    """Log a warning once: there may be images among the skipped files."""
    what, first = "file or folder is" if count == 1 else "files or folders are", escape_control_chars(first)
    logging.getLogger("equalbits").warning(
        "%s: %d %s skipped, such as %s: images end in %s, directly in the folder of their class",
        folder, count, what, first, " ".join(SUFFIXES),
    )  # fmt: skip


def decode_image(path: str, decoding: Decoding) -> Tensor:
    """Decode the image file ``path`` to uint8 (3, resize, resize)."""
    from PIL import Image  # heavy, and only image folders need it

    try:
        with Image.open(path, formats=FORMATS) as image:
            check_pixels(image, decoding.max_pixels)
            pixels = scaled_square(image, decoding.resize, fit=decoding.fit)
    except TooLargeError as error:
        raise DataError(f"{path}: {error}, raise data.max_pixels, or remove it") from None
    except Image.DecompressionBombError:
        raise DataError(f"{path}: more pixels than Pillow reads, or damaged; make it smaller, or remove it") from None
    except Exception as error:  # decoders raise exceptions of many types
        words = (isinstance(error, OSError) and error.strerror) or str(error)  # strerror does not repeat the path
        reason = " ".join(words.split()) or type(error).__name__
        raise DataError(f"{path}: not a readable image ({reason}); replace or remove the file") from None
    return torch.from_numpy(pixels).permute(2, 0, 1)


def decode_whole(files: FolderDataset) -> Dataset:
    """Decode all files, on all cores, into one tensor on their device; raise if it would be too large."""
    side = files.decoding.resize
    needed = len(files) * 3 * side * side
    if needed > MAX_BYTES:
        raise DataError(
            f"{files.name}: {len(files):,} images of {side}×{side} take {needed / 2**30:.1f} GiB in memory, more than "
            f"{MAX_BYTES >> 30} GiB: lower data.resize or data.limit, or train one by one from the files, as "
            "equalbits sweep --vary model.weight_quantizer=sign,bihalf does"
        )
    images = torch.empty(len(files), 3, side, side, dtype=torch.uint8)
    # Pillow decodes and scales without the GIL, and warns of odd tags and of large images.
    with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(cores()) as pool:
        for place, picture in enumerate(pool.map(partial(decode_image, decoding=files.decoding), files.paths)):
            images[place] = picture
    whole = Dataset(files.name, images, files.labels, files.classes, files.mean, files.std, crop=files.decoding.crop)
    return whole.to(files.device)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
