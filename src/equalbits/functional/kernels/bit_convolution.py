"""Convolution of packed ±1 inputs with ±1 weights on a GPU, as an implicit matrix product in 8 bits, in Triton.

A program computes a tile of (position, filter). It loads an input tile as bits, a sixteenth of its bfloat16 form, and
expands them in registers, or as bytes that another kernel has unpacked; the weight tile is reduced to its signs. The
sums are whole, so they are exact in any order. Bits and weights take a few instructions for four values, written in
assembly; the interpreter computes the same in Triton.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803 (compile-time settings of a kernel are in capitals)

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from equalbits.functional.kernels.int8_convolution import Tiles
from equalbits.functional.kernels.pack_bits import unpack


def convolve(
    packed: Tensor,
    weight: Tensor,
    shape: Sequence[int],
    form: tuple[Sequence[int], Sequence[int]],
    tiles: Tiles | None = None,
    *,
    unpack_first: bool = False,
) -> Tensor:
    """Compute :func:`equalbits.functional.bit_convolution.convolve_by_unpacking`; ``form`` is stride and padding.

    The channels are a multiple of 8. With ``unpack_first`` the input is unpacked to bytes before.
    """
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
    signs = unpack(packed, channels, torch.int8) if unpack_first else packed.contiguous()
    settings["UNPACKED"] = unpack_first
    settings["ASSEMBLY"] = isinstance(multiply_bits, triton.runtime.JITFunction) and not torch.version.hip
    grid = triton.cdiv(positions, tiles.positions), triton.cdiv(filters, tiles.filters)
    with torch.cuda.device_of(weight):
        multiply_bits[grid](signs, taps, out, positions, filters, height, width, out_height, out_width, **settings)
    return out.permute(0, 3, 1, 2)


def choose_tiles(filters: int, channels: int) -> Tiles:
    """Return tiles that cover all filters of a narrow layer, so that its input is expanded once."""
    blocks = [min(128, max(least, triton.next_power_of_2(size))) for size, least in ((filters, 16), (channels, 32))]
    return Tiles(filters=blocks[0], channels=blocks[1], warps=4 if blocks[0] < 128 else 8, stages=3)


#: Four values: +1 where the byte's bit is set, else −1; 0 where the third operand is 0 and not 255.
_EXPAND = """{
.reg .b32 t, k;
and.b32 t, $1, $2;
sub.u32 k, 0x80808080, $2;
add.u32 t, t, k;
and.b32 t, t, 0x80808080;
shr.u32 t, t, 7;
mul.lo.u32 t, t, 0xFE;
not.b32 t, t;
and.b32 $0, t, $3;
}"""
#: Four values: the sign of 16-bit numbers, +1 for 0.
_SIGN = """{
.reg .b32 t;
prmt.b32 t, $1, $2, 0x7531;
and.b32 t, t, 0x80808080;
shr.u32 t, t, 7;
mul.lo.u32 t, t, 0xFE;
or.b32 $0, t, 0x01010101;
}"""
EXPAND, SIGN = tl.constexpr(_EXPAND), tl.constexpr(_SIGN)


@triton.jit
def _expand(loaded, known, POSITIONS: tl.constexpr, CHANNELS: tl.constexpr, ASSEMBLY: tl.constexpr):
    """Return the values of a tile of bytes as (position, byte, bit): ±1, and 0 for bytes that do not exist."""
    if ASSEMBLY:
        bit = (1 << tl.arange(0, 8)).to(tl.uint8)[None, None, :]
        exists = tl.where(known, 255, 0).to(tl.uint8)[:, :, None]
        bytes = tl.broadcast_to(loaded[:, :, None], [POSITIONS, CHANNELS // 8, 8])
        bits = tl.broadcast_to(bit, [POSITIONS, CHANNELS // 8, 8])
        masks = tl.broadcast_to(exists, [POSITIONS, CHANNELS // 8, 8])
        values = tl.inline_asm_elementwise(
            EXPAND, "=r,r,r,r", [bytes, bits, masks], dtype=tl.int8, is_pure=True, pack=4
        )
    else:
        signs = (loaded.to(tl.int32)[:, :, None] >> tl.arange(0, 8)[None, None, :]) & 1
        values = (2 * signs - known.to(tl.int32)[:, :, None]).to(tl.int8)
    return values


@triton.jit
def multiply_bits(
    packed, weight, out, positions, filters, height, width, out_height, out_width,
    C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    ABOVE: tl.constexpr, LEFT: tl.constexpr, POSITIONS: tl.constexpr, FILTERS: tl.constexpr, CHANNELS: tl.constexpr,
    UNPACKED: tl.constexpr, ASSEMBLY: tl.constexpr,
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
        pixel = ((image * height + y) * width + x).to(tl.int64)
        if UNPACKED:
            a = tl.load(packed + pixel[:, None] * C + at[None, :], mask=inside[:, None] & (at < C)[None, :], other=0)
        else:
            known = inside[:, None] & (at_byte < wide)[None, :]
            loaded = tl.load(packed + pixel[:, None] * wide + at_byte[None, :], mask=known, other=0)
            a = tl.reshape(_expand(loaded, known, POSITIONS, CHANNELS, ASSEMBLY), [POSITIONS, CHANNELS])
        row = (filter * (ROWS * COLUMNS) + tap) * C
        w = tl.load(
            weight + row[None, :] + at[:, None], mask=(filter < filters)[None, :] & (at < C)[:, None], other=0.0
        )
        if ASSEMBLY:
            b = tl.inline_asm_elementwise(SIGN, "=r,r,r", [w], dtype=tl.int8, is_pure=True, pack=4)
        else:
            b = tl.where(w < 0, -1, 1).to(tl.int8)
        sums = tl.dot(a, b, sums, out_dtype=tl.int32)
    scale = tl.abs(tl.load(weight + filter * (ROWS * COLUMNS * C), mask=filter < filters, other=0.0).to(tl.float32))
    inside = (position < positions)[:, None] & (filter < filters)[None, :]
    place = position.to(tl.int64)[:, None] * filters + filter[None, :]
    tl.store(out + place, (sums.to(tl.float32) * scale[None, :]).to(out.dtype.element_ty), mask=inside)
