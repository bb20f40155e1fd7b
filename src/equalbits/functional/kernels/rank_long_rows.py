"""Rows too long for one program of a GPU, such as all weights of a layer: the whole device parts them, without a sort.

The edge between −1 and +1 is found digit by digit, eight bits at a time from the highest: all programs count how many
keys have each value of the digit, and those of the next round begin by finding in which of them the edge lies. A
float32 takes four such rounds over its row, however the weights are spread, and a fifth that writes. Where weights tie
at the edge, those at lower places get −1.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803 (a kernel's compile-time settings are in capitals)

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096  # keys that a program counts
_WARPS = 8


def part_long_rows(
    bits: Tensor, kept: Tensor | None, negatives: Tensor | int, out: Tensor, settings: Mapping[str, Any]
) -> None:
    """Write ±1 for rows of floats that are given as their bits; as ``rank_rows.rank`` does."""
    rows, connections = bits.shape
    blocks, digits = triton.cdiv(connections, _BLOCK), bits.element_size()
    sums = torch.zeros(digits * rows * 256 + rows, dtype=torch.int32, device=bits.device)
    counts, strange = sums[:-rows].view(digits, rows, 256), sums[-rows:]
    # What the digits before say of a row: the edge's own as one number, and how many of the keys that begin so get −1.
    facts = torch.empty(digits, rows, 2, dtype=torch.int64, device=bits.device)
    last = torch.empty(rows, blocks, 256, dtype=torch.int32, device=bits.device)  # the last digit's counts by block
    every = {"BLOCK": _BLOCK, "num_warps": _WARPS, **settings}
    grid = (rows * blocks,)
    for digit in range(digits):
        at = max(digit - 1, 0)
        known = (negatives, counts[at], facts[at], facts[digit], counts[digit], strange, last)
        which = {"DIGIT": min(digit, 2), "LAST": digit == digits - 1}
        _digit_count[grid](bits, kept, *known, connections, blocks, 8 * (digits - 1 - digit), **which, **every)
    del every["INFINITE"]
    _digit_write[grid](bits, kept, counts[-1], facts[-1], strange, last, out, connections, blocks, **every)


@triton.jit
def keys_of(bits, MAGNITUDE: tl.constexpr):
    """Integers in the order of the floats whose bits these are, −0.0 and +0.0 both 0; 16 bits widen to 32."""
    if bits.dtype == tl.int16:
        bits = bits.to(tl.int32)
    magnitude = bits & MAGNITUDE
    return tl.where(bits < 0, -magnitude, magnitude)


@triton.jit
def _load(bits, kept, connections, blocks, MASKED: tl.constexpr, MAGNITUDE: tl.constexpr, BLOCK: tl.constexpr):
    """The program's row and block, the places of its keys in memory, these, which lie in the row, and are ranked."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    place = block * BLOCK + tl.arange(0, BLOCK)
    inside = place < connections
    at = row * connections + place
    keys = keys_of(tl.load(bits + at, mask=inside, other=0), MAGNITUDE)
    ranked = inside
    if MASKED:
        ranked = inside & (tl.load(kept + at, mask=inside, other=0) != 0)
    return row, block, at, keys, inside, ranked


@triton.jit
def _settled(counts, start, wanted):
    """In which value of a digit the edge lies: the least up to which there are enough keys.

    Gives the digits of the edge with this one, how many of the keys that begin so get −1, and how many do begin so.
    """
    value = tl.arange(0, 256)
    found = tl.load(counts + value)
    edge = tl.minimum(tl.sum((tl.cumsum(found, axis=0) < wanted).to(tl.int32), axis=0), 255)
    before = tl.sum(tl.where(value < edge, found, 0), axis=0)
    there = tl.sum(tl.where(value == edge, found, 0), axis=0)
    return start * 256 + edge, wanted - before, there


@triton.jit(do_not_specialize=["negatives", "blocks", "shift"])  # else every size of layer is compiled for anew
def _digit_count(
    bits, kept, negatives, before, facts, noted, counts, strange, last, connections, blocks, shift,
    DIGIT: tl.constexpr, LAST: tl.constexpr, INFINITE: tl.constexpr,
    MASKED: tl.constexpr, MAGNITUDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of the keys that begin as the edge does, how many have each value of this digit."""
    row, block, _, keys, inside, ranked = _load(bits, kept, connections, blocks, MASKED, MAGNITUDE, BLOCK)
    digit = keys >> shift
    if DIGIT == 0:
        digit += 128  # a key may be below 0
        odd = tl.sum((inside & ((keys >= INFINITE) | (keys <= -INFINITE))).to(tl.int32), axis=0)
        if odd > 0:
            tl.atomic_max(strange + row, 1)
    else:
        if DIGIT == 1:
            start = tl.full([], 0, tl.int64)
            wanted = tl.full([], 0, tl.int32)
            if MASKED:
                wanted += tl.load(negatives + row)
            else:
                wanted += negatives
        else:
            start = tl.load(facts + row * 2)
            wanted = tl.load(facts + row * 2 + 1).to(tl.int32)
        start, wanted, _ = _settled(before + row * 256, start, wanted)
        if DIGIT == 1:
            start -= 128
        if block == 0:  # all programs of the row find the same
            tl.store(noted + row * 2, start)
            tl.store(noted + row * 2 + 1, wanted.to(tl.int64))
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
    bits, kept, counts, facts, strange, last, out, connections, blocks,
    MASKED: tl.constexpr, MAGNITUDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """−1 below the edge and for the first of those at it, +1 for the others; NaN for a row that is not finite."""
    row, block, at, keys, inside, ranked = _load(bits, kept, connections, blocks, MASKED, MAGNITUDE, BLOCK)
    start = tl.load(facts + row * 2)
    edge, chosen, there = _settled(counts + row * 256, start, tl.load(facts + row * 2 + 1).to(tl.int32))
    negative = keys <= edge
    if chosen < there:  # of the tied ones those at lower places
        before = tl.full([], 0, tl.int32)
        for first in range(0, block, 1024):
            earlier = first + tl.arange(0, 1024)
            ties = last + (row * blocks + earlier) * 256 + (edge & 255)
            before += tl.sum(tl.load(ties, mask=earlier < block, other=0), axis=0)
        tied = ranked & (keys == edge)
        negative = (keys < edge) | (tied & (before + tl.cumsum(tied.to(tl.int32), axis=0) <= chosen))
    symbols = tl.where(negative, -1.0, 1.0)
    if MASKED:
        symbols = tl.where(ranked, symbols, 0.0)
    symbols = tl.where(tl.load(strange + row) == 0, symbols, float("nan"))
    tl.store(out + at, symbols.to(out.dtype.element_ty), mask=inside)
