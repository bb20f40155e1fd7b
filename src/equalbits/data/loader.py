"""Batches of a data set that lives on the device: order, augmentation and sharing among processes."""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace

import torch
from torch import Tensor

from equalbits.data.augment import PADDING, Randoms, Squares, centre_crop, erase_squares, make_batch, random_crop
from equalbits.data.plan import Plan
from equalbits.data.records import DataError, Dataset


class Loader:
    """Cuts a :class:`Dataset` into batches of normalised images and labels, epoch by epoch.

    What a batch holds depends on the seed, the epoch's number and the batch's number alone. So a run can go on in the
    middle of an epoch with ``epoch(number, start_batch=...)`` and see the same bits, and ``world_size`` processes of
    ``batch_size`` images each see together what one process with ``world_size * batch_size`` sees.
    Without ``drop_last`` every image is seen exactly once an epoch over all ranks. ``erase`` is the side of a square
    that each augmented image loses, at a place of its own (0: none).

    >>> from equalbits.data import load_dataset
    >>> dataset = load_dataset("synthetic:3x8x8:10:100", split="train")
    >>> loader = Loader(dataset, batch_size=32, shuffle=True, augment=True)
    >>> [len(labels) for images, labels in loader.epoch(0)]
    [32, 32, 32, 4]
    >>> images, labels = next(loader.epoch(3, start_batch=2))
    >>> images.dtype, tuple(images.shape)
    (torch.float32, (32, 3, 8, 8))

    A captured training step does without the iteration. It holds ``images = dataset.images``, the whole epoch's
    ``permutation`` and ``randoms`` and a step counter on the device, and calls :meth:`pick` with their rows.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch_size: int,
        shuffle: bool = False,
        augment: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        erase: int = 0,
    ) -> None:
        check_erase(erase, augment=augment, side=dataset.crop or max(dataset.images.shape[-2:]))
        self.dataset = dataset
        self.augment = augment
        self.erase = erase
        self.plan = Plan(len(dataset), batch_size, shuffle, seed, rank, world_size, drop_last)
        self.mean = torch.tensor(dataset.mean, device=dataset.device)
        self.std = torch.tensor(dataset.std, device=dataset.device)

    def with_seed(self, seed: int) -> "Loader":
        """The same batches in the order and augmentation of another seed; the images are shared, not copied."""
        other = copy(self)
        other.plan = replace(self.plan, seed=seed)
        return other

    def __len__(self) -> int:
        return len(self.plan.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many images this rank holds in each batch; all ``batch_size`` but perhaps the last."""
        return self.plan.sizes

    def permutation(self, epoch: int) -> Tensor:
        """The images of an epoch, int64 (batch, image) on the device.

        Row b is batch b. If the last batch is smaller (see ``sizes``), its row ends in repeats, to be cut off.
        """
        return self.plan.permutation(epoch).to(self.dataset.device)

    def randoms(self, epoch: int) -> tuple[Tensor, ...] | None:
        """The random choices of an epoch, each (batch, image) on the device; None without augmentation.

        They are a :class:`Randoms`; with ``erase`` the values of :class:`Squares` follow its own.
        """
        if not self.augment:
            return None
        device, crop = self.dataset.device, self.dataset.crop
        height, width = self.dataset.images.shape[-2:]
        room = height - crop if crop else 2 * PADDING
        drawn = Randoms(*(values.to(device) for values in self.plan.windows(epoch, offsets=room + 1)))
        if not self.erase:
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
        """The batch of these images with these random choices, made on the device alone, as a captured step needs."""
        chosen = Randoms(*randoms[:3]) if randoms is not None else None
        images = self._cut(indices, chosen)
        if randoms is not None and self.erase:
            images = erase_squares(images, Squares(*randoms[3:]), side=self.erase)
        return images, self.dataset.labels[indices]

    def _cut(self, indices: Tensor, chosen: Randoms | None) -> Tensor:
        images, crop = self.dataset.images, self.dataset.crop
        if not crop:
            return make_batch(images, indices, chosen, self.mean, self.std)
        if chosen is None:
            return centre_crop(images[indices], self.mean, self.std, size=crop)
        return random_crop(images[indices], chosen, self.mean, self.std, size=crop)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate once over data in fixed order, as an evaluation does."""
        check_fixed(self.plan, augment=self.augment)
        return self.epoch(0)


def check_start(start_batch: int, batches: int) -> None:
    """Refuse to begin an epoch behind its end."""
    if not 0 <= start_batch <= batches:
        raise DataError(f"start_batch={start_batch} must be 0 to {batches}, the number of batches in an epoch")


def check_erase(erase: int, *, augment: bool, side: int) -> None:
    """Refuse to erase squares that are none, that no image has room for, or outside augmentation."""
    if not 0 <= erase <= 2 * side:
        raise DataError(f"erase={erase} must be 0 to {2 * side}, twice the side of the images; 0 erases nothing")
    if erase and not augment:
        raise DataError(f"erase={erase} is a part of augmentation: use augment=True with it, or erase=0")


def check_fixed(plan: Plan, *, augment: bool) -> None:
    """Refuse plain iteration where it would give the same epoch again and again."""
    if plan.shuffle or augment:
        raise DataError("a shuffled or augmented loader needs the epoch's number: iterate over loader.epoch(number)")
