"""Which image comes when, and with which random choices: a pure function of the seed, the epoch and the place.

The plan is drawn for all processes together and then shared out, so that two processes with 64 images each see
exactly what one process with 128 sees. It is drawn on the CPU, so that every device gets the same one.
"""

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from equalbits.data.augment import BoxRandoms, Randoms, Squares
from equalbits.data.records import DataError

_TRIES = 10  # boxes drawn for one image before the whole of it is taken


@dataclass(frozen=True)
class Plan:
    """The order of ``count`` images in batches, and this rank's part of each batch.

    ``batch_size`` is that of one rank; the batch of a step is ``batch_size * world_size`` images, of which rank r
    holds the r-th part. What is left for the last batch is shared as evenly as it goes.
    """

    count: int
    batch_size: int
    shuffle: bool = False
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise DataError(f"batch_size={self.batch_size} must be 1 or more")
        if not 0 <= self.rank < self.world_size:
            raise DataError(f"rank={self.rank} must be 0 to world_size-1={self.world_size - 1}")
        step = self.batch_size * self.world_size
        if self.drop_last and self.count < step:
            raise DataError(
                f"drop_last leaves no batch: {self.count} images are fewer than {step}; use smaller batches"
            )
        rest = self.count % step
        if self.shuffle and not self.drop_last and 0 < rest < self.world_size:
            raise DataError(
                f"the last batch has {rest} images for {self.world_size} ranks, and a rank without images would stall "
                "the others; use drop_last=True or another batch_size"
            )

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """How many images this rank holds in each of its batches."""
        step = self.batch_size * self.world_size
        full, rest = divmod(self.count, step)
        sizes = (self.batch_size,) * full
        if rest and not self.drop_last:
            sizes += (self._share(rest, self.rank + 1) - self._share(rest, self.rank),)
        return sizes if sizes[-1] else sizes[:-1]

    def _share(self, images: int, rank: int) -> int:
        """Where a rank's part of a last, smaller batch begins."""
        return -(-rank * images // self.world_size)  # rounded up: the first ranks hold one more

    @cached_property
    def places(self) -> Tensor:
        """This rank's places in the epoch's order, (batch, image).

        The last row may be longer than its size says; it then repeats the place it begins with.
        """
        size = min(self.batch_size, self.count)  # a batch of more than there are is no longer than all of them
        step = size * self.world_size
        within = torch.arange(max(self.sizes, default=0))
        rows = torch.arange(len(self.sizes))[:, None] * step + self.rank * size + within
        full = self.count // (self.batch_size * self.world_size)
        if len(self.sizes) > full:
            start = full * step + self._share(self.count - full * step, self.rank)
            rows[-1] = start + within * (within < self.sizes[-1])
        return rows

    def generator(self, epoch: int, what: str) -> torch.Generator:
        """A generator that depends on the seed, the epoch and what is drawn from it, and on nothing else."""
        if epoch < 0:
            raise DataError(f"epoch {epoch} must be 0 or more")
        digest = hashlib.sha256(f"{what} {self.seed} {epoch}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))

    def permutation(self, epoch: int) -> Tensor:
        """The image at each of this rank's places, (batch, image)."""
        if not self.shuffle:
            return self.places
        return torch.randperm(self.count, generator=self.generator(epoch, "order"))[self.places]

    def windows(self, epoch: int, *, offsets: int) -> Randoms:
        """Offsets from 0 to ``offsets`` - 1 and flips for each of this rank's places, (batch, image)."""
        generator = self.generator(epoch, "windows")
        dx, dy = torch.randint(offsets, (2, self.count), generator=generator)
        flips = torch.rand(self.count, generator=generator) < 0.5
        return Randoms(dx[self.places], dy[self.places], flips[self.places])

    def squares(self, epoch: int, *, size: tuple[int, int]) -> Squares:
        """A pixel of an image of ``size`` (height, width), all alike likely, for each of this rank's places.

        Drawn apart from the windows and boxes, which are the same with and without.
        """
        generator = self.generator(epoch, "squares")
        rows, columns = (torch.randint(length, (self.count,), generator=generator) for length in size)
        return Squares(rows[self.places], columns[self.places])

    def boxes(
        self, epoch: int, *, area: tuple[float, float] = (0.08, 1.0), aspect: tuple[float, float] = (3 / 4, 4 / 3)
    ) -> BoxRandoms:
        """Boxes of random area and shape in the unit square, and flips, for each of this rank's places.

        The area is uniform, the logarithm of width over height too, as Inception's training had it (Szegedy et al.
        2015, §6). A box that sticks out is drawn again; after ten tries the whole image is taken.
        """
        generator = self.generator(epoch, "boxes")
        shares, shapes, tops, lefts = torch.rand(4, self.count, _TRIES, generator=generator, dtype=torch.float64)
        areas = area[0] + (area[1] - area[0]) * shares
        low, high = (math.log(side) for side in aspect)
        aspects = torch.exp(low + (high - low) * shapes)
        heights, widths = torch.sqrt(areas / aspects), torch.sqrt(areas * aspects)
        boxes = torch.stack([tops * (1 - heights), lefts * (1 - widths), heights, widths], dim=-1)
        fits = (heights <= 1) & (widths <= 1)
        first = fits.int().argmax(dim=1)  # the first that fits
        chosen = boxes[torch.arange(self.count), first]
        chosen[~fits.any(dim=1)] = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
        flips = torch.rand(self.count, generator=generator) < 0.5
        return BoxRandoms(chosen.float()[self.places], flips[self.places])
