"""Rows too long for one program of a GPU, such as all weights of a layer: the whole device parts them, without a sort.

The edge between −1 and +1 is found digit by digit, eight bits at a time from the highest: all programs count how many
keys have each value of the digit, and one per row notes in which of them the edge lies. A float32 takes four such
rounds over its row, however the weights are spread. Where weights tie at the edge, those at lower places get −1.
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
# What is known of a row: the digits of its edge found so far, as one number; how many of the keys that begin with them
# become −1; how many keys that is chosen from; whether there is one that is not finite.
_FACTS = 4


def part_long_rows(
    bits: Tensor, kept: Tensor | None, negatives: Tensor | int, out: Tensor, settings: Mapping[str, Any]
) -> None:
    """Write ±1 for rows of floats that are given as their bits; as ``transport_rows``, which holds the contract."""
    rows, connections = bits.shape
    blocks = triton.cdiv(connections, _BLOCK)
    digits = bits.element_size()
    counts = torch.zeros(digits, rows, 256, dtype=torch.int32, device=bits.device)
    facts = torch.zeros(rows, _FACTS, dtype=torch.int64, device=bits.device)
    ties = torch.empty(rows, blocks, dtype=torch.int32, device=bits.device)
    masked = {name: settings[name] for name in ("MASKED", "MAGNITUDE", "enable_fp_fusion")}
    every = {"BLOCK": _BLOCK, "num_warps": _WARPS, **masked}
    grid = (rows * blocks,)
    for digit in range(digits):
        first, shift = digit == 0, 8 * (digits - 1 - digit)
        counted = {"INFINITE": settings["INFINITE"], "FIRST": first, **every}
        _digit_count[grid](bits, kept, counts[digit], facts, connections, blocks, shift, **counted)
        _digit_settle[(rows,)](counts[digit], negatives, facts, MASKED=settings["MASKED"], FIRST=first, num_warps=4)
    _digit_ties[grid](bits, kept, facts, ties, connections, blocks, **every)
    _digit_write[grid](bits, kept, facts, ties, out, connections, blocks, **every)


@triton.jit
def keys_of(bits, MAGNITUDE: tl.constexpr):
    """Integers in the order of the floats whose bits these are, −0.0 and +0.0 both 0; 16 bits widen to 32."""
    if bits.dtype == tl.int16:
        bits = bits.to(tl.int32)
    magnitude = bits & MAGNITUDE
    return tl.where(bits < 0, -magnitude, magnitude)


@triton.jit
def _load(bits, kept, connections, blocks, MASKED: tl.constexpr, MAGNITUDE: tl.constexpr, BLOCK: tl.constexpr):
    """The keys of the program's block, which of its places lie in the row, and which of those are ranked."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    place = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = place < connections
    at = row * connections + place
    keys = keys_of(tl.load(bits + at, mask=inside, other=0), MAGNITUDE)
    ranked = inside
    if MASKED:
        ranked = inside & (tl.load(kept + at, mask=inside, other=0) != 0)
    return row, at, keys, inside, ranked


@triton.jit(do_not_specialize=["blocks", "shift"])  # else every size of layer is compiled for anew
def _digit_count(
    bits, kept, counts, facts, connections, blocks, shift, INFINITE: tl.constexpr, FIRST: tl.constexpr,
    MASKED: tl.constexpr, MAGNITUDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of the keys that begin as the edge does, how many have each value of the next digit."""
    row, _, keys, inside, ranked = _load(bits, kept, connections, blocks, MASKED, MAGNITUDE, BLOCK)
    digit = keys >> shift
    if FIRST:
        digit += 128  # a key may be below 0
        strange = tl.sum((inside & ((keys >= INFINITE) | (keys <= -INFINITE))).to(tl.int32), axis=0)
        if strange > 0:
            tl.atomic_max(facts + row * 4 + 3, tl.full([], 1, tl.int64))
    else:
        ranked &= (digit >> 8) == tl.load(facts + row * 4)
        digit &= 255
    value = tl.arange(0, 256)
    found = tl.histogram(tl.where(ranked, digit, 0).to(tl.int32), 256)
    others = BLOCK - tl.sum(ranked.to(tl.int32), axis=0)
    found -= tl.where(value == 0, others, 0)
    tl.atomic_add(counts + row * 256 + value, found, mask=found > 0)


@triton.jit(do_not_specialize=["negatives"])
def _digit_settle(counts, negatives, facts, MASKED: tl.constexpr, FIRST: tl.constexpr):
    """Note in which value of the digit a row's edge lies: the least up to which there are enough keys."""
    row = tl.program_id(0).to(tl.int64)
    value = tl.arange(0, 256)
    found = tl.load(counts + row * 256 + value)
    upto = tl.cumsum(found, axis=0)
    if FIRST:
        start = tl.full([], 0, tl.int64)
        wanted = tl.load(negatives + row).to(tl.int32) if MASKED else tl.full([], 0, tl.int32) + negatives
    else:
        start = tl.load(facts + row * 4)
        wanted = tl.load(facts + row * 4 + 1).to(tl.int32)
    edge = tl.minimum(tl.sum((upto < wanted).to(tl.int32), axis=0), 255)
    before = tl.sum(tl.where(value < edge, found, 0), axis=0)
    there = tl.sum(tl.where(value == edge, found, 0), axis=0)
    if FIRST:
        start += edge - 128
    else:
        start = start * 256 + edge
    tl.store(facts + row * 4, start)
    tl.store(facts + row * 4 + 1, (wanted - before).to(tl.int64))
    tl.store(facts + row * 4 + 2, there.to(tl.int64))


@triton.jit(do_not_specialize=["blocks"])
def _digit_ties(
    bits, kept, facts, ties, connections, blocks,
    MASKED: tl.constexpr, MAGNITUDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """How many keys of each block are the edge itself, where only some of them become −1."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    if tl.load(facts + row * 4 + 1) < tl.load(facts + row * 4 + 2):
        edge = tl.load(facts + row * 4)
        _, _, keys, _, ranked = _load(bits, kept, connections, blocks, MASKED, MAGNITUDE, BLOCK)
        tl.store(ties + tl.program_id(0), tl.sum((ranked & (keys == edge)).to(tl.int32), axis=0))


@triton.jit(do_not_specialize=["blocks"])
def _digit_write(
    bits, kept, facts, ties, out, connections, blocks,
    MASKED: tl.constexpr, MAGNITUDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, at, keys, inside, ranked = _load(bits, kept, connections, blocks, MASKED, MAGNITUDE, BLOCK)
    edge = tl.load(facts + row * 4)
    negative = keys <= edge
    chosen = tl.load(facts + row * 4 + 1).to(tl.int32)
    if chosen < tl.load(facts + row * 4 + 2):  # of the tied ones those at lower places
        block = tl.program_id(0) % blocks
        before = tl.full([], 0, tl.int32)
        for first in range(0, block, 1024):
            earlier = first + tl.arange(0, 1024)
            before += tl.sum(tl.load(ties + row * blocks + earlier, mask=earlier < block, other=0), axis=0)
        tied = ranked & (keys == edge)
        negative = (keys < edge) | (tied & (before + tl.cumsum(tied.to(tl.int32), axis=0) <= chosen))
    symbols = tl.where(negative, -1.0, 1.0)
    if MASKED:
        symbols = tl.where(ranked, symbols, 0.0)
    symbols = tl.where(tl.load(facts + row * 4 + 3) == 0, symbols, float("nan"))
    tl.store(out + at, symbols.to(out.dtype.element_ty), mask=inside)
