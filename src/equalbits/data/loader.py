"""Batches of a data set on the device: order, augmentation and sharding."""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace

import torch
from torch import Tensor

from equalbits.data.augment import (
    PADDING,
    Augmentation,
    Randoms,
    Squares,
    centre_crop,
    erase_squares,
    make_batch,
    random_crop,
)
from equalbits.data.plan import Plan, Shard
from equalbits.data.records import DataError, Dataset


class Loader:
    """Batches of normalised images and labels of a :class:`Dataset`, epoch by epoch.

    A batch depends only on the seed and the numbers of epoch and batch. So ``epoch(number, start_batch=...)`` resumes
    an epoch with the same bits, and ``world_size`` processes of ``batch_size`` images each see together what one
    process with ``world_size * batch_size`` sees. Every image is seen exactly once per epoch over all ranks, unless
    ``shard`` drops the last batch. ``augment`` is True or an :class:`Augmentation`.

    >>> from equalbits.data import load_dataset
    >>> dataset = load_dataset("synthetic:3x8x8:10:100", split="train")
    >>> loader = Loader(dataset, batch_size=32, shuffle=True, augment=True)
    >>> [len(labels) for images, labels in loader.epoch(0)]
    [32, 32, 32, 4]
    >>> images, labels = next(loader.epoch(3, start_batch=2))
    >>> images.dtype, tuple(images.shape)
    (torch.float32, (32, 3, 8, 8))

    A step in a CUDA graph does not iterate. It holds the whole epoch's ``permutation`` and ``randoms`` and a step
    counter on the device, and calls :meth:`pick` with their rows.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch_size: int,
        shuffle: bool = False,
        augment: bool | Augmentation = False,
        seed: int = 0,
        shard: Shard | None = None,
    ) -> None:
        self.dataset = dataset
        self.augment = as_augmentation(augment, side=dataset.crop or max(dataset.images.shape[-2:]))
        self.plan = Plan(len(dataset), batch_size, shuffle, seed, shard or Shard())
        self.mean = torch.tensor(dataset.mean, device=dataset.device)
        self.std = torch.tensor(dataset.std, device=dataset.device)

    def with_seed(self, seed: int) -> "Loader":
        """Return a loader with another seed; the images are shared, not copied."""
        other = copy(self)
        other.plan = replace(self.plan, seed=seed)
        return other

    def __len__(self) -> int:
        return len(self.plan.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of images of this rank in each batch; all ``batch_size`` but perhaps the last."""
        return self.plan.sizes

    def permutation(self, epoch: int) -> Tensor:
        """Return the image indices of an epoch, int64 (batch, image), on the device.

        Row b is batch b. The row of a smaller last batch (see ``sizes``) is padded with repeats.
        """
        return self.plan.permutation(epoch).to(self.dataset.device)

    def randoms(self, epoch: int) -> tuple[Tensor, ...] | None:
        """Draw the random choices of an epoch, each (batch, image), on the device; None without augmentation.

        They are a :class:`Randoms`; if squares are erased, the values of :class:`Squares` follow.
        """
        if self.augment is None:
            return None
        device, crop = self.dataset.device, self.dataset.crop
        height, width = self.dataset.images.shape[-2:]
        largest = height - crop if crop else 2 * PADDING
        drawn = Randoms(*(values.to(device) for values in self.plan.windows(epoch, offsets=largest + 1)))
        if not self.augment.erase:
            return drawn
        height, width = (crop, crop) if crop else (height, width)
        return (*drawn, *(values.to(device) for values in self.plan.squares(epoch, size=(height, width))))

    def epoch(self, number: int, start_batch: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over (images, labels) of one epoch, from ``start_batch`` on."""
        check_start(start_batch, len(self))
        return self._batches(self.permutation(number), self.randoms(number), start_batch)

    def _batches(
        self, order: Tensor, randoms: tuple[Tensor, ...] | None, start: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in range(start, len(self)):
            size = self.sizes[batch]
            indices = order[batch, :size]
            yield self.pick(indices, [values[batch, :size] for values in randoms] if randoms else None)

    def pick(self, indices: Tensor, randoms: Sequence[Tensor] | None) -> tuple[Tensor, Tensor]:
        """Return the batch of these images with these random choices, made on the device alone."""
        chosen = Randoms(*randoms[:3]) if randoms is not None else None
        images = self._crop(indices, chosen)
        if randoms is not None and self.augment is not None and self.augment.erase:
            images = erase_squares(images, Squares(*randoms[3:]), side=self.augment.erase)
        return images, self.dataset.labels[indices]

    def _crop(self, indices: Tensor, chosen: Randoms | None) -> Tensor:
        images, crop = self.dataset.images, self.dataset.crop
        if not crop:
            return make_batch(images, indices, chosen, self.mean, self.std)
        if chosen is None:
            return centre_crop(images[indices], self.mean, self.std, size=crop)
        return random_crop(images[indices], chosen, self.mean, self.std, size=crop)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate once in fixed order, for evaluation."""
        check_fixed(self.plan, augmented=self.augment is not None)
        return self.epoch(0)


def check_start(start_batch: int, batches: int) -> None:
    """Raise unless an epoch has such a batch, or ends there."""
    if not 0 <= start_batch <= batches:
        raise DataError(f"start_batch={start_batch} must be 0 to {batches}, the number of batches in an epoch")


def as_augmentation(augment: bool | Augmentation, *, side: int) -> Augmentation | None:
    """Return the augmentation, None for False; raise if its squares are larger than twice the images' side."""
    if isinstance(augment, bool):
        return Augmentation() if augment else None
    if not 0 <= augment.erase <= 2 * side:
        raise DataError(
            f"erase={augment.erase} must be 0 to {2 * side}, twice the side of the images; 0 erases nothing"
        )
    return augment


def check_fixed(plan: Plan, *, augmented: bool) -> None:
    """Raise if plain iteration would repeat one random epoch."""
    if plan.shuffle or augmented:
        raise DataError("a shuffled or augmented loader needs the epoch's number: iterate over loader.epoch(number)")
