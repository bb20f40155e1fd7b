"""Convolution of packed ±1 inputs with scaled ±1 weights, without their floating-point form.

A GPU reads a sixteenth of the memory of a bfloat16 input. Sums are whole and rounded once, so they equal those of
torch's convolution to the bit wherever that accumulates in float32.
"""

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from equalbits.functional.gradients_from_bits import ANY_LAYOUT
from equalbits.functional.packed_bits import BitLayout
from equalbits.functional.unmeasured import SWITCHES


def convolve_bits(packed: Tensor, weight: Tensor, shape: Sequence[int], form: tuple[Sequence[int], ...]) -> Tensor:
    """Convolve an input of ``shape``, packed as (position, byte of 8 channels); the result is ``channels_last``.

    The weights of a filter have one magnitude. ``form`` is stride and padding.

    >>> packed = torch.tensor([[1], [0], [1]], dtype=torch.uint8)  # +1 −1 +1 in one channel
    >>> convolve_bits(packed, torch.full((1, 1, 1, 2), 0.5), (1, 1, 1, 3), ((1, 1), (0, 0)))
    tensor([[[[0., 0.]]]])
    """
    convolution = _convolve_op if torch.compiler.is_compiling() else _convolve
    outputs: Tensor = convolution(packed, weight, list(shape), *map(list, form))
    return outputs


def convolve_by_unpacking(
    packed: Tensor, weight: Tensor, shape: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """Compute :func:`convolve_bits` by torch's convolution: the slow twin."""
    signs = BitLayout(tuple(shape), channels_last=True).unpack(packed, weight.dtype)
    outputs = torch.conv2d(signs, weight, None, stride, padding)
    return outputs.contiguous(memory_format=torch.channels_last)


def _convolve(
    packed: Tensor, weight: Tensor, shape: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    gpu = _gpu_for(weight) if weight.shape[1] % 8 == 0 else None
    if gpu is None:
        return convolve_by_unpacking(packed, weight, shape, stride, padding)
    outputs: Tensor = gpu.convolve(packed, weight, shape, (stride, padding), unpack_first=SWITCHES.unpack_first)
    return outputs


def _gpu_for(weight: Tensor) -> ModuleType | None:
    """Import the kernel when first needed; None without Triton, on another device, or for another dtype."""
    if weight.device.type != "cuda" or weight.dtype not in (torch.bfloat16, torch.float16):
        return None
    try:
        from equalbits.functional.kernels import bit_convolution as gpu
    except ImportError:
        return None
    return gpu


_convolve_op = torch.library.custom_op(
    "equalbits::convolve_bits",
    _convolve,
    schema="(Tensor packed, Tensor weight, SymInt[] shape, SymInt[] stride, SymInt[] padding) -> Tensor",
    **ANY_LAYOUT,
)


@_convolve_op.register_fake
def _(packed: Tensor, weight: Tensor, shape: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    sizes = [(shape[i + 2] + 2 * padding[i] - weight.shape[i + 2]) // stride[i] + 1 for i in range(2)]
    outputs = weight.new_empty((shape[0], weight.shape[0], *sizes))
    return outputs.contiguous(memory_format=torch.channels_last)
