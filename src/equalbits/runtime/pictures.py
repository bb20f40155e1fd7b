"""Pictures as bytes, by Pillow: what training on image files and ``equalbits run`` must do alike, pixel for pixel."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image

Pixels = NDArray[np.uint8]
#: What a file may hold, whatever its name says. Pillow knows more, and hands PostScript to a program that runs it.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")


class NoRangeError(ValueError):
    """A picture whose numbers do not say which of them is white."""


def scaled_square(
    image: "Image.Image", side: int, *, mode: str = "RGB", draft: bool = True, middle: bool = False
) -> Pixels:
    """An opened picture as uint8 (side, side, channel): stretched, or with ``middle`` the middle square of it scaled.

    ``draft`` lets the JPEG decoder skip detail that the scaling would lose anyway.
    """
    from PIL.Image import Resampling  # heavy, and only pictures need it

    if draft:
        image.draft("RGB", (side, side))  # never below the asked size; does nothing but for JPEG
    picture = in_bytes(image, mode)
    box = _middle_square(picture.width, picture.height, side) if middle else None
    pixels: NDArray[Any] = np.array(picture.resize((side, side), Resampling.BILINEAR, box=box))
    return pixels.reshape(side, side, -1)


def in_bytes(image: "Image.Image", mode: str) -> "Image.Image":
    """The picture as ``RGB`` or ``L``, of a byte a channel; refused where its numbers have no known range."""
    if image.mode == "P":
        image = image.convert("RGBA")  # a palette with transparency is not turned into RGB in one step
    held_in_32 = image.mode == "I" and image.format in ("PNG", "PPM")  # older Pillows' 16 bits, and all of PPM's
    if image.mode.startswith("I;16") or held_in_32:
        from PIL import Image

        image = Image.fromarray((np.asarray(image).astype(np.uint32) // 256).astype(np.uint8))  # convert would clip
    if image.mode in ("I", "F"):
        kind = "floats" if image.mode == "F" else "whole numbers of 32 bits"
        raise NoRangeError(f"its pixels are {kind}, which do not say what is white: save it with 8 or 16 bits")
    return image.convert(mode)


def centre(pixels: Pixels, *, height: int, width: int) -> Pixels:
    """The middle of a picture (row, column, channel). Half a pixel is rounded to the even one, as torchvision does.

    >>> centre(np.arange(9, dtype=np.uint8).reshape(3, 3, 1), height=1, width=1).item()
    4
    """
    top, left = round((pixels.shape[0] - height) / 2), round((pixels.shape[1] - width) / 2)
    return pixels[top : top + height, left : left + width]


def _middle_square(width: int, height: int, side: int) -> tuple[float, float, float, float]:
    """The part of an image that is its middle square once the shorter side is ``side``, rounded as torchvision does.

    Scaling that part alone gives the pixels that scaling the whole and then cutting would give.
    """
    scaled = [side * length // min(width, height) for length in (width, height)]
    starts = [round((length - side) / 2) for length in scaled]
    (left, right), (top, bottom) = (
        (start * length / whole, (start + side) * length / whole)
        for start, whole, length in zip(starts, scaled, (width, height), strict=True)
    )
    return left, top, right, bottom
