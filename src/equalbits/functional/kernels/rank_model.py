"""Rank all layers of a model in a few launches, one per row size, and write scaled symbols in a chosen dtype.

Equal to the scale times ``transport_symbols`` of each layer. The kernel is in ``rank_model_triton``.
"""

# mypy: allow-untyped-calls

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from equalbits.functional.kernels.rank_model_triton import rank_rows
from equalbits.functional.kernels.sizes import cdiv, next_power_of_2

LONGEST = 32768  # connections whose keys one program holds
_SHORT = 1024  # rows up to here share one or two launches: padding short rows costs little
_ALIGNED = 16  # entries to a multiple of which a layer's symbols begin


class RankedLayer(NamedTuple):
    """A layer to rank: float32 ``latents``, filters first, to ``scale`` · ±1 of ``dtype`` in the same strides."""

    latents: Tensor
    dtype: torch.dtype
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
    """Rank the rows of several layers. The addresses of latents are stored once, so they must stay in place.

    Each launch writes to a buffer of its own, the symbols of its layers one behind the other.
    """

    def __init__(self, layers: Sequence[RankedLayer]) -> None:
        self.layers = tuple(layers)  # keeps the tensors alive, and so their addresses valid
        rows: dict[LaunchConfig, list[list[int]]] = {}
        self.sizes: dict[LaunchConfig, int] = {}  # of the buffers
        self.starts: list[int] = []  # of each layer in its buffer
        for layer in layers:
            config = _launch_config(layer)
            self.starts.append(self.sizes.get(config, 0))
            rows.setdefault(config, []).extend(_row_records(layer, self.starts[-1]))
            self.sizes[config] = self.starts[-1] + _ALIGNED * cdiv(layer.latents.numel(), _ALIGNED)
        self.device = layers[0].latents.device
        self.launches = [(config, torch.tensor(records, device=self.device)) for config, records in rows.items()]
        self.notes = [torch.zeros(len(records), 2, device=self.device) for records in rows.values()]
        self.launch_of = [list(rows).index(_launch_config(layer)) for layer in layers]  # launch index of each layer

    def __len__(self) -> int:
        return len(self.launches)

    def allocate(self) -> list[Tensor]:
        """Return a buffer for each launch."""
        return [torch.empty(size, dtype=config.dtype, device=self.device) for config, size in self.sizes.items()]

    def symbols(self, buffers: Sequence[Tensor]) -> list[Tensor]:
        """Return the symbols of each layer, which are parts of the buffers."""
        placed = zip(self.layers, self.launch_of, self.starts, strict=True)
        return [
            buffers[number].as_strided(layer.latents.shape, layer.latents.stride(), start)
            for layer, number, start in placed
        ]

    def launch(self, number: int, buffer: Tensor) -> None:
        """Rank all rows of one size, on the current stream. Launches are ordered by the first layer that needs them."""
        config, table = self.launches[number]
        settings = {"BLOCK": config.block, "TAIL": config.tail, "ALIGNED": config.aligned, "num_warps": config.warps}
        if not torch.version.hip and config.warps >= 4:  # so that several rows run concurrently on one multiprocessor
            settings["maxnreg"] = 64
        with torch.cuda.device_of(table):
            rank_rows[(len(table),)](table, self.notes[number], buffer, **settings, enable_fp_fusion=False)


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
    aligned = connections % 8 == 0 and layer.latents.data_ptr() % 16 == 0
    return LaunchConfig(block, tail, warps, aligned, layer.dtype)


def _row_records(layer: RankedLayer, place: int) -> list[list[int]]:
    """Return per row its input's address, its output's place, the scale's address, length, inner axis, count of −1, and
    first guess; the layer's output begins at ``place``."""
    latents = layer.latents
    connections = latents[0].numel()
    inner = latents.shape[1] if latents.dim() == 4 and latents.stride(1) == 1 else connections
    share = min(max(layer.negatives / connections, 1e-6), 1 - 1e-6)
    guess = round(NormalDist().inv_cdf(share) * 65536)
    starts = [row * latents.stride(0) for row in range(len(latents))]
    return [
        [
            latents.data_ptr() + start * latents.element_size(),
            place + start,
            layer.scale.data_ptr(),
            *(connections, inner, layer.negatives, guess),
        ]
        for start in starts
    ]
