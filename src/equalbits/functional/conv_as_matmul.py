"""Convolutions as matrix products, where GPU convolution kernels are slow: few input channels, or 1×1 kernels."""

import math

from torch import Tensor
from torch.nn import functional as nnf

from equalbits.functional.estimators import ScaledSymbols, with_gradient
from equalbits.functional.packed_bits import SignBits
from equalbits.functional.products_of_signs import ConvSettings, convolve_signs, linear_of_signs

_SMALL_PATCH = 64  # largest patch; with larger ones the unfolded input would take more memory traffic than it saves
_ALIGNMENT = 8  # matrix products need rows of a multiple of 16 bytes


def convolve(
    inputs: Tensor,
    weight: Tensor | ScaledSymbols,
    bias: Tensor | None,
    *,
    stride: tuple[int, int],
    padding: tuple[int, int],
    signs: bool | SignBits = False,
) -> Tensor:
    """Compute ``torch.nn.functional.conv2d`` without groups or dilation, by the fastest way on the device.

    On a GPU the first layer of a net for small images is a product of patches and filters (its input needs no
    gradient), and a 1×1 convolution is a product of pixels and filters. Otherwise it is torch's convolution. With
    ``signs``, True or their bits, the inputs are ±1, and the backward pass keeps them as bits.

    >>> import torch
    >>> convolve(torch.ones(1, 3, 4, 4), torch.ones(2, 3, 3, 3), None, stride=(1, 1), padding=(1, 1))[0, 0, 0]
    tensor([12., 18., 18., 12.])
    """
    shape = weight.values.shape if isinstance(weight, ScaledSymbols) else weight.shape
    small_patch = math.prod(shape[1:]) <= _SMALL_PATCH and not inputs.requires_grad
    pixelwise = shape[2:] == (1, 1) and padding == (0, 0)
    as_matmul = inputs.device.type == "cuda" and (pixelwise or small_patch)
    if signs and not as_matmul:
        bits = signs if isinstance(signs, SignBits) else None
        return convolve_signs(inputs, weight, bias, ConvSettings(stride, padding), bits=bits)
    weight = with_gradient(weight)
    if not as_matmul:
        return nnf.conv2d(inputs, weight, bias, stride, padding)
    if pixelwise:
        return conv1x1_as_matmul(inputs, weight, bias, stride=stride, signs=bool(signs))
    return conv_as_matmul(inputs, weight, bias, stride=stride, padding=padding)


def conv1x1_as_matmul(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, *, stride: tuple[int, int], signs: bool = False
) -> Tensor:
    """Compute a 1×1 convolution as one matrix product; the result is ``channels_last``."""
    pixels = inputs.permute(0, 2, 3, 1)[:, :: stride[0], :: stride[1]]  # sliced last, so the gradient has this layout
    product = linear_of_signs if signs else nnf.linear
    return product(pixels, weight.flatten(1), bias).permute(0, 3, 1, 2)


def conv_as_matmul(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, *, stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """Compute a convolution as the product of all patches and the filters; the result is ``channels_last``."""
    height, width = weight.shape[2:]
    padded = nnf.pad(inputs, (padding[1], padding[1], padding[0], padding[0]))
    patches = padded.unfold(2, height, stride[0]).unfold(3, width, stride[1])  # (image, channel, y, x, row, column)
    patches = patches.permute(0, 2, 3, 1, 4, 5).flatten(3)  # (image, y, x, connection)
    rest = -patches.shape[-1] % _ALIGNMENT
    filters = nnf.pad(weight.flatten(1), (0, rest))
    return nnf.linear(nnf.pad(patches, (0, rest)), filters, bias).permute(0, 3, 1, 2)
