"""Read pictures, prepare them as in training, and name the most likely classes. Image files need Pillow."""

import os
import warnings
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from equalbits.runtime.network import Network
from equalbits.runtime.op_specs import Array, Floats
from equalbits.runtime.resize_pictures import (
    FORMATS,
    MAX_PIXELS,
    NoRangeError,
    TooLargeError,
    centre,
    check_pixels,
    in_bytes,
    scaled_square,
)

if TYPE_CHECKING:
    from PIL import Image

    #: A picture: the path of an image or .npy file, the bytes of one, a Pillow image, or an array.
    Picture: TypeAlias = str | os.PathLike[str] | bytes | Image.Image | NDArray[Any]

#: First bytes of a .npy file.
_NPY = b"\x93NUMPY"


class Prediction(NamedTuple):
    """One of the most likely classes of an image; ``probability`` is the softmax of its logit, ``number`` its index."""

    label: str
    probability: float
    logit: float
    number: int


def top_classes(logits: Floats, classes: tuple[str, ...], top: int) -> list[Prediction]:
    """Return the ``top`` most likely classes of one image; numbers are the labels of a file without class names.

    >>> [prediction.label for prediction in top_classes(np.array([0.0, 2.0, 1.0]), ("cat", "dog", "cow"), 2)]
    ['dog', 'cow']
    """
    if type(top) is not int or top < 1:
        raise ValueError(f"top={top!r} must be an integer, at least 1")
    weights = np.exp(logits.astype(np.float64) - logits.max())
    shares = weights / weights.sum()
    order = np.argsort(-logits, kind="stable")[:top].tolist()
    return [Prediction(classes[i] if classes else str(i), float(shares[i]), float(logits[i]), i) for i in order]


def prepare(network: Network, picture: "Picture", *, max_pixels: int | None = None) -> Array:
    """Return a picture as the network takes it: uint8 of its input shape, scaled and cropped as in training.

    Bytes are the contents of a file. Arrays of the input shape, and all arrays of a .npy file, are returned unchanged.
    Other arrays of bytes are pictures of (row, column) or (row, column, channel). Image files of more than
    ``max_pixels`` are refused before they are decoded.
    """
    if network.inputs:
        names = ", ".join(port.name for port in network.inputs)
        raise ValueError(f"the model takes {names}, not pictures: call it in Python with these arrays")
    if isinstance(picture, str | os.PathLike):
        path = Path(picture)
        if not path.is_file():  # opening a pipe would wait for a writer
            problem = "is not a file" if path.exists() else "does not exist"
            raise ValueError(f"{path} {problem}: give an image file or a .npy file")
        with path.open("rb") as file:
            if path.suffix == ".npy":
                return _read_array(file, str(path))
            return _read_picture(file, str(path), network, max_pixels or MAX_PIXELS)
    if isinstance(picture, bytes):
        if picture.startswith(_NPY):
            return _read_array(BytesIO(picture), "the array")
        return _read_picture(BytesIO(picture), "the picture", network, max_pixels or MAX_PIXELS)
    if isinstance(picture, np.ndarray) or not hasattr(picture, "getbands"):  # not an image of Pillow
        array = np.asarray(picture)
        if array.shape[-3:] == network.input_shape:
            return array
        if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
            shape = ", ".join(map(str, network.input_shape))
            raise ValueError(f"the image is {array.dtype} of shape {array.shape}: give ({shape}), or uint8 pixels")
        from PIL import Image

        picture = Image.fromarray(array[..., 0] if array.shape[2:] == (1,) else array)
    return _fit(picture, network)


def _fit(image: "Image.Image", network: Network) -> Array:
    """Scale and crop a picture. With ``resize`` as in training, where EXIF orientation is ignored."""
    from PIL import Image, ImageOps

    channels, height, width = network.input_shape
    if channels not in (1, 3):
        raise ValueError(f"a picture has 1 or 3 channels, but the model takes {channels}: give an array")
    mode = "L" if channels == 1 else "RGB"
    if network.resize is not None:
        pixels = centre(scaled_square(image, network.resize, mode=mode, fit=network.fit), height=height, width=width)
    else:
        ImageOps.exif_transpose(image, in_place=True)  # in place: a copy loses its format
        pixels = np.asarray(ImageOps.fit(in_bytes(image, mode), (width, height), Image.Resampling.BILINEAR))
    return pixels.reshape(height, width, channels).transpose(2, 0, 1)


def _read_picture(file: BinaryIO, name: str, network: Network, most: int) -> Array:
    """Decode an image file in the network's size. Pillow may raise any exception for a damaged file."""
    from PIL import Image, UnidentifiedImageError

    if network.input_shape[0] not in (1, 3):
        channels = network.input_shape[0]
        raise ValueError(f"{name}: an image file has 1 or 3 channels, but the model takes {channels}; give a .npy file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about unusual tags, or an image that is merely large
            with Image.open(file, formats=FORMATS) as image:
                check_pixels(image, most)
                return _fit(image, network)
    except UnidentifiedImageError:
        formats = ", ".join(FORMATS)
        raise ValueError(f"{name} is not a readable image or .npy file: save it as one of {formats}") from None
    except Image.DecompressionBombError:
        raise ValueError(f"{name} exceeds Pillow's pixel limit or is damaged: make the image smaller") from None
    except MemoryError:
        raise ValueError(f"{name} does not fit into memory: make the image smaller") from None
    except TooLargeError as error:
        raise ValueError(f"{name} is too large: {error}") from None
    except NoRangeError as error:
        raise ValueError(f"{name}: {error}") from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # from the operating system, such as a missing permission
        raise ValueError(f"{name} is truncated or damaged: {error}") from None


def _read_array(file: BinaryIO, name: str) -> Array:
    """Read a .npy file. numpy may raise any exception for a damaged file."""
    try:
        images: Array = np.load(file, allow_pickle=False)
    except OSError:
        raise
    except MemoryError:
        raise ValueError(f"{name} does not fit into memory: it is damaged or holds too many images") from None
    except Exception as error:
        if "allow_pickle" in str(error):  # an array of objects, or no array at all
            raise ValueError(f"{name} is not an array of numbers: save one with numpy.save") from None
        raise ValueError(f"{name} is truncated or damaged: save the array again with numpy.save") from None
    if not isinstance(images, np.ndarray):
        raise ValueError(f"{name} holds several arrays: save one with numpy.save")
    if images.size == 0:
        raise ValueError(f"{name} holds no image: its shape is {images.shape}")
    return images
