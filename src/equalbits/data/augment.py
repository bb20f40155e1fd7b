"""Augmentation of a whole batch at once, on any device.

Every function is pure: images and tensors of random choices in, one tensor out. None draws a random number,
synchronizes with the device or has a shape that depends on values, so each can be compiled or captured in a CUDA graph.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

PADDING = 4


@dataclass(frozen=True)
class Augmentation:
    """Random shift and mirroring of each image; with ``erase`` also a square of that side set to the mean (cutout)."""

    erase: int = 0


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
