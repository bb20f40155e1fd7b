"""``equalbits run``: classify images with a packed file, without torch, or with the model of a run."""

import argparse
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equalbits as eb
from equalbits._text import escape_control_chars
from equalbits.cli.arguments import add_json
from equalbits.cli.terminal import say

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE|DIR",
        help="a packed file, zoo:NAME, or the output directory of a run, which is packed first",
    )
    parser.add_argument(
        "images", metavar="IMAGE", nargs="+",
        help="an image file, preprocessed as in training (resized and center-cropped), or a .npy file with one image "
        "or a batch: uint8 is normalized by the packed mean and std, float is taken as already normalized; or a "
        "directory, whose images are all taken",
    )  # fmt: skip
    parser.add_argument("--top", type=int, default=5, metavar="N", help="number of classes to print (default: 5)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of the native engine (default: 1)")
    parser.add_argument(
        "--max-pixels", type=int, metavar="N", help="most pixels of an image file (default: 67108864, 8192×8192)"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Print the most likely classes of each image."""
    if options.top < 1:
        raise ValueError(f"--top {options.top} must be at least 1")
    model = load_model(eb.runtime.find_packed(options.file), threads=options.threads)
    if eb.runtime.native.BUILT is None:
        say(eb.runtime.native.REASON, error=True)
    results: dict[str, list[dict[str, Any]]] = {}
    for path in (image for given in options.images for image in _images_in(Path(given))):
        logits = _predict(model, path, options.file, options.max_pixels)
        for index, row in enumerate(logits):
            name = str(path) if len(logits) == 1 else f"{path}[{index}]"
            top = eb.runtime.top_classes(row, model.classes, options.top)
            if options.json:
                results[name] = [{"class": each.label, "share": each.probability, "logit": each.logit} for each in top]
                continue
            print(escape_control_chars(name))  # at once: there may be thousands
            for each in top:
                print(f"  {each.probability:7.2%}  {escape_control_chars(each.label)}")
    if options.json:
        print(json.dumps(results))


def load_model(path: Path, *, threads: int) -> "eb.runtime.PackedModel":
    """Load a packed file, or pack the model of a run in memory, which needs torch."""
    if not (path / "recipe.toml").is_file():
        return eb.runtime.load_packed(path, threads=threads)
    return eb.runtime.PackedModel(eb.recipes.pack_run(path)[0].network, threads=threads)


def _images_in(path: Path) -> Iterator[Path]:
    """Yield the path of an image, or all images in a directory and its subdirectories, sorted."""
    if not path.is_dir():
        yield path
        return
    found = sorted(
        each for each in path.rglob("*") if each.suffix.lower() in (*eb.runtime.SUFFIXES, ".npy") and each.is_file()
    )
    if not found:
        raise ValueError(f"{path} holds no image: give images that end in {' '.join(eb.runtime.SUFFIXES)} or .npy")
    yield from found


def _predict(model: "eb.runtime.PackedModel", path: Path, file: str, most: int | None) -> "NDArray[np.float32]":
    """Return the logits of the images in one file, shape (image, class)."""
    images = model.prepare(path, max_pixels=most)
    images = images[None] if images.ndim == 3 else images
    if images.dtype.kind == "u" and model.network.mean is None:
        raise ValueError(
            f"{path} holds uint8 pixels, but {file} has no mean and std to normalize them: "
            "pack again with preprocessing=, or give a .npy file of floats"
        )
    try:
        with warnings.catch_warnings(record=True, action="always") as caught:
            logits: NDArray[np.float32] = model(images).reshape(len(images), -1)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    except MemoryError:
        hint = "give fewer images at a time, or lower --threads"
        raise ValueError(f"{path}: not enough memory for a batch of {len(images)}: {hint}") from None
    for warning in caught:
        say(f"{path}: {warning.message}", error=True)
    return logits
