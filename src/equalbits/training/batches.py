"""Training batches: the interface that the loop needs, and an adapter for plain loaders such as torch's."""

from collections.abc import Collection, Iterator, Sequence, Sized
from copy import copy
from itertools import chain, islice
from typing import Protocol, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from equalbits.training import distributed


class Batches(Protocol):
    """Training data: a number of batches, and the batches of any epoch from any batch on."""

    def __len__(self) -> int: ...

    def epoch(self, number: int, start_batch: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over (images, labels) of one epoch."""
        ...


class DeviceBatches(Batches, Protocol):
    """Batches that live on the device and are picked there by index, as a CUDA graph needs."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of images in each batch: at most the length of a row of :meth:`permutation`."""
        ...

    def permutation(self, epoch: int) -> Tensor:
        """Return the image indices of an epoch, (batch, image)."""
        ...

    def randoms(self, epoch: int) -> Sequence[Tensor] | None:
        """Return the random choices of an epoch's augmentation, each (batch, image)."""
        ...

    def pick(self, indices: Tensor, randoms: Sequence[Tensor] | None) -> tuple[Tensor, Tensor]:
        """Return the batch of these images with these random choices."""
        ...


PlainLoader = Collection[tuple[Tensor, Tensor]] | DataLoader[object]
AnyBatches = Batches | PlainLoader


def check_iterable(loader: object) -> None:
    """Raise for a data set given in place of its batches."""
    if not any(hasattr(loader, name) for name in ("__iter__", "__getitem__", "epoch")):
        kind = type(loader).__name__
        raise TypeError(f"batches is a {kind}: wrap it in a loader, as in eb.Loader(dataset, batch_size=128)")


def as_batches(loader: AnyBatches) -> Batches:
    """Return the loader itself if it has epochs, else an adapter that adds them."""
    try:
        len(loader)
    except TypeError:
        raise TypeError(
            f"batches of type {type(loader).__name__} have no length: give a DataLoader of a data set with a length, "
            "or a list of batches, which can be iterated again"
        ) from None
    check_iterable(loader)
    return cast("Batches", loader) if hasattr(loader, "epoch") else _LoaderEpochs(loader)


class _LoaderEpochs:
    """A plain loader as :class:`Batches`: each epoch is another pass over it.

    The batches of such a loader depend on torch's random state. Its first batch is fetched, and batches before
    ``start_batch`` are skipped, as soon as :meth:`epoch` is called: a caller who seeds right before that gets the same
    epoch again. Generators of the loader are seeded likewise. Persistent workers are turned off, since they would
    continue the random sequence of the epochs before.
    """

    def __init__(self, loader: PlainLoader) -> None:
        self.loader = loader
        if isinstance(loader, DataLoader) and loader.persistent_workers:
            self.loader = copy(loader)
            vars(self.loader)["persistent_workers"] = False

    def __len__(self) -> int:
        return len(self.loader)

    def epoch(self, number: int, start_batch: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        set_epoch = getattr(getattr(self.loader, "sampler", None), "set_epoch", None)
        if set_epoch is not None:  # a DistributedSampler shuffles by it
            set_epoch(number)
        for generator in _generators(self.loader):
            generator.manual_seed((torch.initial_seed() + 1) % 2**63)  # unlike the net's own seed
        fetched = iter(self.loader)
        batches = chain(list(islice(fetched, 1)), fetched)
        for _ in range(start_batch):
            next(batches, None)
        return batches


def _generators(loader: object) -> list[torch.Generator]:
    """Return the generators given to a DataLoader and its samplers.

    With several processes those of samplers are left out: a sampler that shards images among processes is seeded alike
    in all of them, or differently on purpose.
    """
    batch_sampler = getattr(loader, "batch_sampler", None)
    samplers = (getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    of_samplers = [getattr(sampler, "generator", None) for sampler in samplers]
    own = getattr(loader, "generator", None)
    alone = distributed.current_rank().world_size == 1
    found = [own, *of_samplers] if alone else [own] if own not in of_samplers else []
    return [generator for generator in found if isinstance(generator, torch.Generator)]


def images_and_labels(batch: object, name: str) -> tuple[Tensor, Tensor]:
    """Split a batch into images and int64 labels; raise unless there is one class number per image."""
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not isinstance(batch[0], Tensor):
        kind = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, Sized) else type(batch).__name__
        raise ValueError(f"{name} is a {kind}: give a loader of (images, labels), images as one tensor")
    images, given = batch
    try:
        labels = torch.as_tensor(given)
        found = f"{labels.dtype} of shape {tuple(labels.shape)}"
    except (ValueError, TypeError, RuntimeError):  # strings, or rows of different lengths
        labels, found = torch.empty(0), f"a {type(given).__name__} that is not a tensor of numbers"
    if labels.shape != images.shape[:1] or labels.is_floating_point() or labels.is_complex():
        raise ValueError(
            f"the labels of {name} are {found}, beside images of shape {tuple(images.shape)}: give each image the "
            "number of its class, as in torch.tensor([3, 0])"
        )
    if labels.device.type == "cpu" and labels.numel() and int(labels.min()) < 0:  # torch's loss leaves out -100
        raise ValueError(
            f"label {int(labels.min())} of {name} is not a class: number classes from 0, and leave out other images"
        )
    return images, labels.long()
