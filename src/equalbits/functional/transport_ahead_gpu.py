"""The ranking of every layer of a net at once on a GPU: a launch per size of row, scale, cast and layout folded in.

Each row is ranked where it lies in memory. A layer in ``channels_last`` keeps its connections in another order than
the one ties go by; only where weights tie is that order worked out. The edge between −1 and +1 is found by probing two
thresholds at a time: first where a normal distribution would have it, then in proportion to the counts on both sides.
Every eighth time the floats' own bits are cut in four, so that no distribution of weights makes it slow.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803 (a kernel's compile-time settings are in capitals)

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LONGEST = 32768  # connections whose keys one program holds
_SHORT = 1024  # rows up to here share a launch, or two: what a program wastes on a shorter row is little

_TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


class Layer(NamedTuple):
    """What is ranked: float32 ``latents`` with filters first, into ``out`` of the same strides, as ``scale`` · ±1."""

    latents: Tensor
    out: Tensor
    scale: Tensor
    negatives: int  # of each filter


class Kind(NamedTuple):
    """What a launch is compiled for."""

    block: int
    tail: int
    warps: int
    aligned: bool  # every row begins at a multiple of 16 bytes, so that loads and stores may be that wide
    dtype: torch.dtype


class Ranking:
    """Ranks the rows of many layers; where they lie is noted once, so they must stay there."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)  # held, so that the addresses stay theirs
        rows: dict[Kind, list[list[int]]] = {}
        for layer in layers:
            rows.setdefault(_kind(layer), []).extend(_records(layer))
        device = layers[0].latents.device
        self.tables = [(kind, torch.tensor(records, device=device)) for kind, records in rows.items()]
        self.launch_of = [list(rows).index(_kind(layer)) for layer in layers]  # for each layer which launch ranks it

    def __len__(self) -> int:
        return len(self.tables)

    def launch(self, number: int) -> None:
        """Rank all rows of one size, on the current stream. Those that the first layers need come first."""
        kind, table = self.tables[number]
        settings = {"BLOCK": kind.block, "TAIL": kind.tail, "ALIGNED": kind.aligned, "TYPE": _TYPES[kind.dtype]}
        settings["num_warps"] = kind.warps
        if not torch.version.hip and kind.warps >= 4:  # so that several rows run side by side on one processor
            settings["maxnreg"] = 64
        with torch.cuda.device_of(table):
            _ahead[(len(table),)](table, **settings, enable_fp_fusion=False)


