"""``equalbits run``: answers of a packed file. Needs numpy, and Pillow for pictures; never torch."""

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``run`` takes."""
    parser.add_argument("file", metavar="FILE", help="a packed file, made by equalbits pack")
    parser.add_argument(
        "images", metavar="IMAGE", nargs="+",
        help="a picture, prepared as in training (a file that says no resize: scaled to cover the model's size, its "
        "middle taken), or a .npy of one image or of a batch: uint8 is normalised by the file's mean and std, floats "
        "are taken as they are, already normalised",
    )  # fmt: skip
    parser.add_argument("--top", type=int, default=5, metavar="N", help="how many classes to name (default: 5)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of the native engine (default: 1)")
    parser.add_argument("--json", action="store_true", help="print as one JSON object")


def run(options: argparse.Namespace) -> None:
    """Print the likeliest classes of each image."""
    from equalbits.runtime import load_packed, native

    if options.top < 1:
        raise ValueError(f"--top {options.top}: name at least one class")
    model = load_packed(options.file, threads=options.threads)
    if native.BUILT is None:
        print(native.REASON, file=sys.stderr)
    answers: dict[str, list[dict[str, Any]]] = {}
    for path in map(Path, options.images):
        if not path.exists():
            raise ValueError(f"{path} is not there: name a picture or a .npy")
        images = read_images(path, model.network.input_shape, resize=model.network.resize)
        if images.dtype.kind == "u" and model.network.mean is None:
            raise ValueError(
                f"{path} holds bytes, and {options.file} no mean and std to normalise them by: "
                "pack again with mean= and std=, or give a .npy of floats"
            )
        try:
            logits = model(images).reshape(len(images), -1)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        except MemoryError:
            few = "give fewer images at a time, or fewer --threads"
            raise ValueError(f"{path}: to answer {len(images)} takes more memory than there is: {few}") from None
        for number, row in enumerate(logits):
            name = str(path) if len(logits) == 1 else f"{path}[{number}]"
            found = _likeliest(row, model.network.classes, options.top)
            if options.json:
                answers[name] = found
            else:  # at once: there may be thousands
                _show(name, found)
    if options.json:
        print(json.dumps(answers))


def _show(name: str, found: list[dict[str, Any]]) -> None:
    from equalbits._text import escape_control_chars

    print(name)
    for entry in found:
        print(f"  {entry['share']:7.2%}  {escape_control_chars(entry['class'])}")


def read_images(path: Path, shape: tuple[int, ...], *, resize: int | None = None) -> "NDArray[Any]":
    """A batch of images: numbers as they are, pictures as bytes of the model's channels and size.

    With ``resize`` a picture is scaled and cut as training on image files does it, and not turned as its camera says.
    """
    if path.suffix == ".npy":
        images = _read_array(path)
        return images[None] if images.ndim == len(shape) else images
    channels, height, width = shape
    if channels not in (1, 3):
        raise ValueError(f"{path}: a picture has 1 or 3 channels, the model takes {channels}; give a .npy")
    return _read_picture(path, shape, resize).reshape(height, width, channels).transpose(2, 0, 1)[None]


def _read_picture(path: Path, shape: tuple[int, ...], resize: int | None) -> "NDArray[Any]":
    """A picture's bytes, of the model's size. Files that make no sense may end in any exception inside Pillow."""
    import numpy as np
    from PIL import Image, ImageOps, UnidentifiedImageError

    from equalbits.runtime import FORMATS, NoRangeError, centre, in_bytes, scaled_square

    (_, height, width), mode = shape, "L" if shape[0] == 1 else "RGB"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tags that are odd, or a picture that is merely large
            with Image.open(path, formats=FORMATS) as picture:
                if resize is not None:
                    return centre(scaled_square(picture, resize, mode=mode), height=height, width=width)
                ImageOps.exif_transpose(picture, in_place=True)  # a copy would not know its format
                whole = in_bytes(picture, mode)
                return np.asarray(ImageOps.fit(whole, (width, height), Image.Resampling.BILINEAR))
    except UnidentifiedImageError:
        kinds = ", ".join(FORMATS)
        raise ValueError(f"{path} is no picture that can be read, nor a .npy: save it as one of {kinds}") from None
    except Image.DecompressionBombError:
        raise ValueError(f"{path} has more pixels than Pillow reads, or is damaged: make it smaller first") from None
    except MemoryError:
        raise ValueError(f"{path} does not fit into memory: make it smaller first") from None
    except NoRangeError as error:
        raise ValueError(f"{path}: {error}") from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the system's: it is not there, or may not be read
        raise ValueError(f"{path} is cut off or damaged: {error}") from None


def _read_array(path: Path) -> "NDArray[Any]":
    """The numbers of a .npy. Files that make no sense may end in any exception inside numpy."""
    import numpy as np

    try:
        with path.open("rb") as file:
            images: NDArray[Any] = np.load(file, allow_pickle=False)
    except OSError:
        raise
    except MemoryError:
        raise ValueError(f"{path} claims more numbers than fit into memory: it is damaged, or holds too many") from None
    except Exception as error:
        if "allow_pickle" in str(error):  # objects, or no array at all: numpy would have to run what the file says
            raise ValueError(f"{path} is not an array of numbers that numpy can read: save one by numpy.save") from None
        raise ValueError(f"{path} is cut off or damaged: save the array anew by numpy.save") from None
    if not isinstance(images, np.ndarray):
        raise ValueError(f"{path} holds several arrays: save one by numpy.save")
    if images.size == 0:
        raise ValueError(f"{path} holds no image: its shape is {images.shape}")
    return images


def _likeliest(logits: "NDArray[np.float32]", classes: tuple[str, ...], top: int) -> list[dict[str, Any]]:
    import numpy as np

    weights = np.exp(logits.astype(np.float64) - logits.max())
    shares = weights / weights.sum()
    order = np.argsort(-logits, kind="stable")[:top]
    return [
        {"class": classes[i] if classes else str(i), "share": float(shares[i]), "logit": float(logits[i])}
        for i in order
    ]
