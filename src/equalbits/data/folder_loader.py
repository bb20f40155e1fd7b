"""Batches of image files: decoded in worker processes, then cropped, mirrored and normalised on the device."""

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
    BoxRandoms,
    Randoms,
    Squares,
    centre_crop,
    erase_squares,
    random_crop,
    resized_crop,
)
from equalbits.data.decoded import decode_whole
from equalbits.data.folder import Decoding, decode_image
from equalbits.data.loader import Loader, check_erase, check_fixed, check_start
from equalbits.data.plan import Plan
from equalbits.data.records import DataError, FolderDataset

_hiding = threading.Lock()


class FolderLoader:
    """The :class:`~equalbits.data.Loader` of a :class:`FolderDataset`: same calls, same promises.

    ``workers`` processes decode ahead, at most one for each core (0: this process does it). They are started anew, not
    forked from a process that may hold a GPU, and without the caller's script. They stay for the next epoch.
    """

    def __init__(
        self,
        dataset: FolderDataset,
        *,
        batch_size: int,
        shuffle: bool = False,
        augment: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        erase: int = 0,
        decoding: Decoding | None = None,
        workers: int = 4,
    ) -> None:
        if importlib.util.find_spec("PIL") is None:
            raise DataError(f"image folders need Pillow: {install_hint('images')}")
        if workers < 0:
            raise DataError(f"workers={workers} must be 0 or more")
        self.dataset = dataset
        self.augment = augment
        self.decoding = decoding or Decoding()
        check_erase(erase, augment=augment, side=self.decoding.crop)
        self.erase = erase
        self.plan = Plan(len(dataset), batch_size, shuffle, seed, rank, world_size, drop_last)
        self.mean = torch.tensor(dataset.mean, device=dataset.device)
        self.std = torch.tensor(dataset.std, device=dataset.device)
        self._queue = _Queue()
        self._decoded = _start(self._queue, self.decoding, min(workers, _cores()), pin=dataset.device.type == "cuda")

    def __len__(self) -> int:
        return len(self.plan.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many images this rank holds in each batch; all ``batch_size`` but perhaps the last."""
        return self.plan.sizes

    def permutation(self, epoch: int) -> Tensor:
        """The images of an epoch, int64 (batch, image) on the CPU; a smaller last batch ends in repeats."""
        return self.plan.permutation(epoch)

    def randoms(self, epoch: int) -> tuple[Tensor, ...] | None:
        """The random choices of an epoch, each (batch, image, ...) on the device; None without augmentation.

        They are a :class:`Randoms` or :class:`BoxRandoms`; with ``erase`` the values of :class:`Squares` follow.
        """
        if not self.augment:
            return None
        device, size = self.dataset.device, self.decoding.crop
        drawn: Randoms | BoxRandoms
        if self.decoding.random == "resized-crop":
            drawn = BoxRandoms(*(values.to(device) for values in self.plan.boxes(epoch)))
        else:
            windows = self.plan.windows(epoch, offsets=self.decoding.resize - size + 1)
            drawn = Randoms(*(values.to(device) for values in windows))
        if not self.erase:
            return drawn
        return (*drawn, *(values.to(device) for values in self.plan.squares(epoch, size=(size, size))))

    def epoch(self, number: int, start_batch: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over (images, labels) of one epoch, from ``start_batch`` on; it ends any earlier iteration."""
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
        """What the workers decode; where one has died, a line in place of torch's story."""
        try:
            with _without_script():
                decoded = iter(self._decoded)
            yield from decoded
        except (RuntimeError, OSError, EOFError) as error:  # it was noticed missing, or when it was spoken to
            raise DataError(
                f"{self.dataset.name}: a process that decodes images has ended ({' '.join(str(error).split())}); "
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
        return erase_squares(images, Squares(*row[-2:]), side=self.erase) if self.erase else images

    def in_memory(self) -> Loader:
        """The same batches, of images decoded once and held on the device; refused where they would not fit."""
        plan = self.plan
        return Loader(
            decode_whole(self.dataset, self.decoding, threads=_cores()),
            batch_size=plan.batch_size,
            shuffle=plan.shuffle,
            augment=self.augment,
            seed=plan.seed,
            rank=plan.rank,
            world_size=plan.world_size,
            drop_last=plan.drop_last,
            erase=self.erase,
        )

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate once over data in fixed order, as an evaluation does."""
        check_fixed(self.plan, augment=self.augment)
        return self.epoch(0)


class _Queue:
    """The batches of paths to decode. The workers outlive an epoch; what they are handed changes with it."""

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
    """Decodes the file it is asked for; a failure comes back as its line, not as a worker's traceback."""

    def __init__(self, decoding: Decoding) -> None:
        self.decoding = decoding

    def __getitem__(self, path: str) -> Tensor | str:
        try:
            with warnings.catch_warnings(action="ignore"):  # of odd tags, or a picture that is merely large
                return decode_image(path, self.decoding)
        except DataError as error:
            return str(error)


def _join(pictures: list[Tensor | str]) -> Tensor | str:
    failed = [picture for picture in pictures if isinstance(picture, str)]
    return failed[0] if failed else torch.stack([picture for picture in pictures if isinstance(picture, Tensor)])


def _begin(worker: int) -> None:
    """Leave Ctrl-C, which a terminal sends to every process, to the one that trains: it may need a batch more.

    But end with it, also when it is killed: torch looks after the process that started this one, which is another.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)


@contextmanager
def _without_script() -> Iterator[None]:
    """Start processes that do not run the caller's script first: one without a guard would train again in each.

    multiprocessing takes the script from these two names, and has no argument for it.
    """
    with _hiding:
        script = vars(sys.modules["__main__"])
        kept: dict[str, object] = {name: script.pop(name) for name in ("__file__", "__spec__") if name in script}
        script["__spec__"] = None
        try:
            yield
        finally:
            script.update(kept)


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start(queue: _Queue, decoding: Decoding, workers: int, *, pin: bool) -> DataLoader[Tensor | str]:
    ways = multiprocessing.get_all_start_methods()
    return DataLoader(
        _Decoder(decoding),
        batch_sampler=queue,
        num_workers=workers,
        collate_fn=_join,
        pin_memory=pin,
        persistent_workers=workers > 0,
        multiprocessing_context=("forkserver" if "forkserver" in ways else "spawn") if workers else None,
        worker_init_fn=_begin,
        generator=torch.Generator(),  # its own, so that iterating leaves the global one alone
    )