def _kind(layer: Layer) -> Kind:
    """How a program holds the rows of a layer: layers that agree in it share a launch.

    A row is held as a block and a tail, both powers of two: 4608 connections, as a 3×3 filter of 512 channels has, as
    4096 + 512 and not in 8192 places.
    """
    connections = layer.latents[0].numel()
    block = max(128 if connections <= 128 else _SHORT, triton.next_power_of_2(connections))
    tail = 0
    if connections > _SHORT and connections - block // 2 <= block // 4:
        block, tail = block // 2, max(32, triton.next_power_of_2(connections - block // 2))
    warps = 1 if block == 128 else max(4, min(16, block // 512))
    whole = connections % 8 == 0 and layer.latents.data_ptr() % 16 == 0 and layer.out.data_ptr() % 16 == 0
    return Kind(block, tail, warps, whole, layer.out.dtype)


def _records(layer: Layer) -> list[list[int]]:
    """For each row where it is read, written and finds its scale; its length, channels, count of −1, first guess."""
    latents, out = layer.latents, layer.out
    connections = latents[0].numel()
    inner = latents.shape[1] if latents.dim() == 4 and latents.stride(1) == 1 else connections
    share = min(max(layer.negatives / connections, 1e-6), 1 - 1e-6)
    guess = round(NormalDist().inv_cdf(share) * 65536)
    starts = [row * latents.stride(0) for row in range(len(latents))]
    return [
        [
            latents.data_ptr() + start * latents.element_size(),
            out.data_ptr() + start * out.element_size(),
            layer.scale.data_ptr(),
            *(connections, inner, layer.negatives, guess),
        ]
        for start in starts
    ]


def can_rank(latents: Tensor) -> bool:
    """Whether a layer's rows lie so that this module can rank them."""
    dense = latents.is_contiguous() or (latents.dim() == 4 and latents.is_contiguous(memory_format=torch.channels_last))
    connections = math.prod(latents.shape[1:])
    return latents.dtype == torch.float32 and dense and 0 < connections <= LONGEST and len(latents) > 0


@triton.jit
def _ahead(table, BLOCK: tl.constexpr, TAIL: tl.constexpr, ALIGNED: tl.constexpr, TYPE: tl.constexpr):
    record = table + tl.program_id(0) * 7
    rows = tl.load(record).to(tl.pointer_type(tl.float32))
    out = tl.load(record + 1).to(tl.pointer_type(TYPE))
    if ALIGNED:
        rows = tl.multiple_of(rows, 16)
        out = tl.multiple_of(out, 16)
    scale = tl.load(tl.load(record + 2).to(tl.pointer_type(tl.float32)))
    connections = tl.load(record + 3).to(tl.int32)
    inner = tl.load(record + 4).to(tl.int32)
    wanted = tl.load(record + 5).to(tl.int32)
    guess = tl.load(record + 6).to(tl.float32) / 65536
    column = tl.arange(0, BLOCK)
    values = tl.load(rows + column, mask=column < connections, other=0.0)
    most = tl.max(tl.abs(_key(values)), axis=0)
    total = tl.sum(values, axis=0)
    squares = tl.sum(values * values, axis=0)
    keys = tl.where(column < connections, _key(values), 0x7FFFFFFF)  # above every finite key
    rest = keys
    if TAIL > 0:
        behind = BLOCK + tl.arange(0, TAIL)
        more = tl.load(rows + behind, mask=behind < connections, other=0.0)
        most = tl.maximum(most, tl.max(tl.abs(_key(more)), axis=0))
        total += tl.sum(more, axis=0)
        squares += tl.sum(more * more, axis=0)
        rest = tl.where(behind < connections, _key(more), 0x7FFFFFFF)
    mean = total / connections
    spread = tl.sqrt(tl.maximum(squares / connections - mean * mean, 0.0))
    edge, upto = _edge(keys, rest, wanted, -most - 1, most, connections, mean + guess * spread, spread, TAIL)
    last = connections - 1
    if upto > wanted:  # tied: of the weights at the edge those at lower places, in the layer's own order, get −1
        low = -1
        while low + 1 < last:
            middle = (low + last) // 2
            found = _negatives(keys, 0, edge, middle, connections, inner)
            if TAIL > 0:
                found += _negatives(rest, BLOCK, edge, middle, connections, inner)
            last = tl.where(found >= wanted, middle, last)
            low = tl.where(found >= wanted, low, middle)
    _write(out, column, keys, edge, last, upto > wanted, wanted, most, scale, connections, inner, TYPE)
    if TAIL > 0:
        behind = BLOCK + tl.arange(0, TAIL)
        _write(out, behind, rest, edge, last, upto > wanted, wanted, most, scale, connections, inner, TYPE)


@triton.jit
def _write(out, column, keys, edge, last, tied, wanted, most, scale, connections, inner, TYPE: tl.constexpr):
    """Negative below the edge, and at it up to the last place."""
    negative = keys <= edge
    if tied:
        negative = (keys < edge) | ((keys == edge) & (_place(column, connections, inner) <= last))
    symbols = tl.where(negative & (wanted > 0), -scale, scale)
    symbols = tl.where(most < 0x7F800000, symbols, float("nan"))
    tl.store(out + column, symbols.to(TYPE), mask=column < connections)


@triton.jit
def _place(column, connections, inner):
    """Where a connection stands in the layer's own order, which ties go by."""
    return (column % inner) * (connections // inner) + column // inner


@triton.jit
def _negatives(keys, FIRST: tl.constexpr, edge, last, connections, inner):
    """How many keys lie below the edge, or at it at a place up to the last."""
    place = _place(FIRST + tl.arange(0, keys.shape[0]), connections, inner)
    return tl.sum(((keys < edge) | ((keys == edge) & (place <= last))).to(tl.int32), axis=0)


@triton.jit
def _edge(keys, rest, wanted, low, high, connections, guess, spread, TAIL: tl.constexpr):
    """The key with ``wanted`` keys at or below it, or if ties forbid that, the least with more; and how many."""
    under = 0  # keys at or below ``low``: fewer than wanted
    upto = connections  # keys at or below ``high``: enough
    width = 1.25 * spread / tl.sqrt(connections.to(tl.float32))
    turn = 0
    while (low + 1 < high) & (upto != wanted) & (wanted > 0):
        if turn > 0:
            bottom = _value(low)
            span = _value(high) - bottom
            between = (upto - under).to(tl.float32)
            share = ((wanted - under).to(tl.float32) - 0.5) / between
            guess = bottom + share * span
            width = span * (tl.sqrt(between * share * (1 - share)) + 0.25) / between
            width = tl.where(between < 16, 0.5 * span / between, width)
        third = (high >> 2) - (low >> 2)
        sound = (turn % 8 < 7) & (guess == guess) & (width == width)
        first = tl.where(sound, _key(guess - width), low + third)
        second = tl.where(sound, _key(guess + width), high - third)
        first = tl.minimum(tl.maximum(first, low + 1), high - 1)
        second = tl.minimum(tl.maximum(second, first), high - 1)
        both = tl.sum((keys <= first).to(tl.int32) + ((keys <= second).to(tl.int32) << 16), axis=0)
        if TAIL > 0:
            both += tl.sum((rest <= first).to(tl.int32) + ((rest <= second).to(tl.int32) << 16), axis=0)
        below = both & 0xFFFF
        beneath = (both >> 16) & 0xFFFF  # 32768 of them look negative
        # From the outside in: the second probe first, then the first.
        high = tl.where(beneath >= wanted, second, high)
        upto = tl.where(beneath >= wanted, beneath, upto)
        low = tl.where(beneath < wanted, second, low)
        under = tl.where(beneath < wanted, beneath, under)
        high = tl.where(below >= wanted, first, high)
        upto = tl.where(below >= wanted, below, upto)
        low = tl.where((below < wanted) & (beneath >= wanted), first, low)
        under = tl.where((below < wanted) & (beneath >= wanted), below, under)
        turn += 1
    return high, upto


@triton.jit
def _key(values):
    """Integers in the order of the floats, −0.0 and +0.0 both 0."""
    bits = values.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    return tl.where(bits < 0, -magnitude, magnitude)


@triton.jit
def _value(key):
    """The float whose key this is."""
    bits = tl.where(key < 0, (-key) | -0x80000000, key)
    return bits.to(tl.float32, bitcast=True)
