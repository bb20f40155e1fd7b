"""Augmentation of a whole batch at once, on any device.

Every function is pure: uint8 images and tensors of random choices in, one tensor out. None draws a random number,
synchronizes with the device or has a shape that depends on values, so each can be compiled or captured in a CUDA graph.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

PADDING = 4


@dataclass(frozen=True)
class Augmentation:
    """Random shift and mirroring of each image; with ``erase`` also a square of that side set to the mean (cutout)."""

    erase: int = 0


class Randoms(NamedTuple):
    """Random choices of a batch, one per image: the start of its window, and whether it is mirrored.

    ``dx`` and ``dy`` are int64 columns and rows from 0 to twice the padding; ``flips`` is bool.
    """

    dx: Tensor
    dy: Tensor
    flips: Tensor


class BoxRandoms(NamedTuple):
    """Random choices of a batch of resized crops: ``boxes`` (image, 4) and ``flips`` (image)."""

    boxes: Tensor
    flips: Tensor


class Squares(NamedTuple):
    """Random choices of a batch of erased squares: the center pixel of each, int64 ``rows`` and ``columns``."""

    rows: Tensor
    columns: Tensor


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Turn pixels 0 to 255 into float32 of about zero mean and unit variance in each channel.

    CPU and GPU return the same bits. A compiled step may fuse the products and differ in the last one.

    >>> normalise(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), torch.tensor([0.5]), torch.tensor([0.25]))
    tensor([[[[-2.,  2.]]]])
    """
    shape = (1, -1, 1, 1)
    return (images.float() - (mean * 255).view(shape)) * (1 / (std * 255)).view(shape)


def make_batch(
    images: Tensor, indices: Tensor, randoms: Randoms | None, mean: Tensor, std: Tensor, *, padding: int = PADDING
) -> Tensor:
    """Pick ``images[indices]``, crop and mirror each by its own random choices, and normalise.

    ``images`` may be the whole data set: only the pixels of the batch are read. Each image is padded with ``padding``
    black pixels on every side, then cropped to its old size; ``randoms=None`` does neither.
    ``mean`` and ``std`` are tensors of one number per channel, on the images' device.

    >>> images = torch.arange(9, dtype=torch.uint8).view(1, 1, 3, 3)
    >>> one = torch.tensor([1])
    >>> randoms = Randoms(dx=one * 0, dy=one, flips=one > 0)   # one column of padding at the left, then mirrored
    >>> make_batch(images, one * 0, randoms, torch.zeros(1), torch.full((1,), 1 / 255), padding=1)
    tensor([[[[1., 0., 0.],
              [4., 3., 0.],
              [7., 6., 0.]]]])
    """
    if randoms is None:
        return normalise(images[indices], mean, std)
    height, width = images.shape[-2:]
    return normalise(
        window(images, indices, randoms.dy - padding, randoms.dx - padding, randoms.flips, size=(height, width)),
        mean,
        std,
    )


def window(
    images: Tensor, indices: Tensor, top: Tensor, left: Tensor, flips: Tensor, *, size: tuple[int, int]
) -> Tensor:
    """Crop a window of each ``images[indices]`` at its own offset, zero outside the image, mirrored where ``flips``."""
    height, width = images.shape[-2:]
    rows = torch.arange(size[0], device=images.device) + top[:, None]  # (image, row)
    across = torch.arange(size[1], device=images.device)
    columns = torch.where(flips[:, None], size[1] - 1 - across, across) + left[:, None]  # (image, column)
    inside = _within(rows, height)[:, :, None] & _within(columns, width)[:, None, :]  # (image, row, column)
    positions = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    planes = images[indices].flatten(2)  # (image, channel, pixel)
    picked = planes.gather(2, positions.flatten(1)[:, None].expand(-1, planes.shape[1], -1))
    return picked.view(*planes.shape[:2], *size) * inside[:, None]


def _within(positions: Tensor, length: int) -> Tensor:
    return (positions >= 0) & (positions < length)


def erase_squares(images: Tensor, squares: Squares, *, side: int) -> Tensor:
    """Set a square of ``side`` pixels in each normalised image to 0, the mean, clipped at the border.

    This is cutout (DeVries and Taylor 2017, arXiv:1708.04552). A square of even side has one more row and column before
    its center than after it.

    >>> corner = Squares(rows=torch.tensor([0]), columns=torch.tensor([3]))
    >>> erase_squares(torch.ones(1, 1, 3, 4), corner, side=3)
    tensor([[[[1., 1., 0., 0.],
              [1., 1., 0., 0.],
              [1., 1., 1., 1.]]]])
    """
    height, width = images.shape[-2:]
    rows = torch.arange(height, device=images.device) - (squares.rows[:, None] - side // 2)  # (image, row)
    columns = torch.arange(width, device=images.device) - (squares.columns[:, None] - side // 2)  # (image, column)
    inside = _within(rows, side)[:, :, None] & _within(columns, side)[:, None, :]  # (image, row, column)
    return images.masked_fill(inside[:, None], 0.0)


def centre_crop(images: Tensor, mean: Tensor, std: Tensor, *, size: int) -> Tensor:
    """Crop the center ``size``×``size`` pixels of each image, and normalise.

    Half pixels are rounded to even, as in torchvision.
    """
    top, left = (round((length - size) / 2) for length in images.shape[-2:])
    return normalise(images[..., top : top + size, left : left + size], mean, std)


def random_crop(images: Tensor, randoms: Randoms, mean: Tensor, std: Tensor, *, size: int) -> Tensor:
    """Crop a ``size``×``size`` window of each image at its own ``dy, dx``, mirror where asked, and normalise."""
    indices = torch.arange(len(images), device=images.device)
    return normalise(window(images, indices, randoms.dy, randoms.dx, randoms.flips, size=(size, size)), mean, std)


def resized_crop(images: Tensor, randoms: BoxRandoms, mean: Tensor, std: Tensor, *, size: int) -> Tensor:
    """Scale a box of each image to ``size``×``size``, mirror where asked, and normalise.

    A box is (top, left, height, width) as fractions of the image. Interpolation is bilinear; the border is replicated.
    """
    top, left, height, width = randoms.boxes.unbind(1)
    steps = (torch.arange(size, device=images.device) + 0.5) / size  # centers of the new pixels, relative to the box
    across = torch.where(randoms.flips[:, None], 1 - steps, steps)
    ys = (top[:, None] + height[:, None] * steps) * 2 - 1  # (image, row), in grid_sample's -1 to 1
    xs = (left[:, None] + width[:, None] * across) * 2 - 1  # (image, column)
    shape = (len(images), size, size)
    grid = torch.stack([xs[:, None, :].expand(shape), ys[:, :, None].expand(shape)], dim=-1)
    picked = torch.nn.functional.grid_sample(
        images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False
    )
    return normalise(picked, mean, std)
