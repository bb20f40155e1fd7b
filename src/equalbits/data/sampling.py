"""Order and random choices of the images: a pure function of seed, epoch and position.

They are drawn for all processes together and then sharded, so that two processes with 64 images each see exactly what
one process with 128 sees. They are drawn on the CPU, so that every device gets the same ones.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral

import torch
from torch import Tensor

from equalbits.data.dataset import DataError


@dataclass(frozen=True)
class Shard:
    """Part of each batch for one of ``world_size`` processes."""

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise DataError(f"rank={self.rank} must be 0 to world_size-1={self.world_size - 1}")


@dataclass(frozen=True)
class Plan:
    """Order of ``count`` images in batches, and this rank's part of each batch.

    ``batch_size`` is that of one rank; a step trains on ``batch_size * world_size`` images, of which rank r holds the
    r-th part. A smaller last batch is divided as evenly as possible.
    """

    count: int
    batch_size: int
    shuffle: bool = False
    seed: int = 0
    shard: Shard = Shard()

    def __post_init__(self) -> None:
        given: object = self.batch_size
        if not isinstance(given, Integral) or self.batch_size < 1:
            raise DataError(f"batch_size={self.batch_size!r} must be an integer, at least 1")
        rest = self.count % (self.batch_size * self.shard.world_size)
        if self.shuffle and 0 < rest < self.shard.world_size:  # a rank without images would stall the others
            raise DataError(f"the last batch has {rest} images for {self.shard.world_size} ranks: change batch_size")

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of images of this rank in each batch."""
        full, rest = divmod(self.count, self.batch_size * self.shard.world_size)
        sizes = (self.batch_size,) * full
        if rest:
            sizes += (self._start(rest, self.shard.rank + 1) - self._start(rest, self.shard.rank),)
        return sizes if sizes[-1] else sizes[:-1]

    def _start(self, images: int, rank: int) -> int:
        """Return where a rank's part of a smaller last batch starts."""
        return -(-rank * images // self.shard.world_size)  # rounded up: the first ranks hold one more

    @cached_property
    def places(self) -> Tensor:
        """Positions of this rank's images in the epoch's order, (batch, image).

        The row of a smaller last batch is padded with its first position.
        """
        size = min(self.batch_size, self.count)  # a larger batch holds all images
        step = size * self.shard.world_size
        within = torch.arange(max(self.sizes, default=0))
        rows = torch.arange(len(self.sizes))[:, None] * step + self.shard.rank * size + within
        full = self.count // (self.batch_size * self.shard.world_size)
        if len(self.sizes) > full:
            start = full * step + self._start(self.count - full * step, self.shard.rank)
            rows[-1] = start + within * (within < self.sizes[-1])
        return rows

    def generator(self, epoch: int, what: str) -> torch.Generator:
        """Return a generator that depends only on the seed, the epoch and the purpose ``what``."""
        if epoch < 0:
            raise DataError(f"epoch {epoch} must be 0 or more")
        digest = hashlib.sha256(f"{what} {self.seed} {epoch}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))

    def permutation(self, epoch: int) -> Tensor:
        """Return the image at each of this rank's positions, (batch, image)."""
        if not self.shuffle:
            return self.places
        return torch.randperm(self.count, generator=self.generator(epoch, "order"))[self.places]

    def windows(self, epoch: int, *, offsets: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw columns and rows from 0 to ``offsets`` - 1, and flips, for this rank's images, each (batch, image)."""
        generator = self.generator(epoch, "windows")
        dx, dy = torch.randint(offsets, (2, self.count), generator=generator)
        flips = torch.rand(self.count, generator=generator) < 0.5
        return dx[self.places], dy[self.places], flips[self.places]

    def squares(self, epoch: int, *, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Draw the row and column of a pixel, uniformly in ``size`` (height, width), for this rank's images.

        From a generator of its own, so that windows are the same with and without erasing.
        """
        generator = self.generator(epoch, "squares")
        rows, columns = (torch.randint(length, (self.count,), generator=generator) for length in size)
        return rows[self.places], columns[self.places]

    def parts(self, epoch: int, *, smallest: float) -> tuple[Tensor, ...]:
        """Draw the left, top, height and width of a part of each image, as shares: an area of ``smallest`` to 1.

        The ratio of the sides is 3/4 to 4/3, as far as the image allows.
        """
        generator = self.generator(epoch, "parts")
        area, ratio, down, across = torch.rand(4, self.count, generator=generator)
        area, ratio = smallest + (1 - smallest) * area, (4 / 3) ** (2 * ratio - 1)
        height, width = ((area * factor).sqrt().clamp(max=1) for factor in (1 / ratio, ratio))
        return tuple(each[self.places] for each in ((1 - width) * across, (1 - height) * down, height, width))

    def operations(self, epoch: int, *, count: int, kinds: int) -> tuple[Tensor, ...]:
        """Draw ``count`` operations of ``kinds`` for each image: their choices, then their magnitudes, −1 to 1."""
        generator = self.generator(epoch, "operations")
        choices = torch.randint(kinds, (count, self.count), generator=generator)
        magnitudes = 2 * torch.rand(count, self.count, generator=generator) - 1
        return tuple(each[self.places] for each in (*choices, *magnitudes))
