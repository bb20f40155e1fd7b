"""Half-wave Gaussian quantizer (Cai et al. 2017): 0, or one of a few positive values."""

import math

import torch
from torch import Tensor

from equalbits import functional as F
from equalbits.nn.quantizer import InputQuantizer
from equalbits.nn.registry import register_input_quantizer

#: Positive levels by number of bits, with the least squared error for a standard normal input. One bit has the mean of
#: the positive half; the levels of two bits are evenly spaced, as the authors chose them.
HWGQ_LEVELS = {1: (math.sqrt(2 / math.pi),), 2: (0.538, 1.076, 1.614)}


def hwgq(inputs: Tensor, bits: int = 1) -> Tensor:
    """Return 0 for inputs up to 0, else the nearest positive level.

    One bit has the levels 0 and 0.798, two bits 0, 0.538, 1.076 and 1.614; every positive input gets a positive level.
    The levels assume inputs of unit variance, so a batch norm must precede. The gradient is that of a clipped ReLU: it
    passes where ``0 < x ≤`` the largest level.

    >>> hwgq(torch.tensor([-1.0, 0.1, 0.9, 9.0]), bits=2)
    tensor([0.0000, 0.5380, 1.0760, 1.6140])
    """
    reals = inputs.detach()
    return F.surrogate(inputs, hwgq_values(reals, bits), (reals > 0) & (reals <= HWGQ_LEVELS[bits][-1]))


def hwgq_values(reals: Tensor, bits: int = 1) -> Tensor:
    """Return the values of :func:`hwgq`, without gradient."""
    levels = HWGQ_LEVELS[bits]
    values = torch.zeros_like(reals)
    for lower, level in zip((0.0, *levels), levels, strict=False):
        threshold = (lower + level) / 2 if lower else 0.0
        values = torch.where(reals > threshold, level, values)
    return values


@register_input_quantizer("hwgq")
class HWGQ(InputQuantizer):
    """Half-wave Gaussian quantizer in 1 or 2 ``bits``. It replaces a ReLU behind a batch norm."""

    def __init__(self, bits: int = 1) -> None:
        super().__init__()
        if bits not in HWGQ_LEVELS:
            raise ValueError(f"bits={bits} is not known: the half-wave quantizer has 1 or 2")
        self.bits = bits

    def values(self, inputs: Tensor) -> Tensor:
        """Quantize by :func:`hwgq_values`."""
        return hwgq_values(inputs, self.bits)

    def forward(self, inputs: Tensor) -> Tensor:
        """Quantize by :func:`hwgq`."""
        return hwgq(inputs, self.bits)
