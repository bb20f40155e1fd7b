"""Scale and crop pictures with Pillow, pixel for pixel the same in training and in ``equalbits run``."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image

Pixels = NDArray[np.uint8]
#: Image formats that are opened, whatever the file is called. Pillow passes PostScript to an interpreter.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
#: Ways to make a picture square.
FITS = ("stretch", "crop", "pad")
#: Names of image files end so in folders, in lower or upper case.
SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")


#: Most pixels of a picture unless the caller says otherwise: decoding takes about 10 bytes for each.
MAX_PIXELS = 1 << 26


class TooLargeError(ValueError):
    """A picture with more pixels than the caller allows."""


class NoRangeError(ValueError):
    """A picture whose dtype does not define which value is white."""


def check_pixels(image: "Image.Image", most: int) -> None:
    """Raise where an opened picture, which is not decoded yet, has more pixels than allowed."""
    width, height = image.size
    if width * height > most:
        raise TooLargeError(f"{width}×{height} pixels are more than {most}: make the picture smaller")


def scaled_square(image: "Image.Image", side: int, *, mode: str = "RGB", fit: str = "stretch") -> Pixels:
    """Scale a picture to uint8 (side, side, channel), bilinearly, as one of :data:`FITS` says.

    ``stretch`` ignores the aspect ratio, ``crop`` keeps it and cuts the longer side, ``pad`` keeps it and adds black.
    """
    from PIL import ImageOps  # slow to import, and only pictures need it
    from PIL.Image import Resampling

    image, size = in_bytes(image, mode), (side, side)
    if fit == "stretch":
        scaled = image.resize(size, Resampling.BILINEAR)
    else:
        scaled = (ImageOps.fit if fit == "crop" else ImageOps.pad)(image, size, Resampling.BILINEAR)
    pixels: Pixels = np.array(scaled)
    return pixels.reshape(side, side, -1)


def in_bytes(image: "Image.Image", mode: str) -> "Image.Image":
    """Convert a picture to ``RGB`` or ``L`` with one byte per channel; refuse dtypes without a defined range."""
    if image.mode == "P":
        image = image.convert("RGBA")  # a palette with transparency cannot become RGB in one step
    held_in_32 = image.mode == "I" and image.format in ("PNG", "PPM")  # 16 bits in older Pillows, and always in PPM
    if image.mode.startswith("I;16") or held_in_32:
        from PIL import Image

        image = Image.fromarray((np.asarray(image).astype(np.uint32) // 256).astype(np.uint8))  # convert would clip
    if image.mode in ("I", "F"):
        kind = "floats" if image.mode == "F" else "32-bit integers"
        raise NoRangeError(f"its pixels are {kind}, whose white level is not defined: save it with 8 or 16 bits")
    return image.convert(mode)


def centre(pixels: Pixels, *, height: int, width: int) -> Pixels:
    """Crop the centre of a picture (row, column, channel). Half a pixel rounds to even, as in torchvision.

    >>> centre(np.arange(9, dtype=np.uint8).reshape(3, 3, 1), height=1, width=1).item()
    4
    """
    top, left = round((pixels.shape[0] - height) / 2), round((pixels.shape[1] - width) / 2)
    return pixels[top : top + height, left : left + width]
