"""Shared by several tests of exports."""

import pytest
import torch
from torch import nn

from equalbits.nn import BinaryConv2d, BinaryConvTranspose2d, SignActivation


@pytest.fixture
def decoder() -> nn.Module:
    """Transposed convolutions, other sizes and padding by what is there, behind signs and before them."""
    torch.manual_seed(0)
    signs = {"input_quantizer": SignActivation()}
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1, padding_mode="reflect"),
        nn.Upsample(scale_factor=2),
        BinaryConv2d(8, 8, 3, padding=1, padding_mode="circular", **signs),
        nn.Upsample(size=(9, 7), mode="bilinear"),
        BinaryConvTranspose2d(8, 6, 3, stride=2, padding=1, output_padding=1, **signs),
        nn.AdaptiveMaxPool2d((5, 4)),
    )
