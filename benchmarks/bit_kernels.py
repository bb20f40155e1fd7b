"""Measure the forward convolution of packed signs on a GPU, by stage of ResNet-18 and by tile.

    python benchmarks/bit_kernels.py [SECONDS]

It prints µs by cuDNN, by the kernel that reads bits or unpacked bytes, and by unpacking before cuDNN, and whether each
equals cuDNN's sums to the bit. ``training_cost.py`` calls it.
"""

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gpu_low_bits
import gpu_step
import torch
from torch import Tensor
from torch.nn import functional as nnf

from equalbits.functional.bit_convolution import convolve_by_unpacking
from equalbits.functional.packed_bits import BitLayout

#: Positions, filters and channels of a tile, programs per sum, warps and stages.
TILES = ((128, 64, 64, 1, 4, 3), (128, 128, 64, 1, 8, 3), (64, 64, 64, 1, 4, 4), (64, 128, 128, 1, 8, 3))


def calls_of(channels: int, side: int) -> dict[str, Callable[[], Tensor]]:
    """Return a function for each way to compute one layer."""
    from equalbits.functional.kernels import bit_convolution as gpu

    shape, form = (128, channels, side, side), ((1, 1), (1, 1))
    signs = torch.randn(shape, device="cuda").sign().bfloat16().contiguous(memory_format=torch.channels_last)
    weight = (torch.randn(channels, channels, 3, 3, device="cuda").sign() * 0.03).bfloat16()
    weight = weight.contiguous(memory_format=torch.channels_last)
    packed = BitLayout(shape, channels_last=True).pack(signs > 0)
    tiles = [gpu.Tiles(*sizes) for sizes in TILES if max(sizes[1:3]) <= channels]
    ours = partial(gpu.convolve, packed, weight, shape, form)
    return {
        "cudnn": partial(nnf.conv2d, signs, weight, padding=1),
        "bits": ours,
        "unpacked, cudnn": partial(convolve_by_unpacking, packed, weight, shape, *form),
        "bytes": partial(ours, unpack_first=True),
        **{f"bits {tuple(each)}": partial(ours, each) for each in tiles},
        **{f"bytes {tuple(each)}": partial(ours, each, unpack_first=True) for each in tiles},
    }


def measure(rounds: int, seconds: float) -> dict[str, Any]:
    """Return µs of the forward convolution of each stage, and whether it equals cuDNN's to the bit."""
    end, found = time.monotonic() + seconds, {}
    for channels, side in gpu_low_bits.SHAPES:
        calls, times, right = calls_of(channels, side), dict[str, float](), dict[str, object]()
        expected = calls["cudnn"]()
        for name, call in calls.items():
            if time.monotonic() > end:
                break
            try:
                right[name] = torch.equal(call(), expected)
                run = gpu_low_bits.replayed(call)
                times[name] = 1000 * statistics.median(gpu_step.milliseconds(run) for _ in range(rounds))
            except Exception as error:  # one tile must not end the others
                right[name], times[name] = f"{type(error).__name__}: {error}"[:200], float("nan")
        found[f"{channels} channels, {side}×{side}"] = {"us": times, "equal": right}
        cells = (f"{name} {us:.1f} µs ({right[name]})" for name, us in times.items())
        print(f"{channels} x {side}²: " + "; ".join(cells), flush=True)
    return found


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("bit_kernels: there is no CUDA device to measure")
    measure(rounds=7, seconds=float((sys.argv[1:] or ["120"])[0]))
