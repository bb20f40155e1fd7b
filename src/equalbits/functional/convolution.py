"""Convolutions as matrix products, where a GPU's convolution kernels do badly: images of few channels, 1×1 kernels."""

import math

from torch import Tensor
from torch.nn import functional as nnf

_FEW = 64  # values that one pixel of the output sees; more would make the patches larger than what they replace
_ALIGNED = 8  # a matrix product wants rows of whole 16 bytes


def convolve(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, *, stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """As ``torch.nn.functional.conv2d`` without groups or dilation, by whichever way is quick on the device.

    On a GPU the first layer of a net for small images is a product of its patches with the filters (nothing flows
    back to the images), and a 1×1 convolution is a product of its pixels. Elsewhere torch's convolution serves.

    >>> import torch
    >>> convolve(torch.ones(1, 3, 4, 4), torch.ones(2, 3, 3, 3), None, stride=(1, 1), padding=(1, 1))[0, 0, 0]
    tensor([12., 18., 18., 12.])
    """
    if inputs.device.type == "cuda" and weight.shape[2:] == (1, 1) and padding == (0, 0):
        return by_pixels(inputs, weight, bias, stride=stride)
    few = math.prod(weight.shape[1:]) <= _FEW and not inputs.requires_grad
    if inputs.device.type == "cuda" and few:
        return by_patches(inputs, weight, bias, stride=stride, padding=padding)
    return nnf.conv2d(inputs, weight, bias, stride, padding)


def by_pixels(inputs: Tensor, weight: Tensor, bias: Tensor | None, *, stride: tuple[int, int]) -> Tensor:
    """A 1×1 convolution as one matrix product; the result lies in memory as ``channels_last``."""
    seen = inputs.permute(0, 2, 3, 1)[:, :: stride[0], :: stride[1]]  # sliced last, so that the gradient lies so, too
    return nnf.linear(seen, weight.flatten(1), bias).permute(0, 3, 1, 2)


def by_patches(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, *, stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """Any convolution as the product of all patches with the filters; the result lies as ``channels_last``."""
    height, width = weight.shape[2:]
    framed = nnf.pad(inputs, (padding[1], padding[1], padding[0], padding[0]))
    patches = framed.unfold(2, height, stride[0]).unfold(3, width, stride[1])  # (image, channel, y, x, row, column)
    patches = patches.permute(0, 2, 3, 1, 4, 5).flatten(3)  # (image, y, x, connection)
    rest = -patches.shape[-1] % _ALIGNED
    filters = nnf.pad(weight.flatten(1), (0, rest))
    return nnf.linear(nnf.pad(patches, (0, rest)), filters, bias).permute(0, 3, 1, 2)
