"""Rank rows that are too long for one GPU program, such as all weights of a layer, by a radix select.

The threshold between −1 and +1 is found digit by digit, eight bits at a time from the highest. In each round all
programs count the keys with each value of the digit; the next round starts by finding the value that contains the
threshold. A float32 takes four rounds over its row, whatever the distribution, and a fifth that writes. Of weights
tied at the threshold, those at lower indices get −1.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803 (compile-time settings of a kernel are in capitals)

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from equalbits.functional.kernels.sizes import cdiv

_BLOCK = 4096  # keys per program
_WARPS = 8


def rank_long_rows(
    bits: Tensor, kept: Tensor | None, negatives: Tensor | int, out: Tensor, settings: Mapping[str, Any]
) -> None:
    """Write the symbols of rows given as the bits of their floats, as ``rank_rows.rank`` returns them."""
    rows, connections = bits.shape
    blocks, digits = cdiv(connections, _BLOCK), bits.element_size()
    sums = torch.zeros(digits * rows * 256 + rows, dtype=torch.int32, device=bits.device)
    counts, nonfinite = sums[:-rows].view(digits, rows, 256), sums[-rows:]
    # Per row after each digit: the threshold's digits so far as one number, and how many keys with that prefix get −1.
    prefixes = torch.empty(digits, rows, 2, dtype=torch.int64, device=bits.device)
    last = torch.empty(rows, blocks, 256, dtype=torch.int32, device=bits.device)  # counts of the last digit per block
    common = {"BLOCK": _BLOCK, "num_warps": _WARPS, **settings}
    grid = (rows * blocks,)
    for digit in range(digits):
        before = max(digit - 1, 0)
        state = (negatives, counts[before], prefixes[before], prefixes[digit], counts[digit], nonfinite, last)
        shift = 8 * (digits - 1 - digit)
        stage = {"DIGIT": min(digit, 2), "LAST": digit == digits - 1}
        _digit_count[grid](bits, kept, *state, connections, blocks, shift, **stage, **common)
    del common["INFINITE"]
    _digit_write[grid](bits, kept, counts[-1], prefixes[-1], nonfinite, last, out, connections, blocks, **common)


@triton.jit
def keys_of(bits, MAGNITUDE: tl.constexpr):
    """Convert the bits of floats to integers in the same order, with −0.0 and +0.0 both 0; 16 bits widen to 32."""
    if bits.dtype == tl.int16:
        bits = bits.to(tl.int32)
    magnitude = bits & MAGNITUDE
    return tl.where(bits < 0, -magnitude, magnitude)


@triton.jit
def _load(bits, kept, connections, blocks, MASKED: tl.constexpr, MAGNITUDE: tl.constexpr, BLOCK: tl.constexpr):
    """Load a block: its row and block index, the offsets of its keys, the keys, and which are inside and ranked."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    index = block * BLOCK + tl.arange(0, BLOCK)
    inside = index < connections
    offset = row * connections + index
    keys = keys_of(tl.load(bits + offset, mask=inside, other=0), MAGNITUDE)
    ranked = inside
    if MASKED:
        ranked = inside & (tl.load(kept + offset, mask=inside, other=0) != 0)
    return row, block, offset, keys, inside, ranked


@triton.jit
def _select_digit(counts, start, wanted):
    """Find the value of a digit that contains the threshold: the least one up to which there are enough keys.

    Returns the prefix with this digit, how many of the keys with that prefix get −1, and how many have it.
    """
    value = tl.arange(0, 256)
    found = tl.load(counts + value)
    selected = tl.minimum(tl.sum((tl.cumsum(found, axis=0) < wanted).to(tl.int32), axis=0), 255)
    before = tl.sum(tl.where(value < selected, found, 0), axis=0)
    count = tl.sum(tl.where(value == selected, found, 0), axis=0)
    return start * 256 + selected, wanted - before, count


@triton.jit(do_not_specialize=["negatives", "blocks", "shift"])  # otherwise each layer size would compile again
def _digit_count(
    bits, kept, negatives, before, prefixes, next_prefixes, counts, nonfinite, last, connections, blocks, shift,
    DIGIT: tl.constexpr, LAST: tl.constexpr, INFINITE: tl.constexpr,
    MASKED: tl.constexpr, MAGNITUDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Count the keys with each value of this digit, among those with the threshold's prefix."""
    row, block, _, keys, inside, ranked = _load(bits, kept, connections, blocks, MASKED, MAGNITUDE, BLOCK)
    digit = keys >> shift
    if DIGIT == 0:
        digit += 128  # keys may be negative
        found_nonfinite = tl.sum((inside & ((keys >= INFINITE) | (keys <= -INFINITE))).to(tl.int32), axis=0)
        if found_nonfinite > 0:
            tl.atomic_max(nonfinite + row, 1)
    else:
        if DIGIT == 1:
            start = tl.full([], 0, tl.int64)
            wanted = tl.full([], 0, tl.int32)
            if MASKED:
                wanted += tl.load(negatives + row)
            else:
                wanted += negatives
        else:
            start = tl.load(prefixes + row * 2)
            wanted = tl.load(prefixes + row * 2 + 1).to(tl.int32)
        start, wanted, _ = _select_digit(before + row * 256, start, wanted)
        if DIGIT == 1:
            start -= 128
        if block == 0:  # all programs of the row compute the same
            tl.store(next_prefixes + row * 2, start)
            tl.store(next_prefixes + row * 2 + 1, wanted.to(tl.int64))
        ranked &= (digit >> 8) == start
        digit &= 255
    value = tl.arange(0, 256)
    found = tl.histogram(tl.where(ranked, digit, 0).to(tl.int32), 256)
    others = BLOCK - tl.sum(ranked.to(tl.int32), axis=0)
    found -= tl.where(value == 0, others, 0)
    tl.atomic_add(counts + row * 256 + value, found, mask=found > 0)
    if LAST:
        tl.store(last + (row * blocks + block) * 256 + value, found)


@triton.jit(do_not_specialize=["blocks"])
def _digit_write(
    bits, kept, counts, prefixes, nonfinite, last, out, connections, blocks,
    MASKED: tl.constexpr, MAGNITUDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write −1 below the threshold and for the first of those tied at it, +1 for the others, NaN for nonfinite rows."""
    row, block, offset, keys, inside, ranked = _load(bits, kept, connections, blocks, MASKED, MAGNITUDE, BLOCK)
    start = tl.load(prefixes + row * 2)
    wanted = tl.load(prefixes + row * 2 + 1).to(tl.int32)
    threshold, tied_negatives, tied_count = _select_digit(counts + row * 256, start, wanted)
    negative = keys <= threshold
    if tied_negatives < tied_count:  # of the tied keys, those at lower indices
        before = tl.full([], 0, tl.int32)
        for first in range(0, block, 1024):
            earlier = first + tl.arange(0, 1024)
            ties = last + (row * blocks + earlier) * 256 + (threshold & 255)
            before += tl.sum(tl.load(ties, mask=earlier < block, other=0), axis=0)
        tied = ranked & (keys == threshold)
        negative = (keys < threshold) | (tied & (before + tl.cumsum(tied.to(tl.int32), axis=0) <= tied_negatives))
    symbols = tl.where(negative, -1.0, 1.0)
    if MASKED:
        symbols = tl.where(ranked, symbols, 0.0)
    symbols = tl.where(tl.load(nonfinite + row) == 0, symbols, float("nan"))
    tl.store(out + offset, symbols.to(out.dtype.element_ty), mask=inside)
