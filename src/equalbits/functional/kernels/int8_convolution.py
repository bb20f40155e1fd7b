"""Convolution of ±1 inputs and ±1 weights on a GPU, as an implicit matrix product in 8 bits, in Triton.

Both operands have their channels contiguous. A program computes a tile of (position, filter): it walks over the taps of
the kernel and blocks of channels, and multiplies a tile of inputs with one of weights. Where a layer has too few tiles
to fill the GPU, several programs share the sum of a tile, and a second kernel adds their parts. All sums are whole
numbers below 2¹³, which the accumulators of 8-bit products hold exactly, so the order of additions does not matter.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803 (compile-time settings of a kernel are in capitals)

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from equalbits.functional.kernels.sizes import cdiv, next_power_of_2

#: Largest number of connections of a filter: the accumulators of FP8 products on a GPU hold 14 bits.
LONGEST = 2**13 - 1
DTYPES = (torch.float8_e4m3fn, torch.int8, torch.bfloat16, torch.float16)

_PROGRAMS = 132  # multiprocessors of a large GPU
_COMBINED = 1024  # entries per program that adds the parts of a sum


class Tiles(NamedTuple):
    """Shape of a program's work: positions, filters and channels of a tile, and programs per sum."""

    positions: int = 128
    filters: int = 64
    channels: int = 64
    split: int = 1
    warps: int = 4
    stages: int = 4


def choose_tiles(positions: int, filters: int, channels: int, taps: int, size: int = 1) -> Tiles:
    """Return tiles that fit the layer, with enough programs to fill the GPU; an entry has ``size`` bytes."""
    tiles = Tiles(
        filters=min(128, max(16, next_power_of_2(filters))),
        channels=min(128 // size, max(32, next_power_of_2(channels))),  # a stage then fits shared memory
    )
    programs = cdiv(positions, tiles.positions) * cdiv(filters, tiles.filters)
    steps = taps * cdiv(channels, tiles.channels)
    return tiles._replace(split=max(1, min(_PROGRAMS // programs, steps // 4)))


def convolve(
    signs: Tensor,
    symbols: Tensor,
    scale: Tensor,
    form: tuple[tuple[int, int], tuple[int, int]],
    dtype: torch.dtype,
    tiles: Tiles | None = None,
) -> Tensor:
    """Compute :func:`equalbits.functional.convolve_symbols`; ``form`` is stride and padding."""
    (down, across), (above, left) = form
    pixels, taps = (each.permute(0, 2, 3, 1).contiguous() for each in (signs, symbols))  # views, if channels_last
    images, height, width, channels = pixels.shape
    filters, rows, columns, _ = taps.shape
    out_height, out_width = (height + 2 * above - rows) // down + 1, (width + 2 * left - columns) // across + 1
    positions = images * out_height * out_width
    out = torch.empty((images, out_height, out_width, filters), dtype=dtype, device=signs.device)
    tiles = tiles or choose_tiles(positions, filters, channels, rows * columns, signs.element_size())
    steps = cdiv(rows * columns * cdiv(channels, tiles.channels), tiles.split)
    parts = torch.empty((tiles.split, *out.shape), dtype=torch.int16, device=out.device) if tiles.split > 1 else None
    settings = {"C": channels, "ROWS": rows, "COLUMNS": columns, "DOWN": down, "ACROSS": across}
    settings |= {"ABOVE": above, "LEFT": left, "POSITIONS": tiles.positions, "FILTERS": tiles.filters}
    settings |= {"SUM": tl.int32 if signs.dtype == torch.int8 else tl.float32}
    settings |= {"CHANNELS": tiles.channels, "num_warps": tiles.warps, "num_stages": tiles.stages}
    settings["enable_fp_fusion"] = False  # nothing to fuse; the setting silences a warning of Triton
    grid = cdiv(positions, tiles.positions), cdiv(filters, tiles.filters), tiles.split
    with torch.cuda.device_of(signs):
        multiply[grid](
            pixels, taps, scale, out if parts is None else parts, positions, filters, height, width, out_height,
            out_width, steps, SPLIT=tiles.split, **settings,
        )  # fmt: skip
        if parts is not None:
            add_parts[(cdiv(out.numel(), _COMBINED),)](
                parts, scale, out, out.numel(), SPLIT=tiles.split, BLOCK=_COMBINED, enable_fp_fusion=False
            )
    return out.permute(0, 3, 1, 2)


@triton.jit
def multiply(
    signs, symbols, scale, out, positions, filters, height, width, out_height, out_width, steps,
    SPLIT: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DOWN: tl.constexpr,
    ACROSS: tl.constexpr, ABOVE: tl.constexpr, LEFT: tl.constexpr, POSITIONS: tl.constexpr, FILTERS: tl.constexpr,
    CHANNELS: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """Compute a tile of (position, filter), or with SPLIT its part of the sum."""
    position = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    filter = tl.program_id(1) * FILTERS + tl.arange(0, FILTERS)
    channel = tl.arange(0, CHANNELS)
    blocks: tl.constexpr = (C + CHANNELS - 1) // CHANNELS
    image = position // (out_height * out_width)
    place = position - image * (out_height * out_width)
    top = place // out_width * DOWN - ABOVE
    left = place % out_width * ACROSS - LEFT
    sums = tl.zeros([POSITIONS, FILTERS], SUM)
    first = tl.program_id(2) * steps
    last = tl.minimum(first + steps, ROWS * COLUMNS * blocks)
    for step in range(first, last):
        tap = step // blocks
        at = (step - tap * blocks) * CHANNELS + channel
        y = top + tap // COLUMNS
        x = left + tap % COLUMNS
        inside = (position < positions) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        pixel = ((image * height + y) * width + x).to(tl.int64) * C
        a = tl.load(signs + pixel[:, None] + at[None, :], mask=inside[:, None] & (at < C)[None, :], other=0.0)
        row = (filter * (ROWS * COLUMNS) + tap) * C
        known = (filter < filters)[None, :] & (at < C)[:, None]
        b = tl.load(symbols + row[None, :] + at[:, None], mask=known, other=0.0)
        sums = tl.dot(a, b, sums, out_dtype=SUM)
    inside = (position < positions)[:, None] & (filter < filters)[None, :]
    place = position.to(tl.int64)[:, None] * filters + filter[None, :]
    if SPLIT == 1:
        tl.store(out + place, (sums.to(tl.float32) * tl.load(scale)).to(out.dtype.element_ty), mask=inside)
    else:
        part = tl.program_id(2).to(tl.int64) * positions * filters
        tl.store(out + part + place, sums.to(tl.int16), mask=inside)


@triton.jit
def add_parts(parts, scale, out, count, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    """Add the parts of each sum, and scale it."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    total = tl.zeros([BLOCK], tl.int32)
    for _ in tl.static_range(SPLIT):
        total += tl.load(parts + place, mask=inside, other=0).to(tl.int32)
        parts += count
    tl.store(out + place, (total.to(tl.float32) * tl.load(scale)).to(out.dtype.element_ty), mask=inside)
