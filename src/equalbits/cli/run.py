"""``equalbits run``: classify images with a packed file. Needs numpy, and Pillow for image files; never torch."""

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equalbits._text import escape_control_chars
from equalbits.cli.arguments import add_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from equalbits.runtime import PackedModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``run``."""
    parser.add_argument("file", metavar="FILE", help="a packed file, written by equalbits pack")
    parser.add_argument(
        "images", metavar="IMAGE", nargs="+",
        help="an image file, preprocessed as in training (resized and center-cropped), or a .npy file with one image "
        "or a batch: uint8 is normalized by the packed mean and std, float is taken as already normalized",
    )  # fmt: skip
    parser.add_argument("--top", type=int, default=5, metavar="N", help="number of classes to print (default: 5)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of the native engine (default: 1)")
    parser.add_argument(
        "--max-pixels", type=int, metavar="N", help="most pixels of an image file (default: 67108864, 8192×8192)"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Print the most likely classes of each image."""
    from equalbits.runtime import load_packed, native

    if options.top < 1:
        raise ValueError(f"--top {options.top} must be at least 1")
    model = load_packed(options.file, threads=options.threads)
    if native.BUILT is None:
        print(native.REASON, file=sys.stderr)
    results: dict[str, list[dict[str, Any]]] = {}
    for path in map(Path, options.images):
        logits = _predict(model, path, options.file, options.max_pixels)
        for index, row in enumerate(logits):
            name = str(path) if len(logits) == 1 else f"{path}[{index}]"
            top = _top_classes(row, model.network.classes, options.top)
            if options.json:
                results[name] = top
                continue
            print(escape_control_chars(name))  # at once: there may be thousands
            for entry in top:
                print(f"  {entry['share']:7.2%}  {escape_control_chars(entry['class'])}")
    if options.json:
        print(json.dumps(results))


def _predict(model: "PackedModel", path: Path, file: str, most: int | None) -> "NDArray[np.float32]":
    """Return the logits of the images in one file, shape (image, class)."""
    if not path.is_file():  # opening a pipe would wait for a writer
        problem = "is not a file" if path.exists() else "does not exist"
        raise ValueError(f"{path} {problem}: give an image file or a .npy file")
    images = read_images(path, model.network.input_shape, resize=model.network.resize, max_pixels=most)
    if images.dtype.kind == "u" and model.network.mean is None:
        raise ValueError(
            f"{path} holds uint8 pixels, but {file} has no mean and std to normalize them: "
            "pack again with preprocessing=, or give a .npy file of floats"
        )
    try:
        return model(images).reshape(len(images), -1)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    except MemoryError:
        hint = "give fewer images at a time, or lower --threads"
        raise ValueError(f"{path}: not enough memory for a batch of {len(images)}: {hint}") from None


def read_images(
    path: Path, shape: tuple[int, ...], *, resize: int | None = None, max_pixels: int | None = None
) -> "NDArray[Any]":
    """Return a batch of images: arrays unchanged, image files as uint8 with the channels and size of ``shape``.

    With ``resize`` an image file is resized and cropped as in training, where EXIF orientation is ignored. Image files
    of more than ``max_pixels`` are refused before they are decoded.
    """
    if path.suffix == ".npy":
        images = _read_array(path)
        return images[None] if images.ndim == len(shape) else images
    channels, height, width = shape
    if channels not in (1, 3):
        raise ValueError(f"{path}: an image file has 1 or 3 channels, but the model takes {channels}; give a .npy file")
    return _read_image(path, shape, resize, max_pixels).reshape(height, width, channels).transpose(2, 0, 1)[None]


def _read_image(path: Path, shape: tuple[int, ...], resize: int | None, most: int | None) -> "NDArray[Any]":
    """Decode an image file in the model's size. Pillow may raise any exception for a damaged file."""
    import numpy as np
    from PIL import Image, ImageOps, UnidentifiedImageError

    from equalbits.runtime import (
        FORMATS,
        MAX_PIXELS,
        NoRangeError,
        TooLargeError,
        centre,
        check_pixels,
        in_bytes,
        scaled_square,
    )

    (_, height, width), mode = shape, "L" if shape[0] == 1 else "RGB"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about unusual tags, or an image that is merely large
            with Image.open(path, formats=FORMATS) as image:
                check_pixels(image, MAX_PIXELS if most is None else most)
                if resize is not None:
                    return centre(scaled_square(image, resize, mode=mode), height=height, width=width)
                ImageOps.exif_transpose(image, in_place=True)  # in place: a copy loses its format
                return np.asarray(ImageOps.fit(in_bytes(image, mode), (width, height), Image.Resampling.BILINEAR))
    except UnidentifiedImageError:
        formats = ", ".join(FORMATS)
        raise ValueError(f"{path} is not a readable image or .npy file: save it as one of {formats}") from None
    except Image.DecompressionBombError:
        raise ValueError(f"{path} exceeds Pillow's pixel limit or is damaged: make the image smaller") from None
    except MemoryError:
        raise ValueError(f"{path} does not fit into memory: make the image smaller") from None
    except (NoRangeError, TooLargeError) as error:
        raise ValueError(f"{path}: {error}") from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # from the operating system, such as a missing permission
        raise ValueError(f"{path} is truncated or damaged: {error}") from None


def _read_array(path: Path) -> "NDArray[Any]":
    """Read a .npy file. numpy may raise any exception for a damaged file."""
    import numpy as np

    try:
        with path.open("rb") as file:
            images: NDArray[Any] = np.load(file, allow_pickle=False)
    except OSError:
        raise
    except MemoryError:
        raise ValueError(f"{path} does not fit into memory: it is damaged or holds too many images") from None
    except Exception as error:
        if "allow_pickle" in str(error):  # an array of objects, or no array at all
            raise ValueError(f"{path} is not an array of numbers: save one with numpy.save") from None
        raise ValueError(f"{path} is truncated or damaged: save the array again with numpy.save") from None
    if not isinstance(images, np.ndarray):
        raise ValueError(f"{path} holds several arrays: save one with numpy.save")
    if images.size == 0:
        raise ValueError(f"{path} holds no image: its shape is {images.shape}")
    return images


def _top_classes(logits: "NDArray[np.float32]", classes: tuple[str, ...], top: int) -> list[dict[str, Any]]:
    """Return the most likely classes with their softmax probability (``share``) and logit."""
    import numpy as np

    weights = np.exp(logits.astype(np.float64) - logits.max())
    shares = weights / weights.sum()
    order = np.argsort(-logits, kind="stable")[:top]
    return [
        {"class": classes[i] if classes else str(i), "share": float(shares[i]), "logit": float(logits[i])}
        for i in order
    ]
