"""Batches of image files: decoded by worker processes, then cropped, mirrored and normalised on the device."""

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from equalbits.data.dataset import DataError, Decoding, FolderDataset
from equalbits.data.image_folder import cores, decode_image, decode_whole
from equalbits.data.loader import BaseLoader, Batches, Loader, Randoms

_main_module_lock = threading.Lock()


class FolderLoader(BaseLoader[FolderDataset]):
    """The :class:`BaseLoader` of a :class:`FolderDataset`; a later iteration ends an earlier one.

    ``dataset.decoding`` says how files are decoded, and by how many worker processes. These are spawned, not forked
    from a process that may hold a GPU, do not import the caller's script, and persist across epochs.
    """

    _iterations = 0

    def in_memory(self) -> Loader:
        """Return the same batches from images decoded once and held on the device; raise if they do not fit."""
        plan = self.plan
        return Loader(
            decode_whole(self.dataset),
            batch_size=plan.batch_size,
            shuffle=plan.shuffle,
            augment=self.augment or False,
            seed=plan.seed,
            shard=plan.shard,
        )

    def _batches(self, order: Tensor, randoms: Randoms, start: int) -> Batches:
        self._iterations += 1
        mine, device = self._iterations, self.dataset.device
        rows = [order[batch, :size] for batch, size in enumerate(self.sizes)]
        paths = cast("list[list[str]]", self._decoded.batch_sampler)
        paths[:] = [[self.dataset.paths[index] for index in row.tolist()] for row in rows[start:]]
        for batch, pictures in enumerate(self._fetched(), start):
            if isinstance(pictures, str):
                raise DataError(pictures)
            row = [values[batch, : len(pictures)] for values in randoms] if randoms else None
            images = self._augmented(pictures.to(device, non_blocking=True), row)
            yield images, self.dataset.labels[rows[batch]].to(device, non_blocking=True)
            if mine != self._iterations:
                raise DataError("this iteration ended when a later one began: make a second FolderLoader")

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

    @cached_property
    def _decoded(self) -> DataLoader[Tensor | str]:
        """Decoded batches; ``batch_sampler`` lists their paths, anew for every epoch, since the workers persist."""
        workers = min(self.dataset.decoding.workers, cores())
        methods = multiprocessing.get_all_start_methods()
        return DataLoader(
            _Decoder(self.dataset.decoding),
            batch_sampler=[],
            num_workers=workers,
            collate_fn=_join,
            pin_memory=self.dataset.device.type == "cuda",
            persistent_workers=workers > 0,
            multiprocessing_context=("forkserver" if "forkserver" in methods else "spawn") if workers else None,
            worker_init_fn=_init_worker,
            generator=torch.Generator(),  # so that iterating leaves the global one alone
        )


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
