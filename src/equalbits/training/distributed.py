"""Several processes started by ``torchrun``: ranks, reductions, and a clear error if one of them dies."""

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
    """Another process of the run has died, and the run with it."""


@dataclass(frozen=True)
class ProcessRank:
    """Rank of this process among those of the run."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @property
    def is_writer(self) -> bool:
        """True in rank 0, the only process that writes files and reports."""
        return self.rank == 0


def current_rank() -> ProcessRank:
    """Return the rank of this process in the ``torch.distributed`` process group, else that of a single process."""
    if not (dist.is_available() and dist.is_initialized()):
        return ProcessRank()
    return ProcessRank(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", "0")))


def rank_from_env() -> ProcessRank:
    """Return the rank of this process from ``torchrun``'s environment variables, before there is a process group."""
    rank, world_size, local_rank = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    return ProcessRank(rank, world_size, local_rank) if world_size > 1 and "RANK" in os.environ else ProcessRank()


@contextmanager
def process_group(device: str) -> Iterator[ProcessRank]:
    """Join the process group of ``torchrun`` inside the ``with``; do nothing alone, or if there is one already."""
    if dist.is_available() and dist.is_initialized():
        yield current_rank()
        return
    from_env = rank_from_env()
    if from_env.world_size == 1:
        yield from_env
        return
    backend = "nccl" if device.startswith("cuda") else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(from_env.local_rank)
    dist.init_process_group(backend, timeout=timedelta(minutes=10))
    try:
        yield current_rank()
    except PeerLostError:
        # torchrun now terminates all processes. This one exits by itself, after printing the error.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise
    else:
        # Exit together: a group's threads may still answer a peer while the interpreter shuts down. The work is done,
        # so a peer that has already exited is no error.
        with suppress(RuntimeError):
            dist.barrier()
    finally:
        dist.destroy_process_group()


@contextmanager
def explain_lost_peer(checkpoint: Path | None) -> Iterator[None]:
    """Turn torch's error on a peer that died or does not answer into one line with the way to resume."""
    try:
        yield
    except RuntimeError as error:
        # NCCL and the store raise DistError; Gloo raises a bare RuntimeError.
        lost = isinstance(error, dist.DistError) or "gloo/transport" in str(error)
        if current_rank().world_size == 1 or not lost:
            raise
        way_out = "nothing was saved yet: start again"
        if checkpoint is not None and checkpoint.exists():
            way_out = f"the last checkpoint is {checkpoint}: resume with the same command"
        reason = str(error).strip().split("\n")[0]
        raise PeerLostError(f"another process of this run has ended or does not answer ({reason}); {way_out}") from None


def summed(values: Tensor) -> Tensor:
    """Return the sum over all processes; the values themselves if there is one."""
    if current_rank().world_size == 1:
        return values
    total = values.clone()
    dist.all_reduce(total)
    return total


def largest(values: list[float], device: torch.device) -> list[float]:
    """Return the elementwise maximum over all processes, so that all act on the same values."""
    if current_rank().world_size == 1:
        return values
    shared = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    found: list[float] = shared.tolist()
    return found


def weight_of_part(images: int, device: torch.device) -> Tensor | float:
    """Return the weight of this process's part of a batch in the average of gradients over processes.

    Each process takes the mean over its own images. The average of those means is the batch's mean only if all parts
    have the same size, and an epoch's last batch need not divide evenly: weight each part by its share of the images.
    """
    world_size = current_rank().world_size
    if world_size == 1:
        return 1.0
    return images * world_size / summed(torch.tensor(float(images), device=device))


def wait_for_all() -> None:
    """Wait until every process is here."""
    if current_rank().world_size > 1:
        dist.barrier()


def share_buffers(model: nn.Module) -> None:
    """Copy rank 0's buffers to every process, so that all score the same model (batch norm's running means)."""
    if current_rank().world_size > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
