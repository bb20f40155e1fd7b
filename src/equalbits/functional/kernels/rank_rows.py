"""Rank the rows of a matrix on a GPU: equal to ``rank_by_sorting`` to the bit, without a sort.

The bits of a float, read as sign and magnitude, are an integer key in the same order, with −0.0 and +0.0 both 0. The
keys of a row stay in registers while a bisection over the integers finds the threshold, the largest key that becomes
−1. It stops once the counts on both sides are right, long before the last bit. Only rows with ties at the threshold
need a second bisection, over the indices of the tied weights: the lower ones get −1. Rows that do not fit into
registers go to ``rank_long_rows``.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803 (compile-time settings of a kernel are in capitals)

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from equalbits.functional.kernels.rank_long_rows import keys_of, rank_long_rows
from equalbits.functional.kernels.sizes import cdiv, next_power_of_2
from equalbits.functional.ranking import rank_by_sorting

_BITS_AND_INFINITY = {
    torch.float16: (torch.int16, 0x7C00),
    torch.bfloat16: (torch.int16, 0x7F80),
    torch.float32: (torch.int32, 0x7F80_0000),
    torch.float64: (torch.int64, 0x7FF0_0000_0000_0000),
}
_REGISTERS = 32768 * 4  # bytes of keys, padded to a power of two, that a program can hold
_LONGEST = 2**31 - 2**16  # indices and counts are 32-bit
_ENTRIES = 128  # entries per program at least: shorter rows share a program

# With 64 registers per thread, two rows of 64 KiB run concurrently on one multiprocessor.
_OCCUPANCY = {} if torch.version.hip else {"maxnreg": 64}


def rank(rows: Tensor, negatives: Tensor | int, mask: Tensor | None = None) -> Tensor:
    """Return ±1 for each entry of (filter, connection), 0 where masked; rows with NaN or infinity become NaN.

    ``negatives`` is one count for all rows, or with a mask a column with one count per row.
    """
    count, connections = rows.shape
    out = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
    if rows.numel() == 0:
        return out
    if connections > _LONGEST:
        return rank_by_sorting(rows, negatives, mask)
    bits = rows.contiguous().view(_BITS_AND_INFINITY[rows.dtype][0])
    kept = None if mask is None else mask.contiguous().view(torch.uint8)
    counts = negatives.int().contiguous() if isinstance(negatives, Tensor) else negatives
    settings, programs = _settings(rows.dtype, count, connections, mask is not None)
    with torch.cuda.device_of(rows):
        if programs is None:
            rank_long_rows(bits, kept, counts, out, settings)
        else:
            _short_rows[programs](bits, kept, counts, out, None, count, connections, 1, **settings)
    return out


def rank_scaled(latents: Tensor, negatives: int, scale: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Return the symbols of latents times a number, in ``dtype`` and the memory format of the latents, by one launch.

    The first axis of the latents is the filter. None if the kernel does not support them.
    """
    connections = latents.numel() // max(1, len(latents))
    strided = not latents.is_contiguous()
    fits = not strided or (latents.dim() == 4 and latents.is_contiguous(memory_format=torch.channels_last))
    if not fits or scale.dim() != 0 or latents.numel() == 0 or connections > _LONGEST:
        return None
    settings, programs = _settings(latents.dtype, len(latents), connections, False)
    if programs is None:
        return None
    out = torch.empty_like(latents, dtype=dtype)
    bits = latents.view(_BITS_AND_INFINITY[latents.dtype][0])
    inner = latents.shape[1] if strided else 1
    with torch.cuda.device_of(latents):
        _short_rows[programs](
            bits, None, negatives, out, scale, len(latents), connections, inner, STRIDED=strided, **settings
        )
    return out


@lru_cache(maxsize=1024)
def _settings(
    dtype: torch.dtype, count: int, connections: int, masked: bool
) -> tuple[dict[str, Any], tuple[int] | None]:
    """Return the compile-time settings, and the number of programs; None for rows that registers do not hold."""
    integer, infinite = _BITS_AND_INFINITY[dtype]
    settings = {"MASKED": masked, "MAGNITUDE": torch.iinfo(integer).max, "INFINITE": infinite}
    settings["enable_fp_fusion"] = False  # nothing to fuse; the setting silences a warning of Triton
    block = next_power_of_2(connections)
    row_bytes = block * max(4, dtype.itemsize)
    if row_bytes > _REGISTERS:
        return settings, None
    rows_per_program = max(1, _ENTRIES // block)
    warps = 32 if row_bytes == _REGISTERS else min(16, max(1, row_bytes // 2048))
    settings |= {"ROWS": rows_per_program, "BLOCK": block, "num_warps": warps} | _OCCUPANCY
    return settings, (cdiv(count, rows_per_program),)


@triton.jit
def _short_rows(
    bits, kept, negatives, out, scale, count, connections, inner,
    MAGNITUDE: tl.constexpr, INFINITE: tl.constexpr, MASKED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    STRIDED: tl.constexpr = False,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    start = (row.to(tl.int64) * connections)[:, None]
    inside = (row < count)[:, None] & (column < connections)
    index = column
    if STRIDED:  # channels last: ties are broken in the layer's own order
        index = (column % inner) * (connections // inner) + column // inner
    keys = keys_of(tl.load(bits + start + column, mask=inside, other=0), MAGNITUDE)
    least = tl.min(keys, axis=1)  # padding reads as 0, which only widens the search range
    most = tl.max(keys, axis=1)
    if MASKED:
        wanted = tl.load(negatives + row, mask=row < count, other=0)
        ranked = inside & (tl.load(kept + start + column, mask=inside, other=0) != 0)
    else:
        wanted = tl.zeros([ROWS], tl.int32) + negatives
        ranked = inside
    keys = tl.where(ranked, keys, MAGNITUDE)  # above every finite key
    edge = _threshold(keys, wanted, least - 1, most)
    tied = tl.sum((keys <= edge[:, None]).to(tl.int32), axis=1) > wanted
    order = tl.where(keys == edge[:, None], index, tl.where(keys < edge[:, None], -1, BLOCK))
    last = tl.zeros([ROWS], tl.int32) + connections - 1
    last = _threshold(order, wanted, tl.where(tied, -1, last - 1), last)
    negative = (order <= last[:, None]) & (wanted > 0)[:, None]
    finite = (most < INFINITE) & (least > -INFINITE)
    symbols = tl.where(finite[:, None], tl.where(negative, -1.0, 1.0), float("nan"))
    if MASKED:
        symbols = tl.where(ranked | (finite == 0)[:, None], symbols, 0.0)
    if scale is not None:
        symbols = symbols * tl.load(scale)
    tl.store(out + start + column, symbols.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _threshold(values, wanted, low, high):
    """Return a threshold per row with ``wanted`` values at or below it; with ties, the least one with more.

    There must be fewer than that many at or below ``low``, and enough at or below ``high``.
    """
    while tl.max((low + 1 < high).to(tl.int32), axis=0) > 0:
        middle = (low >> 1) + (high >> 1) + (low & high & 1)  # the mean, rounded down, without overflow
        below = tl.sum((values <= middle[:, None]).to(tl.int32), axis=1)
        high = tl.where(below >= wanted, middle, high)
        low = tl.where(below == wanted, middle - 1, tl.where(below < wanted, middle, low))
    return high
