"""Convolution of ±1 inputs with ±1 weights in 8 bits: exact, at half the memory traffic of bfloat16.

Training does not use it yet; ``benchmarks/gpu_low_bits.py`` measures it.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as nnf


def convolve_symbols(
    signs: Tensor,
    symbols: Tensor,
    scale: Tensor,
    *,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return ``scale · conv2d(signs, symbols)`` in ``dtype``: whole sums, scaled in float32 and rounded once.

    ``signs`` (batch, channel, …) and ``symbols`` (filter, channel, …) hold −1, 0 or +1 in one dtype, and ``scale`` is
    one float32 number on their device. On a GPU operands in FP8, INT8, float16 or bfloat16 use
    ``kernels/int8_convolution.py``, which copies operands that are not ``channels_last``. The result is
    ``channels_last`` and has no gradient.

    >>> signs = torch.tensor([[[[1, -1, 1]]]], dtype=torch.int8)
    >>> convolve_symbols(signs, torch.ones(1, 1, 1, 2, dtype=torch.int8), torch.tensor(0.5))
    tensor([[[[0., 0.]]]])
    """
    if signs.dtype != symbols.dtype:
        raise ValueError(f"signs are {signs.dtype}, symbols {symbols.dtype}: convert both to one dtype")
    if signs.device.type == "cuda":
        try:
            from equalbits.functional.kernels import int8_convolution as gpu  # imports Triton, so only when needed
        except ImportError:
            return convolve_symbols_in_float(signs, symbols, scale, stride, padding, dtype)
        if signs.dtype in gpu.DTYPES and math.prod(symbols.shape[1:]) <= gpu.LONGEST:
            return gpu.convolve(signs, symbols, scale, (stride, padding), dtype)
    return convolve_symbols_in_float(signs, symbols, scale, stride, padding, dtype)


def convolve_symbols_in_float(
    signs: Tensor,
    symbols: Tensor,
    scale: Tensor,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dtype: torch.dtype,
) -> Tensor:
    """Compute :func:`convolve_symbols` by torch's convolution in float32: the slow twin."""
    sums = nnf.conv2d(signs.detach().float(), symbols.detach().float(), None, stride, padding)
    return (sums * scale).to(dtype).contiguous(memory_format=torch.channels_last)
