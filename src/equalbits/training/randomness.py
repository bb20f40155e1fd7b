"""Random state that depends on the seed and the step alone, for torch, Python and numpy."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn


@contextmanager
def preserved_rng(model: nn.Module) -> Iterator[None]:
    """Restore the caller's random state afterwards."""
    devices = {parameter.device.index for parameter in model.parameters() if parameter.is_cuda}
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=sorted(index or 0 for index in devices)):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def seed_generators(seed: int, device: torch.device, *, for_loader: bool) -> None:
    """Seed torch's generators, and for a user's loader also the global ones of Python and numpy.

    ``torch.manual_seed`` also visits every kind of device that is absent, and formats the call stack for each: a
    quarter of a millisecond, about as long as a GPU takes for a small net's step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        number = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[number].manual_seed(seed)
    elif device.type != "cpu":
        torch.manual_seed(seed)
    if for_loader:
        random.seed(seed)
        np.random.seed(seed % 2**32)


def step_seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of this step in this process, far from those of neighbouring steps and ranks."""
    return (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + rank * 0x94D049BB133111EB) % 2**63
