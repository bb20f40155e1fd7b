"""Several processes, started by ``torchrun``: who am I, who writes, and sums over all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, nn
from torch import distributed as dist


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


@contextmanager
def process_group(device: str, *, timeout_seconds: float = 600.0) -> Iterator[Place]:
    """Join the peers that ``torchrun`` started for the time of the ``with``; alone, do nothing."""
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield Place()
        return
    backend = "nccl" if device.startswith("cuda") else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
    try:
        yield place()
    finally:
        dist.destroy_process_group()


def summed(values: Tensor) -> Tensor:
    """The sum over all processes; the values themselves where there is one."""
    if place().world_size == 1:
        return values
    total = values.clone()
    dist.all_reduce(total)
    return total


def any_of(flag: bool, device: torch.device) -> bool:
    """Whether the flag is up in any process."""
    return flag if place().world_size == 1 else bool(summed(torch.tensor(float(flag), device=device)).item())


def wait_for_all() -> None:
    """Let no process go on before every one is here."""
    if place().world_size > 1:
        dist.barrier()


def share_buffers(model: nn.Module) -> None:
    """Give every process the first one's buffers, so that all score the same model (batch norm's running means)."""
    if place().world_size > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
