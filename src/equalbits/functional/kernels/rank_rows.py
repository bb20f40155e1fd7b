"""The ranking on a GPU, in Triton: the CPU's answers to the bit, without a sort.

A float is a sign and a magnitude, and its bits read that way are an integer in the same order, with −0.0 and +0.0
both 0. A row's keys stay in registers while a bisection over the integers closes in on the largest weight that
becomes −1; it stops as soon as it has parted the row where asked, which is long before the last bit. Only a row tied
at its boundary goes on to a second bisection, over the places of the tied weights: the lower ones get −1.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803 (a kernel's compile-time settings are in capitals)

import torch
import triton
import triton.language as tl
from torch import Tensor

from equalbits.functional.kernels.rank_long_rows import keys_of, part_long_rows
from equalbits.functional.ranking import rank_by_sorting

_BITS_AND_INFINITY = {
    torch.float16: (torch.int16, 0x7C00),
    torch.bfloat16: (torch.int16, 0x7F80),
    torch.float32: (torch.int32, 0x7F80_0000),
    torch.float64: (torch.int64, 0x7FF0_0000_0000_0000),
}
_REGISTERS = 32768 * 4  # bytes of keys, padded to a power of two, that a program can hold; longer rows go by digits
_LONGEST = 2**31 - 2**16  # places and counts are held in 32 bits
_ENTRIES = 128  # a program ranks at least this many, so rows shorter than that share one

# At 64 registers a thread, two rows of 64 KiB run side by side on one processor.
_SIDE_BY_SIDE = {} if torch.version.hip else {"maxnreg": 64}


def rank(rows: Tensor, negatives: Tensor | int, mask: Tensor | None = None) -> Tensor:
    """±1 for each entry of (filter, connection), 0 where masked, NaN through a row that holds NaN or infinity.

    ``negatives`` is one count for all rows, or with a mask a column with a count for each.
    """
    count, connections = rows.shape
    out = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
    if rows.numel() == 0:
        return out
    if connections > _LONGEST:
        return rank_by_sorting(rows, negatives, mask)
    integer, infinite = _BITS_AND_INFINITY[rows.dtype]
    bits = rows.contiguous().view(integer)
    kept = None if mask is None else mask.contiguous().view(torch.uint8)
    counts = negatives.int().contiguous() if isinstance(negatives, Tensor) else negatives
    settings = {"MASKED": mask is not None, "MAGNITUDE": torch.iinfo(integer).max, "INFINITE": infinite}
    settings["enable_fp_fusion"] = False  # there is nothing to fuse, and to say so keeps Triton from warning
    block = triton.next_power_of_2(connections)
    held = block * max(4, rows.element_size())
    with torch.cuda.device_of(rows):
        if held > _REGISTERS:
            part_long_rows(bits, kept, counts, out, settings)
        else:
            together = max(1, _ENTRIES // block)
            warps = 32 if held == _REGISTERS else min(16, max(1, held // 2048))
            settings |= {"ROWS": together, "BLOCK": block, "num_warps": warps} | _SIDE_BY_SIDE
            _short_rows[(triton.cdiv(count, together),)](bits, kept, counts, out, count, connections, **settings)
    return out


@triton.jit
def _short_rows(
    bits, kept, negatives, out, count, connections,
    MAGNITUDE: tl.constexpr, INFINITE: tl.constexpr, MASKED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    start = (row.to(tl.int64) * connections)[:, None]
    inside = (row < count)[:, None] & (column < connections)
    keys = keys_of(tl.load(bits + start + column, mask=inside, other=0), MAGNITUDE)
    least = tl.min(keys, axis=1)  # padding reads as 0, which only widens the search
    most = tl.max(keys, axis=1)
    if MASKED:
        wanted = tl.load(negatives + row, mask=row < count, other=0)
        ranked = inside & (tl.load(kept + start + column, mask=inside, other=0) != 0)
    else:
        wanted = tl.zeros([ROWS], tl.int32) + negatives
        ranked = inside
    keys = tl.where(ranked, keys, MAGNITUDE)  # above every finite key
    edge = _part(keys, wanted, least - 1, most)
    tied = tl.sum((keys <= edge[:, None]).to(tl.int32), axis=1) > wanted
    order = tl.where(keys == edge[:, None], column, tl.where(keys < edge[:, None], -1, BLOCK))
    last = tl.zeros([ROWS], tl.int32) + connections - 1
    last = _part(order, wanted, tl.where(tied, -1, last - 1), last)
    negative = (order <= last[:, None]) & (wanted > 0)[:, None]
    finite = (most < INFINITE) & (least > -INFINITE)
    symbols = tl.where(finite[:, None], tl.where(negative, -1.0, 1.0), float("nan"))
    if MASKED:
        symbols = tl.where(ranked | ~finite[:, None], symbols, 0.0)
    tl.store(out + start + column, symbols.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _part(values, wanted, low, high):
    """A threshold for each row with ``wanted`` values at or below it, or if ties forbid that, the least with more.

    There must be fewer than that many at or below ``low``, and enough at or below ``high``.
    """
    while tl.max((low + 1 < high).to(tl.int32), axis=0) > 0:
        middle = (low >> 1) + (high >> 1) + (low & high & 1)  # the mean, rounded down, without overflow
        below = tl.sum((values <= middle[:, None]).to(tl.int32), axis=1)
        high = tl.where(below >= wanted, middle, high)
        low = tl.where(below == wanted, middle - 1, tl.where(below < wanted, middle, low))
    return high
