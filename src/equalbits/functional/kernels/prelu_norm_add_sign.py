"""Launch the Triton kernels of :mod:`equalbits.functional.fused_norm`: two passes over memory each way, deterministic.

Batch norm needs its sums before it can write. So forward and backward each take two passes over a (position, channel)
matrix, with a small kernel between them that combines the sums of the strips of rows. The kernels are in
``prelu_norm_add_sign_triton``.
"""

# mypy: allow-untyped-calls

from collections.abc import Container, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equalbits.functional.fused_norm import as_rows, from_rows
from equalbits.functional.kernels import prelu_norm_add_sign_triton as kernels
from equalbits.functional.kernels.sizes import cdiv, next_power_of_2

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8)

_TILE = 2048  # entries per program: two 16-byte loads for each thread of 4 warps
_COLUMNS = 64  # channels per tile: a cache line of 128 bytes in 16-bit input
SUM_PASS = (4096, 264)  # entries per tile and number of programs: two per multiprocessor of a large GPU
COMBINED = 8  # channels per program that combines strips: 32 bytes of each strip, the least a GPU reads

_WARPS = {"num_warps": 4, "enable_fp_fusion": True}


class Launches(NamedTuple):
    """Grids and compile-time settings of the kernels that sum, combine and write."""

    strips: int  # of rows
    tiles: int  # per strip
    blocks: int  # of channels
    sums: dict[str, int]
    combine: dict[str, int]
    write: dict[str, int]
    combine_grid: tuple[int]
    write_grid: tuple[int, int]


def forward(
    c: Tensor,
    slope: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    eps: float,
    signs: bool,
    in_8_bits: bool,
) -> tuple[Tensor, ...]:
    """Compute :func:`equalbits.functional.fused_norm.reference_forward`."""
    channels = c.shape[1]
    count = c.numel() // channels
    rows, added = in_rows(c), None if residual is None else in_rows(residual)
    slope, weight, bias = in_memory((slope, weight, bias))
    plan = plan_launches(count, channels, 0 if slope is None else slope.numel(), SUM_PASS)
    partial = torch.empty((4, plan.strips, channels), dtype=torch.float32, device=c.device)
    stats = torch.empty((5, channels), dtype=torch.float32, device=c.device)
    y = empty_rows(c)
    s = empty_rows(c) if signs else None
    packed = (count, cdiv(channels, 8)) if signs else (0,)
    positive = torch.empty(packed, dtype=torch.uint8, device=c.device)
    near = torch.empty(packed, dtype=torch.uint8, device=c.device)
    kept = empty_rows(c, torch.int8) if in_8_bits else None
    with torch.cuda.device_of(c):
        kernels.sum_forward[(plan.strips, plan.blocks)](rows, slope, partial, count, plan.tiles, **plan.sums)
        kernels.combine_forward[plan.combine_grid](partial, stats, count, plan.tiles, plan.strips, eps, **plan.combine)
        kernels.write_forward[plan.write_grid](
            rows, slope, weight, bias, added, stats, y, s, positive, near, kept, count, BITS=signs, **plan.write
        )
    kept = c.new_empty(0, dtype=torch.int8) if kept is None else kept
    return y, c.new_empty(0) if s is None else s, positive, near, kept, stats


def backward(
    g_y: Tensor | None,
    g_s: Tensor | None,
    c: Tensor,
    slope: Tensor | None,
    weight: Tensor,
    near: Tensor,
    stats: Tensor,
    *,
    overwrite: Container[str] = (),
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute :func:`equalbits.functional.fused_prelu.reference_backward`.

    With "c" in ``overwrite`` its gradient takes its memory, and with "g_s" that of ``y`` takes the memory of ``g_s``.
    """
    channels = c.shape[1]
    count = c.numel() // channels
    rows, of_y, of_s = in_rows(c), None if g_y is None else in_rows(g_y), None if g_s is None else in_rows(g_s)
    slope, weight = in_memory((slope, weight))
    slopes = 0 if slope is None else slope.numel()
    plan = plan_launches(count, channels, slopes, SUM_PASS)
    partial = torch.empty((3, plan.strips, channels), dtype=torch.float32, device=c.device)
    factors = torch.empty((3, channels), dtype=torch.float32, device=c.device)
    g_affine = torch.empty((2, channels), dtype=torch.float32, device=c.device)
    g_slope = torch.empty(channels if slopes else 0, dtype=torch.float32, device=c.device)
    dtype = (g_y if g_s is None else g_s).dtype  # type: ignore[union-attr]
    # Where a tile is overwritten, the same program has read it.
    total = None if of_s is None else in_place_of(of_s, c) if "g_s" in overwrite else empty_rows(c, dtype)
    g_c = in_place_of(rows, c) if "c" in overwrite else empty_rows(c, dtype)
    with torch.cuda.device_of(c):
        kernels.sum_backward[(plan.strips, plan.blocks)](
            of_y, of_s, near, rows, slope, stats, total, partial, count, plan.tiles, **plan.sums
        )
        kernels.combine_backward[plan.combine_grid](
            partial, stats, slope, weight, factors, g_affine, g_slope, count, plan.strips, **plan.combine
        )
        kernels.write_backward[plan.write_grid](
            of_y if total is None else total, rows, slope, stats, factors, g_c, count, **plan.write
        )
    return c.new_empty(0, dtype=dtype) if total is None else total, g_c, g_affine, g_slope


def in_rows(tensor: Tensor) -> Tensor:
    """Return the tensor with its memory in the order of (position, channel): itself, if it is channels last."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else as_rows(tensor)


def in_place_of(rows: Tensor, c: Tensor) -> Tensor:
    """Return what :func:`in_rows` returned in the shape of ``c``, to be overwritten."""
    return rows if c.dim() == 4 else from_rows(rows, c)


def in_memory(vectors: Iterable[Tensor | None]) -> list[Any]:
    """Return vectors with their entries next to each other, as the kernels read them."""
    return [None if each is None else each.contiguous() for each in vectors]


def empty_rows(c: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return an empty tensor of the shape of ``c``, channels last, by default of its dtype."""
    if c.dim() == 4:
        return torch.empty_like(c, dtype=dtype, memory_format=torch.channels_last)
    return from_rows(c.new_empty((c.numel() // c.shape[1], c.shape[1]), dtype=dtype), c)


@lru_cache(maxsize=1024)
def plan_launches(count: int, channels: int, slopes: int | None, sum_pass: tuple[int, int]) -> Launches:
    """Return the launches for (position, channel): the strips of rows that are summed, and the shapes of tiles.

    ``slopes`` are those of the PReLU, None for kernels without this setting.
    """
    entries, programs = sum_pass
    columns = min(_COLUMNS, max(8, next_power_of_2(channels)))
    rows = entries // columns
    wanted = max(1, programs // cdiv(channels, columns))
    tiles = cdiv(cdiv(count, rows), wanted)
    strips = cdiv(count, rows * tiles)
    tile = {"C": channels, "ROWS": rows, "COLUMNS": columns} | ({} if slopes is None else {"SLOPES": slopes})
    whole = channels % columns == 0
    sums = tile | _WARPS | {"EVEN": whole and count % (rows * tiles) == 0}
    combine = tile | {"STRIPS": next_power_of_2(strips), "COLUMNS": COMBINED} | _WARPS | {"num_warps": 8}
    written, blocks = _TILE // columns, cdiv(channels, columns)
    write = tile | _WARPS | {"ROWS": written, "EVEN": whole and count % written == 0}
    return Launches(
        strips, tiles, blocks, sums, combine, write, (cdiv(channels, COMBINED),), (cdiv(count, written), blocks)
    )
