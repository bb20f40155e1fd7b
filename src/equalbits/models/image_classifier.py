"""Base class of all networks: named modules in sequence, with a check of the input shape."""

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from equalbits.functional import is_number

#: One side of square images, or height and width.
ImageSize = int | tuple[int, int]


@dataclass(frozen=True)
class ImageShape:
    """Shape of the images a network accepts, checked at construction and at every forward pass.

    ``fixed`` allows only this size, since a layer depends on it. ``multiple_of`` and ``smallest`` limit each side.

    >>> ImageShape(3, 20, multiple_of=32)
    Traceback (most recent call last):
    ValueError: images of 20×20 do not fit: each side must be a multiple of 32; pad or resize them
    """

    channels: int
    size: ImageSize
    fixed: bool = False
    multiple_of: int = 1
    smallest: int = 1

    def __post_init__(self) -> None:
        if self.channels < 1:
            raise ValueError(f"in_channels={self.channels}: images have at least one channel")
        self._check_sides(*self.sides)

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width."""
        sides = (self.size, self.size) if isinstance(self.size, int) else self.size
        # A tuple of types: compiled code of torch 2.6 cannot make a union.
        if not isinstance(sides, (tuple, list)) or len(sides) != 2 or not all(isinstance(side, int) for side in sides):
            raise ValueError(f"image_size={self.size!r}: pass one side, or (height, width), in whole pixels")
        return sides[0], sides[1]

    def check(self, images: Tensor) -> None:
        """Raise if a batch does not fit."""
        if images.dim() != 4 or images.shape[1] != self.channels or (self.fixed and images.shape[2:] != self.sides):
            height, width = self.sides
            raise ValueError(
                f"images of shape {tuple(images.shape)} do not fit: the network takes (batch, {self.channels}, "
                f"{height}, {width}); create it with the in_channels= and image_size= of your images"
            )
        self._check_sides(images.shape[2], images.shape[3])

    def _check_sides(self, height: int, width: int) -> None:
        if min(height, width) < self.smallest:
            rule = f"each side must be at least {self.smallest}"
        elif height % self.multiple_of or width % self.multiple_of:
            rule = f"each side must be a multiple of {self.multiple_of}"
        else:
            return
        raise ValueError(f"images of {height}×{width} do not fit: {rule}; pad or resize them")


class ImageClassifier(nn.Sequential):
    """Named modules in sequence, from images to class scores."""

    def __init__(self, parts: Mapping[str, nn.Module], images: ImageShape | None = None) -> None:
        super().__init__(OrderedDict(parts))
        self.images = images

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores (logits)."""
        self.check(images)
        scores: Tensor = super().forward(images)  # type: ignore[no-untyped-call]
        return scores

    def check(self, images: Tensor) -> None:
        """Raise if images do not fit."""
        if self.images is not None:
            self.images.check(images)


def scale_channels(channels: int, width: float) -> int:
    """Return ``channels`` times ``width``, rounded, at least 1.

    >>> scale_channels(64, 0.25)
    16
    """
    if not is_number(width) or not 0 < width < math.inf:
        raise ValueError(f"width={width!r}: the multiplier of all channel counts must be finite and above 0")
    return max(1, round(channels * width))
