"""Batches of a data set: order, sharding and augmentation; and the loader of images held on the device."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import torch
from torch import Tensor

from equalbits.data.augment import (
    PADDING,
    Augmentation,
    centre_crop,
    erase_squares,
    normalise,
    random_crop,
    resized_crop,
)
from equalbits.data.dataset import DataError, Dataset, FolderDataset
from equalbits.data.randaugment import OPERATIONS, random_operation
from equalbits.data.sampling import Plan, Shard

AnyDataset = TypeVar("AnyDataset", bound=Dataset | FolderDataset)
Batches = Iterator[tuple[Tensor, Tensor]]
Randoms = tuple[Tensor, ...] | None


class BaseLoader(ABC, Generic[AnyDataset]):
    """Batches of normalised images and labels, epoch by epoch.

    A batch depends only on the seed and the numbers of epoch and batch. So ``epoch(number, start_batch=...)`` resumes
    an epoch with the same bits, and ``world_size`` processes of ``batch_size`` images each see together what one
    process with ``world_size * batch_size`` sees. Every image is seen exactly once per epoch over all ranks.
    ``augment`` is True or an :class:`Augmentation`.
    """

    def __init__(
        self,
        dataset: Dataset | FolderDataset,
        *,
        batch_size: int,
        shuffle: bool = False,
        augment: bool | Augmentation = False,
        seed: int = 0,
        shard: Shard | None = None,
    ) -> None:
        given: object = dataset
        if not isinstance(given, Dataset | FolderDataset):
            kind = type(given).__name__
            raise DataError(f"the data set is a {kind}: load it first, as in eb.load_dataset('fashion', split='train')")
        if not isinstance(augment, bool | Augmentation):
            raise DataError(f"augment={augment!r} must be True, False or an Augmentation")
        self.dataset = cast("AnyDataset", dataset)
        self.augment = augment if isinstance(augment, Augmentation) else Augmentation() if augment else None
        largest = 2 * max(dataset.crop_size)
        if self.augment and not 0 <= self.augment.erase <= largest:
            raise DataError(f"erase={self.augment.erase} must be 0 to {largest}, twice the side of the images")
        self.padding = PADDING if isinstance(dataset, Dataset) and not dataset.crop else 0
        self.plan = Plan(len(dataset), batch_size, shuffle, seed, shard or Shard())
        self.mean = torch.tensor(dataset.mean, device=dataset.device)
        self.std = torch.tensor(dataset.std, device=dataset.device)

    def __len__(self) -> int:
        return len(self.plan.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of images of this rank in each batch; all ``batch_size`` but perhaps the last."""
        return self.plan.sizes

    def fingerprint(self) -> dict[str, str]:
        """Return the digests of the data and the augmentation, which a checkpoint stores."""
        return {**self.dataset.fingerprint(), "augment": str(self.augment or "none")}

    def permutation(self, epoch: int) -> Tensor:
        """Return the image indices of an epoch, int64 (batch, image); the row of a smaller last batch is padded."""
        return self.plan.permutation(epoch)

    def randoms(self, epoch: int) -> Randoms:
        """Draw the random choices of an epoch, each (batch, image), on the device; None without augmentation.

        They are the columns, rows and flips of :func:`random_crop`, or those and the sides of :func:`resized_crop`;
        then choices and magnitudes of :func:`random_operation`; then the rows and columns of erased squares.
        """
        if self.augment is None:
            return None
        offsets = self.dataset.image_size[0] - self.dataset.crop_size[0] + 2 * self.padding + 1
        drawn: tuple[Tensor, ...] = self.plan.windows(epoch, offsets=offsets)
        if not self.augment.mirror:
            drawn = (*drawn[:2], torch.zeros_like(drawn[2]))
        if self.augment.resized_crop:
            left, top, *sides = self.plan.parts(epoch, smallest=self.augment.resized_crop)
            drawn = (left, top, drawn[2], *sides)
        drawn += self.plan.operations(epoch, count=self.augment.randaugment, kinds=len(OPERATIONS))
        if self.augment.erase:
            drawn += self.plan.squares(epoch, size=self.dataset.crop_size)
        return tuple(values.to(self.dataset.device) for values in drawn)

    def epoch(self, number: int, start_batch: int = 0) -> Batches:
        """Iterate over (images, labels) of one epoch, from ``start_batch`` on."""
        if not 0 <= start_batch <= len(self):
            raise DataError(f"start_batch={start_batch} must be 0 to {len(self)}, the number of batches in an epoch")
        return self._batches(self.permutation(number), self.randoms(number), start_batch)

    def __iter__(self) -> Batches:
        """Iterate once in fixed order, for evaluation."""
        if self.plan.shuffle or self.augment is not None:
            raise DataError("a shuffled or augmented loader has many epochs: iterate over loader.epoch(number)")
        return self.epoch(0)

    @abstractmethod
    def _batches(self, order: Tensor, randoms: Randoms, start: int) -> Batches: ...

    def _augmented(self, images: Tensor, randoms: Sequence[Tensor] | None) -> Tensor:
        """Crop, mirror, normalise and erase whole uint8 images by their random choices."""
        size = self.dataset.crop_size
        if randoms is None or self.augment is None:
            return normalise(centre_crop(images, size=size), self.mean, self.std)
        dx, dy, flips, *rest = randoms
        if self.augment.resized_crop:
            height, width, *rest = rest
            cropped = resized_crop(images, dx, dy, flips, (height, width), size=size)
        else:
            cropped = random_crop(images, dx, dy, flips, size=size, padding=self.padding)
        count = self.augment.randaugment
        for choices, magnitudes in zip(rest[:count], rest[count : 2 * count], strict=True):
            cropped = random_operation(cropped, choices, magnitudes)
        normalised = normalise(cropped, self.mean, self.std)
        squares = rest[2 * count :]
        return erase_squares(normalised, *squares, side=self.augment.erase) if squares else normalised


class Loader(BaseLoader[Dataset]):
    """The :class:`BaseLoader` of a data set; batches are made on its device.

    Of a :class:`FolderDataset` it is a :class:`FolderLoader`, which decodes image files.

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

    if not TYPE_CHECKING:

        def __new__(cls, *given: Any, **settings: Any) -> BaseLoader:
            """Create the loader that suits the data set; a copy gives none."""
            if given and isinstance(given[0], FolderDataset):
                from equalbits.data.image_folder_loader import FolderLoader  # which imports this module

                return FolderLoader(*given, **settings)
            return super().__new__(cls)

    def with_seed(self, seed: int) -> "Loader":
        """Return a loader with another seed; the images are shared, not copied."""
        other = copy(self)
        other.plan = replace(self.plan, seed=seed)
        return other

    def permutation(self, epoch: int) -> Tensor:
        """Return the image indices of an epoch on the device."""
        return super().permutation(epoch).to(self.dataset.device)

    def pick(self, indices: Tensor, randoms: Sequence[Tensor] | None) -> tuple[Tensor, Tensor]:
        """Return the batch of these images with these random choices, made on the device alone."""
        return self._augmented(self.dataset.images[indices], randoms), self.dataset.labels[indices]

    def _batches(self, order: Tensor, randoms: Randoms, start: int) -> Batches:
        for batch, size in enumerate(self.sizes[start:], start):
            yield self.pick(order[batch, :size], [values[batch, :size] for values in randoms] if randoms else None)
