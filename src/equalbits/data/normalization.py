"""Mean and standard deviation that normalize the pixels of each data set."""

from collections.abc import Mapping
from typing import NamedTuple


class Statistics(NamedTuple):
    """Mean and standard deviation of each channel, of pixels scaled to [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


STATISTICS: Mapping[str, Statistics] = {
    "fashion": Statistics((0.286,), (0.353,)),
    "cifar10": Statistics((0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
    "cifar10-resnet18": Statistics((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": Statistics((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "imagenet": Statistics((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""Normalisation by name. Recipes of shallow nets use ``cifar10``, those of ResNet-18 ``cifar10-resnet18``."""
