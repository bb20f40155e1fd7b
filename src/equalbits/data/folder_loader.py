"""Batches of image files: decoded by worker processes, then cropped, mirrored and normalised on the device."""

import importlib.util
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from equalbits._extras import install_hint
from equalbits.data.augment import (
    Augmentation,
    BoxRandoms,
    Randoms,
    Squares,
    centre_crop,
    erase_squares,
    random_crop,
    resized_crop,
)
from equalbits.data.decoded import decode_whole
from equalbits.data.folder import decode_image
from equalbits.data.loader import Loader, as_augmentation, check_fixed, check_start
from equalbits.data.plan import Plan, Shard
from equalbits.data.records import DataError, Decoding, FolderDataset

_main_module_lock = threading.Lock()


class FolderLoader:
    """The :class:`~equalbits.data.Loader` of a :class:`FolderDataset`, with the same arguments and methods.

    ``dataset.decoding`` says how files are decoded, and by how many worker processes. These are spawned, not forked
    from a process that may hold a GPU, do not import the caller's script, and persist across epochs.
    """

    def __init__(
        self,
        dataset: FolderDataset,
        *,
        batch_size: int,
        shuffle: bool = False,
        augment: bool | Augmentation = False,
        seed: int = 0,
        shard: Shard | None = None,
    ) -> None:
        if importlib.util.find_spec("PIL") is None:
            raise DataError(f"image folders need Pillow: {install_hint('images')}")
        self.dataset, self.decoding = dataset, dataset.decoding
        self.augment = as_augmentation(augment, side=self.decoding.crop)
        self.plan = Plan(len(dataset), batch_size, shuffle, seed, shard or Shard())
        self.mean = torch.tensor(dataset.mean, device=dataset.device)
        self.std = torch.tensor(dataset.std, device=dataset.device)
        self._queue = _Queue()
        self._decoded = _decode_in_workers(self._queue, self.decoding, pin=dataset.device.type == "cuda")

    def __len__(self) -> int:
        return len(self.plan.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of images of this rank in each batch; all ``batch_size`` but perhaps the last."""
        return self.plan.sizes

    def permutation(self, epoch: int) -> Tensor:
        """Return the image indices of an epoch, int64 (batch, image), on the CPU; a smaller last row is padded."""
        return self.plan.permutation(epoch)

    def randoms(self, epoch: int) -> tuple[Tensor, ...] | None:
        """Draw the random choices of an epoch, each (batch, image, ...), on the device; None without augmentation.

        They are a :class:`Randoms` or :class:`BoxRandoms`; if squares are erased, those of :class:`Squares` follow.
        """
        if self.augment is None:
            return None
        device, size = self.dataset.device, self.decoding.crop
        drawn: Randoms | BoxRandoms
        if self.decoding.random == "resized-crop":
            drawn = BoxRandoms(*(values.to(device) for values in self.plan.boxes(epoch)))
        else:
            windows = self.plan.windows(epoch, offsets=self.decoding.resize - size + 1)
            drawn = Randoms(*(values.to(device) for values in windows))
        if not self.augment.erase:
            return drawn
        return (*drawn, *(values.to(device) for values in self.plan.squares(epoch, size=(size, size))))

    def epoch(self, number: int, start_batch: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over (images, labels) of one epoch, from ``start_batch`` on; this ends an earlier iteration."""
        check_start(start_batch, len(self))
        return self._batches(self.permutation(number), self.randoms(number), start_batch)

    def _batches(
        self, order: Tensor, randoms: tuple[Tensor, ...] | None, start: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        rows = [order[batch, :size] for batch, size in enumerate(self.sizes)]
        mine = self._queue.fill([[self.dataset.paths[index] for index in row.tolist()] for row in rows[start:]])
        device = self.dataset.device
        for batch, pictures in enumerate(self._fetched(), start):
            if isinstance(pictures, str):
                raise DataError(pictures)
            images = self._finish(pictures.to(device, non_blocking=True), randoms, batch)
            yield images, self.dataset.labels[rows[batch]].to(device, non_blocking=True)
            self._queue.check(mine)

    def _fetched(self) -> Iterator[Tensor | str]:
        """Iterate over the decoded batches; raise in one line if a worker has died."""
        try:
            with _without_script():
                decoded = iter(self._decoded)
            yield from decoded
        except (RuntimeError, OSError, EOFError) as error:  # depending on when torch notices
            raise DataError(
                f"{self.dataset.name}: a worker that decodes images has died ({' '.join(str(error).split())}); "
                "try again, with data.workers=0 if memory is short"
            ) from None

    def _finish(self, pictures: Tensor, randoms: tuple[Tensor, ...] | None, batch: int) -> Tensor:
        size = self.decoding.crop
        if randoms is None:
            return centre_crop(pictures, self.mean, self.std, size=size)
        row = [values[batch, : len(pictures)] for values in randoms]
        if self.decoding.random == "resized-crop":
            images = resized_crop(pictures, BoxRandoms(*row[:2]), self.mean, self.std, size=size)
        else:
            images = random_crop(pictures, Randoms(*row[:3]), self.mean, self.std, size=size)
        erase = self.augment.erase if self.augment else 0
        return erase_squares(images, Squares(*row[-2:]), side=erase) if erase else images

    def in_memory(self) -> Loader:
        """Return the same batches from images decoded once and held on the device; raise if they do not fit."""
        plan = self.plan
        return Loader(
            decode_whole(self.dataset, threads=_cores()),
            batch_size=plan.batch_size,
            shuffle=plan.shuffle,
            augment=self.augment or False,
            seed=plan.seed,
            shard=plan.shard,
        )

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate once in fixed order, for evaluation."""
        check_fixed(self.plan, augmented=self.augment is not None)
        return self.epoch(0)


class _Queue:
    """Batches of paths to decode, refilled for every epoch, since the workers persist."""

    def __init__(self) -> None:
        self._batches: Sequence[list[str]] = ()
        self._turn = 0

    def fill(self, batches: Sequence[list[str]]) -> int:
        self._batches = batches
        self._turn += 1
        return self._turn

    def check(self, turn: int) -> None:
        if turn != self._turn:
            raise DataError(
                "this iteration ended when a later one began on the same loader; make a second FolderLoader"
            )

    def __iter__(self) -> Iterator[list[str]]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


class _Decoder(torch.utils.data.Dataset[Tensor | str]):
    """Decode the requested file; return an error as its text, not as a worker's traceback."""

    def __init__(self, decoding: Decoding) -> None:
        self.decoding = decoding

    def __getitem__(self, path: str) -> Tensor | str:
        try:
            with warnings.catch_warnings(action="ignore"):  # Pillow warns of odd tags and of large images
                return decode_image(path, self.decoding)
        except DataError as error:
            return str(error)


def _join(pictures: list[Tensor | str]) -> Tensor | str:
    failed = [picture for picture in pictures if isinstance(picture, str)]
    return failed[0] if failed else torch.stack([picture for picture in pictures if isinstance(picture, Tensor)])


def _init_worker(worker: int) -> None:
    """Ignore Ctrl-C, which a terminal sends to every process: the training process may need another batch.

    Exit with the training process, even if it is killed: torch watches only the fork server, which is another.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)


@contextmanager
def _without_script() -> Iterator[None]:
    """Keep new processes from importing the caller's script: one without a main guard would train again in each.

    multiprocessing finds the script by these two names, and has no option for it.
    """
    with _main_module_lock:
        script = vars(sys.modules["__main__"])
        kept: dict[str, object] = {name: script.pop(name) for name in ("__file__", "__spec__") if name in script}
        script["__spec__"] = None
        try:
            yield
        finally:
            script.update(kept)


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _decode_in_workers(queue: _Queue, decoding: Decoding, *, pin: bool) -> DataLoader[Tensor | str]:
    workers = min(decoding.workers, _cores())
    methods = multiprocessing.get_all_start_methods()
    return DataLoader(
        _Decoder(decoding),
        batch_sampler=queue,
        num_workers=workers,
        collate_fn=_join,
        pin_memory=pin,
        persistent_workers=workers > 0,
        multiprocessing_context=("forkserver" if "forkserver" in methods else "spawn") if workers else None,
        worker_init_fn=_init_worker,
        generator=torch.Generator(),  # so that iterating leaves the global one alone
    )
