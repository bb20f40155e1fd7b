"""Convolution of packed ±1 inputs with ±1 weights on a GPU, as an implicit matrix product in 8 bits, in Triton.

A program computes a tile of (position, filter). It loads an input tile as bits, a sixteenth of its bfloat16 form, and
expands them in registers; the weight tile is reduced to its signs. The sums are whole, so they are exact in any order.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803 (compile-time settings of a kernel are in capitals)

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from equalbits.functional.kernels.int8_convolution import Tiles


def convolve(
    packed: Tensor,
    weight: Tensor,
    shape: Sequence[int],
    form: tuple[Sequence[int], Sequence[int]],
    tiles: Tiles | None = None,
) -> Tensor:
    """Compute :func:`equalbits.functional.bit_convolution.convolve_by_unpacking`; ``form`` is stride and padding."""
    (down, across), (above, left) = form
    images, channels, height, width = shape
    taps = weight.permute(0, 2, 3, 1).contiguous()  # a view, if channels_last
    filters, rows, columns, _ = taps.shape
    out_height, out_width = (height + 2 * above - rows) // down + 1, (width + 2 * left - columns) // across + 1
    positions = images * out_height * out_width
    out = torch.empty((images, out_height, out_width, filters), dtype=weight.dtype, device=weight.device)
    tiles = tiles or choose_tiles(filters, channels)
    settings = {"C": channels, "ROWS": rows, "COLUMNS": columns, "DOWN": down, "ACROSS": across, "ABOVE": above}
    settings |= {"LEFT": left, "POSITIONS": tiles.positions, "FILTERS": tiles.filters, "CHANNELS": tiles.channels}
    settings |= {"num_warps": tiles.warps, "num_stages": tiles.stages}
    grid = triton.cdiv(positions, tiles.positions), triton.cdiv(filters, tiles.filters)
    with torch.cuda.device_of(weight):
        multiply_bits[grid](
            packed.contiguous(), taps, out, positions, filters, height, width, out_height, out_width, **settings
        )
    return out.permute(0, 3, 1, 2)


def choose_tiles(filters: int, channels: int) -> Tiles:
    """Return tiles that cover all filters of a narrow layer, so that its input is expanded once."""
    blocks = [min(128, max(least, triton.next_power_of_2(size))) for size, least in ((filters, 16), (channels, 32))]
    return Tiles(filters=blocks[0], channels=blocks[1], warps=4 if blocks[0] < 128 else 8, stages=3)


@triton.jit
def multiply_bits(
    packed, weight, out, positions, filters, height, width, out_height, out_width,
    C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    ABOVE: tl.constexpr, LEFT: tl.constexpr, POSITIONS: tl.constexpr, FILTERS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Compute a tile of (position, filter): whole sums times the magnitude of the filter's first weight."""
    position = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    filter = tl.program_id(1) * FILTERS + tl.arange(0, FILTERS)
    channel = tl.arange(0, CHANNELS)
    byte = tl.arange(0, CHANNELS // 8)
    blocks: tl.constexpr = (C + CHANNELS - 1) // CHANNELS
    wide: tl.constexpr = (C + 7) // 8
    image = position // (out_height * out_width)
    place = position - image * (out_height * out_width)
    top = place // out_width * DOWN - ABOVE
    left = place % out_width * ACROSS - LEFT
    sums = tl.zeros([POSITIONS, FILTERS], tl.int32)
    for step in range(ROWS * COLUMNS * blocks):
        tap = step // blocks
        block = step - tap * blocks
        at = block * CHANNELS + channel
        at_byte = block * (CHANNELS // 8) + byte
        y = top + tap // COLUMNS
        x = left + tap % COLUMNS
        inside = (position < positions) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        pixel = ((image * height + y) * width + x).to(tl.int64) * wide
        known = inside[:, None] & (at_byte < wide)[None, :]
        loaded = tl.load(packed + pixel[:, None] + at_byte[None, :], mask=known, other=0).to(tl.int32)
        # 2·bit − 1 inside the image and 0 outside: its bits were loaded as 0
        signs = (loaded[:, :, None] >> tl.arange(0, 8)[None, None, :]) & 1
        a = 2 * tl.reshape(signs, [POSITIONS, CHANNELS]) - (inside[:, None] & (at < C)[None, :]).to(tl.int32)
        row = (filter * (ROWS * COLUMNS) + tap) * C
        w = tl.load(
            weight + row[None, :] + at[:, None], mask=(filter < filters)[None, :] & (at < C)[:, None], other=0.0
        )
        b = (w > 0).to(tl.int8) - (w < 0).to(tl.int8)
        sums = tl.dot(a.to(tl.int8), b, sums, out_dtype=tl.int32)
    scale = tl.abs(tl.load(weight + filter * (ROWS * COLUMNS * C), mask=filter < filters, other=0.0).to(tl.float32))
    inside = (position < positions)[:, None] & (filter < filters)[None, :]
    place = position.to(tl.int64)[:, None] * filters + filter[None, :]
    tl.store(out + place, (sums.to(tl.float32) * scale[None, :]).to(out.dtype.element_ty), mask=inside)
