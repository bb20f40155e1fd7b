"""The ranking of every layer of a net at once on a GPU: a launch per size of row, scale, cast and layout folded in.

Each row is ranked where it lies in memory. A layer in ``channels_last`` keeps its connections in another order than
the one ties go by; only where weights tie is that order worked out. The edge between −1 and +1 is found by probing two
thresholds at a time: first where a normal distribution would have it, then in proportion to the counts on both sides.
Every fourth time the floats' own bits are cut in three, so that no distribution of weights makes it slow.
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
_SIZES = ((128, 1), (1024, 4), (2048, 4), (4096, 8), (8192, 16), (16384, 32), (LONGEST, 32))  # longest row, warps
_TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


class Layer(NamedTuple):
    """What is ranked: float32 ``latents`` with filters first, into ``out`` of the same strides, as ``scale`` · ±1."""

    latents: Tensor
    out: Tensor
    scale: Tensor
    negatives: int  # of each filter


class Ranking:
    """Ranks the rows of many layers; where they lie is noted once, so they must stay there."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)  # held, so that the addresses stay theirs
        rows: dict[tuple[int, int, torch.dtype], list[list[int]]] = {}
        for layer in layers:
            rows.setdefault(_kind(layer), []).extend(_records(layer))
        device = layers[0].latents.device
        self.tables = [(*key, torch.tensor(records, device=device)) for key, records in rows.items()]
        self.launch_of = [list(rows).index(_kind(layer)) for layer in layers]  # for each layer which launch ranks it

    def __len__(self) -> int:
        return len(self.tables)

    def launch(self, number: int) -> None:
        """Rank all rows of one size, on the current stream. Those that the first layers need come first."""
        size, warps, dtype, table = self.tables[number]
        with torch.cuda.device_of(table):
            _ahead[(len(table),)](table, BLOCK=size, TYPE=_TYPES[dtype], num_warps=warps, enable_fp_fusion=False)


def _kind(layer: Layer) -> tuple[int, int, torch.dtype]:
    """Size of program, warps and dtype: layers that agree in them share a launch."""
    connections = layer.latents[0].numel()
    size, warps = next(found for found in _SIZES if connections <= found[0])
    return size, warps, layer.out.dtype


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
def _ahead(table, BLOCK: tl.constexpr, TYPE: tl.constexpr):
    record = table + tl.program_id(0) * 7
    rows = tl.load(record).to(tl.pointer_type(tl.float32))
    out = tl.load(record + 1).to(tl.pointer_type(TYPE))
    scale = tl.load(tl.load(record + 2).to(tl.pointer_type(tl.float32)))
    connections = tl.load(record + 3).to(tl.int32)
    inner = tl.load(record + 4).to(tl.int32)
    wanted = tl.load(record + 5).to(tl.int32)
    guess = tl.load(record + 6).to(tl.float32) / 65536
    column = tl.arange(0, BLOCK)
    inside = column < connections
    values = tl.load(rows + column, mask=inside, other=0.0)
    keys = _key(values)
    most = tl.max(tl.abs(keys), axis=0)
    mean = tl.sum(values, axis=0) / connections
    spread = tl.sqrt(tl.maximum(tl.sum(values * values, axis=0) / connections - mean * mean, 0.0))
    keys = tl.where(inside, keys, 0x7FFFFFFF)  # above every finite key
    edge, upto = _edge(keys, wanted, -most - 1, most, connections, mean + guess * spread, spread)
    last = connections - 1
    place = column
    if upto > wanted:  # tied: of the weights at the edge those at lower places, in the layer's own order, get −1
        place = (column % inner) * (connections // inner) + column // inner
        order = tl.where(keys == edge, place, tl.where(keys < edge, -1, BLOCK))
        low = -1
        while low + 1 < last:
            middle = (low + last) // 2
            enough = tl.sum((order <= middle).to(tl.int32), axis=0) >= wanted
            last = tl.where(enough, middle, last)
            low = tl.where(enough, low, middle)
    negative = ((keys < edge) | ((keys == edge) & (place <= last))) & (wanted > 0)
    symbols = tl.where(most < 0x7F800000, tl.where(negative, -scale, scale), float("nan"))
    tl.store(out + column, symbols.to(TYPE), mask=inside)


@triton.jit
def _edge(keys, wanted, low, high, connections, guess, spread):
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
            width = span * (1.5 * tl.sqrt(between * share * (1 - share)) + 0.25) / between
            width = tl.where(between < 16, 0.5 * span / between, width)
        first = _key(guess - width)
        second = _key(guess + width)
        third = (high >> 2) - (low >> 2)
        sound = (turn % 4 < 3) & (guess == guess) & (width == width)
        first = tl.where(sound, first, low + third)
        second = tl.where(sound, second, high - third)
        first = tl.minimum(tl.maximum(first, low + 1), high - 1)
        second = tl.minimum(tl.maximum(second, first), high - 1)
        both = tl.sum((keys <= first).to(tl.int32) + ((keys <= second).to(tl.int32) << 16), axis=0)
        below = both & 0xFFFF
        beneath = both >> 16
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
