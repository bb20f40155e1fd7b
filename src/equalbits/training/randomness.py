"""Randomness that hangs on the seed and the step alone: torch's, Python's and numpy's, lent for a training."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn


@contextmanager
def own_randomness(model: nn.Module) -> Iterator[None]:
    """Leave the caller's random state as it was found."""
    devices = {parameter.device.index for parameter in model.parameters() if parameter.is_cuda}
    pythons, numpys = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=sorted(index or 0 for index in devices)):
            yield
    finally:
        random.setstate(pythons)
        np.random.set_state(numpys)


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed what a net on this device draws from, as ``torch.manual_seed`` does, which is too slow to ask at each step.

    That also asks every kind of device that is not there, and notes the whole call stack for each: a quarter of a
    millisecond where it was measured, about as long as a GPU takes for a small net's step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        number = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[number].manual_seed(seed)
    elif device.type != "cpu":
        torch.manual_seed(seed)


def seed_others(seed: int) -> None:
    """Seed what the images of someone's own loader may be changed by: Python's and numpy's random numbers."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


def mixed(seed: int, step: int, rank: int) -> int:
    """A seed for this step of this process, far from those of its neighbours."""
    return (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + rank * 0x94D049BB133111EB) % 2**63
