"""The ranking of every layer of a net at once on a GPU: a launch per size of row, scale, cast and layout folded in.

Each row is ranked where it lies in memory, by the kernel of ``rank_model_triton``.
"""

# mypy: allow-untyped-calls

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from equalbits.functional.kernels.rank_model_triton import rank_rows

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
        self.notes = [torch.zeros(len(records), 2, device=device) for records in rows.values()]
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
            rank_rows[(len(table),)](table, self.notes[number], **settings, enable_fp_fusion=False)


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
    warps = 1 if block == 128 else max(4, min(32, block // 1024))
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
