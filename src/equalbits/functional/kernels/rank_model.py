"""Rank all layers of a model in a few launches, one per row size, and write scaled symbols in a chosen dtype.

Equal to the scale times ``transport_symbols`` of each layer. The kernel is in ``rank_model_triton``.
"""

# mypy: allow-untyped-calls

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from equalbits.functional.kernels.rank_model_triton import rank_rows
from equalbits.functional.kernels.sizes import next_power_of_2

LONGEST = 32768  # connections whose keys one program holds
_SHORT = 1024  # rows up to here share one or two launches: padding short rows costs little

_TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


class RankedLayer(NamedTuple):
    """A layer to rank: float32 ``latents``, filters first, into ``out`` of the same strides, as ``scale`` · ±1."""

    latents: Tensor
    out: Tensor
    scale: Tensor
    negatives: int  # per filter


class LaunchConfig(NamedTuple):
    """Compile-time settings of a launch."""

    block: int
    tail: int
    warps: int
    aligned: bool  # every row begins at a multiple of 16 bytes, so loads and stores may be 16 bytes wide
    dtype: torch.dtype


class ModelRanking:
    """Rank the rows of several layers. Their addresses are stored once, so the tensors must stay in place."""

    def __init__(self, layers: Sequence[RankedLayer]) -> None:
        self.layers = tuple(layers)  # keeps the tensors alive, and so their addresses valid
        rows: dict[LaunchConfig, list[list[int]]] = {}
        for layer in layers:
            rows.setdefault(_launch_config(layer), []).extend(_row_records(layer))
        device = layers[0].latents.device
        self.launches = [(config, torch.tensor(records, device=device)) for config, records in rows.items()]
        self.notes = [torch.zeros(len(records), 2, device=device) for records in rows.values()]
        self.launch_of = [list(rows).index(_launch_config(layer)) for layer in layers]  # launch index of each layer

    def __len__(self) -> int:
        return len(self.launches)

    def launch(self, number: int) -> None:
        """Rank all rows of one size, on the current stream. Launches are ordered by the first layer that needs them."""
        config, table = self.launches[number]
        settings = {"BLOCK": config.block, "TAIL": config.tail, "ALIGNED": config.aligned, "TYPE": _TYPES[config.dtype]}
        settings["num_warps"] = config.warps
        if not torch.version.hip and config.warps >= 4:  # so that several rows run concurrently on one multiprocessor
            settings["maxnreg"] = 64
        with torch.cuda.device_of(table):
            rank_rows[(len(table),)](table, self.notes[number], **settings, enable_fp_fusion=False)


def can_rank(latents: Tensor) -> bool:
    """Return True if the dtype, layout and size of a layer's latents are supported."""
    dense = latents.is_contiguous() or (latents.dim() == 4 and latents.is_contiguous(memory_format=torch.channels_last))
    connections = math.prod(latents.shape[1:])
    return latents.dtype == torch.float32 and dense and 0 < connections <= LONGEST and len(latents) > 0


def _launch_config(layer: RankedLayer) -> LaunchConfig:
    """Choose the launch of a layer; layers with equal configurations share a launch.

    A row is held as a block and a tail, both powers of two: the 4608 connections of a 3×3 filter with 512 channels take
    4096 + 512 entries instead of 8192.
    """
    connections = layer.latents[0].numel()
    block = max(128 if connections <= 128 else _SHORT, next_power_of_2(connections))
    tail = 0
    if connections > _SHORT and connections - block // 2 <= block // 4:
        block, tail = block // 2, max(32, next_power_of_2(connections - block // 2))
    warps = 1 if block == 128 else max(4, min(32, block // 1024))
    aligned = connections % 8 == 0 and layer.latents.data_ptr() % 16 == 0 and layer.out.data_ptr() % 16 == 0
    return LaunchConfig(block, tail, warps, aligned, layer.out.dtype)


def _row_records(layer: RankedLayer) -> list[list[int]]:
    """Return per row its input, output and scale addresses, length, inner axis, count of −1 and first guess."""
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
