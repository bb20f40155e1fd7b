"""Several processes, started by ``torchrun``: who writes, what all agree on, and what to say when one of them dies."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, nn
from torch import distributed as dist


class PeerLostError(ValueError):
    """Another process of the run is gone, and with it the run."""


@dataclass(frozen=True)
class Place:
    """This process among its peers."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @property
    def is_writer(self) -> bool:
        """Whether this process writes files and speaks: one does."""
        return self.rank == 0


def place() -> Place:
    """This process's place: as ``torch.distributed`` says once it is set up, else alone."""
    if not (dist.is_available() and dist.is_initialized()):
        return Place()
    return Place(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", "0")))


def announced_place() -> Place:
    """This process's place as ``torchrun`` announced it, known before the peers have met."""
    rank, world_size, local_rank = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    return Place(rank, world_size, local_rank) if world_size > 1 and "RANK" in os.environ else Place()


@contextmanager
def process_group(device: str, *, timeout_seconds: float = 600.0) -> Iterator[Place]:
    """Join the peers that ``torchrun`` started for the time of the ``with``; alone, or joined already, do nothing."""
    if dist.is_available() and dist.is_initialized():
        yield place()
        return
    announced = announced_place()
    if announced.world_size == 1:
        yield announced
        return
    backend = "nccl" if device.startswith("cuda") else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(announced.local_rank)
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
    try:
        yield place()
    except PeerLostError:
        # torchrun now tells everyone to end; this process does so by itself, and has something to say first.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise
    else:
        # End together: threads of the group outlive it, and one that still answers a peer must not meet Python's end.
        with suppress(RuntimeError):
            dist.barrier()
    finally:
        dist.destroy_process_group()


@contextmanager
def minding_peers(checkpoint: Path | None) -> Iterator[None]:
    """Turn torch's word on a peer that died, or does not answer, into one line that says how to go on."""
    try:
        yield
    except RuntimeError as error:
        if place().world_size == 1 or not _is_lost_contact(error):
            raise
        way = "nothing was saved yet: start again"
        if checkpoint is not None and checkpoint.exists():
            way = f"the last checkpoint is {checkpoint}: resume with the same command"
        reason = str(error).strip().split("\n")[0]
        raise PeerLostError(f"another process of this run has ended or does not answer ({reason}); {way}") from None


def _is_lost_contact(error: RuntimeError) -> bool:
    words = ("gloo/transport", "Connection closed by peer", "Connection reset by peer", "NCCL", "Timed out waiting")
    return isinstance(error, dist.DistError) or any(word in str(error) for word in words)


def summed(values: Tensor) -> Tensor:
    """The sum over all processes; the values themselves where there is one."""
    if place().world_size == 1:
        return values
    total = values.clone()
    dist.all_reduce(total)
    return total


def largest(values: list[float], device: torch.device) -> list[float]:
    """The largest over all processes of each value, so that all go on with the same ones."""
    if place().world_size == 1:
        return values
    shared = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    found: list[float] = shared.tolist()
    return found


def weight_of_part(images: int, device: torch.device) -> Tensor | float:
    """How much this process's part of a batch counts when gradients are averaged over processes.

    Each process takes the mean over its own images, and the average of those means is the batch's mean only if all
    parts are as large. The last batch of an epoch need not divide evenly: a part counts by its share of the images.
    """
    world_size = place().world_size
    if world_size == 1:
        return 1.0
    return images * world_size / summed(torch.tensor(float(images), device=device))


def wait_for_all() -> None:
    """Let no process go on before every one is here."""
    if place().world_size > 1:
        dist.barrier()


def share_buffers(model: nn.Module) -> None:
    """Give every process the first one's buffers, so that all score the same model (batch norm's running means)."""
    if place().world_size > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
