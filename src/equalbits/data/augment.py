"""Augmentation of a whole batch at once, on any device.

Every function is pure: images and tensors of random choices in, one tensor out. None draws a random number,
synchronizes with the device or has a shape that depends on values, so each can be compiled or captured in a CUDA graph.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional as nnf

from equalbits.data.dataset import DataError

PADDING = 4


@dataclass(frozen=True)
class Augmentation:
    """Random changes of each training image.

    It is shifted by up to 4 pixels or, with ``resized_crop`` above 0, cropped to a random part of at least that share
    of its area and scaled back. ``mirror`` flips half of the images. ``randaugment`` applies that many random
    operations to each. ``erase`` sets a square of that side to the mean (cutout).
    """

    erase: int = 0
    mirror: bool = True
    resized_crop: float = 0.0
    randaugment: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.resized_crop <= 1:
            raise DataError(f"resized_crop={self.resized_crop!r} must be a share of the area, 0 to 1 (0: none)")

    def __str__(self) -> str:
        """Describe what is on; ``erase`` always, as a checkpoint made before the others has it."""
        others = [each for each in fields(self) if each.name != "erase" and getattr(self, each.name) != each.default]
        given = [f"{each.name}={getattr(self, each.name)}" for each in others]
        return f"Augmentation({', '.join([f'erase={self.erase}', *given])})"


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Turn pixels 0 to 255 into float32 of about zero mean and unit variance in each channel.

    CPU and GPU return the same bits. A compiled step may fuse the products and differ in the last one.

    >>> normalise(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), torch.tensor([0.5]), torch.tensor([0.25]))
    tensor([[[[-2.,  2.]]]])
    """
    shape = (1, -1, 1, 1)
    return (images.float() - (mean * 255).view(shape)) * (1 / (std * 255)).view(shape)


def centre_crop(images: Tensor, *, size: tuple[int, int]) -> Tensor:
    """Crop the center (height, width) pixels of each image. Half pixels are rounded to even, as in torchvision."""
    top, left = (round((whole - part) / 2) for whole, part in zip(images.shape[-2:], size, strict=True))
    return images[..., top : top + size[0], left : left + size[1]]


def random_crop(
    images: Tensor, dx: Tensor, dy: Tensor, flips: Tensor, *, size: tuple[int, int], padding: int = 0
) -> Tensor:
    """Pad each image with ``padding`` zeros on every side, crop ``size`` at its own (dy, dx), mirror where ``flips``.

    >>> images = torch.arange(9, dtype=torch.uint8).view(1, 1, 3, 3)
    >>> one = torch.tensor([1])
    >>> random_crop(images, one * 0, one, one > 0, size=(3, 3), padding=1)  # a column of padding, then mirrored
    tensor([[[[1, 0, 0],
              [4, 3, 0],
              [7, 6, 0]]]], dtype=torch.uint8)
    """
    height, width = images.shape[-2:]
    rows = torch.arange(size[0], device=images.device) + (dy - padding)[:, None]  # (image, row)
    across = torch.arange(size[1], device=images.device)
    columns = torch.where(flips[:, None], size[1] - 1 - across, across) + (dx - padding)[:, None]  # (image, column)
    inside = _within(rows, height)[:, :, None] & _within(columns, width)[:, None, :]  # (image, row, column)
    positions = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    planes = images.flatten(2)  # (image, channel, pixel)
    picked = planes.gather(2, positions.flatten(1)[:, None].expand(-1, planes.shape[1], -1))
    return picked.view(*planes.shape[:2], *size) * inside[:, None]


def resized_crop(
    images: Tensor, left: Tensor, top: Tensor, flips: Tensor, sides: tuple[Tensor, Tensor], *, size: tuple[int, int]
) -> Tensor:
    """Cut a part of each image and scale it bilinearly to ``size``, mirrored where ``flips``; returns float32.

    ``left``, ``top`` and the ``sides`` (height, width) of the part are shares of the image's.

    >>> images = torch.arange(16.0).view(1, 1, 4, 4)
    >>> half = torch.tensor([0.5])
    >>> resized_crop(images, half, half * 0, half > 1, (half, half), size=(2, 2))  # the upper right quarter
    tensor([[[[2., 3.],
              [6., 7.]]]])
    """
    rows, columns = ((torch.arange(count, device=images.device) + 0.5) / count for count in size)
    down = top[:, None] + sides[0][:, None] * rows  # (image, row)
    across = left[:, None] + sides[1][:, None] * torch.where(flips[:, None], 1 - columns, columns)  # (image, column)
    shape = (len(images), *size)
    grid = 2 * torch.stack([across[:, None, :].expand(shape), down[:, :, None].expand(shape)], dim=-1) - 1
    return nnf.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)


def _within(positions: Tensor, length: int) -> Tensor:
    return (positions >= 0) & (positions < length)


def erase_squares(images: Tensor, rows: Tensor, columns: Tensor, *, side: int) -> Tensor:
    """Set a square of ``side`` pixels around a pixel of each normalised image to 0, the mean, clipped at the border.

    This is cutout (DeVries and Taylor 2017, arXiv:1708.04552). A square of even side has one more row and column before
    its center than after it.

    >>> erase_squares(torch.ones(1, 1, 3, 4), torch.tensor([0]), torch.tensor([3]), side=3)
    tensor([[[[1., 1., 0., 0.],
              [1., 1., 0., 0.],
              [1., 1., 1., 1.]]]])
    """
    height, width = images.shape[-2:]
    rows = torch.arange(height, device=images.device) - (rows[:, None] - side // 2)  # (image, row)
    columns = torch.arange(width, device=images.device) - (columns[:, None] - side // 2)  # (image, column)
    inside = _within(rows, side)[:, :, None] & _within(columns, side)[:, None, :]  # (image, row, column)
    return images.masked_fill(inside[:, None], 0.0)
