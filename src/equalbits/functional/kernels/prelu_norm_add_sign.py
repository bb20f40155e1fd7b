"""Launch the Triton kernels of :mod:`equalbits.functional.fused_norm`: two passes over memory each way, deterministic.

Batch norm needs its sums before it can write. So forward and backward each take two passes over a (position, channel)
matrix, with a small kernel between them that combines the sums of the strips of rows. The kernels are in
``prelu_norm_add_sign_triton``.
"""

# mypy: allow-untyped-calls

import torch
import triton
from torch import Tensor

from equalbits.functional.fused_norm import as_rows, from_rows
from equalbits.functional.kernels import prelu_norm_add_sign_triton as kernels

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_TILE = 2048  # entries per program: two 16-byte loads for each thread of 4 warps
_COLUMNS = 64  # channels per tile: a cache line of 128 bytes in 16-bit input
SUM_PASS = (4096, 264)  # entries per tile and number of programs: two per multiprocessor of a large GPU
COMBINED = 8  # channels per program that combines strips: 32 bytes of each strip, the least a GPU reads

_WARPS = {"num_warps": 4, "enable_fp_fusion": True}


def forward(
    c: Tensor,
    slope: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    eps: float,
    signs: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute :func:`equalbits.functional.fused_norm.reference_forward`."""
    rows = as_rows(c)
    count, channels = rows.shape
    added = None if residual is None else as_rows(residual)
    strips, tiles, tile = split_rows(count, channels, *SUM_PASS)
    sums, combine, write = tile_settings(count, strips, tiles, tile | {"SLOPES": 0 if slope is None else slope.numel()})
    partial = torch.empty((4, strips, channels), dtype=torch.float32, device=c.device)
    stats = torch.empty((5, channels), dtype=torch.float32, device=c.device)
    y = torch.empty_like(rows)
    s = torch.empty_like(rows) if signs else None
    packed = (count, triton.cdiv(channels, 8)) if signs else 0
    positive, near = (rows.new_empty(packed, dtype=torch.uint8) for _ in range(2))
    blocks = triton.cdiv(channels, tile["COLUMNS"])
    with torch.cuda.device_of(c):
        kernels.sum_forward[(strips, blocks)](rows, slope, partial, count, tiles, **sums)
        kernels.combine_forward[(triton.cdiv(channels, COMBINED),)](
            partial, stats, count, tiles, strips, eps, **combine
        )
        kernels.write_forward[(triton.cdiv(count, write["ROWS"]), blocks)](
            rows, slope, weight, bias, added, stats, y, s, positive, near, count, BITS=signs, **write
        )
    return from_rows(y, c), rows.new_empty(0) if s is None else from_rows(s, c), positive, near, stats


def backward(
    g_y: Tensor | None,
    g_s: Tensor | None,
    c: Tensor,
    slope: Tensor | None,
    weight: Tensor,
    near: Tensor,
    stats: Tensor,
    *,
    overwrite: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute :func:`equalbits.functional.fused_norm.reference_backward`; ``overwrite`` writes the gradient into c."""
    rows = as_rows(c)
    count, channels = rows.shape
    of_y, of_s = (None if g is None else as_rows(g) for g in (g_y, g_s))
    strips, tiles, tile = split_rows(count, channels, *SUM_PASS)
    sums, combine, write = tile_settings(count, strips, tiles, tile | {"SLOPES": 0 if slope is None else slope.numel()})
    partial = torch.empty((3, strips, channels), dtype=torch.float32, device=c.device)
    factors = torch.empty((3, channels), dtype=torch.float32, device=c.device)
    g_affine = torch.empty((2, channels), dtype=torch.float32, device=c.device)
    g_slope = stats.new_empty(0 if slope is None else channels)
    total = None if of_s is None else torch.empty_like(rows)
    g_c = rows if overwrite else torch.empty_like(rows)  # a program reads its tile before it writes it
    blocks = triton.cdiv(channels, tile["COLUMNS"])
    with torch.cuda.device_of(c):
        kernels.sum_backward[(strips, blocks)](
            of_y, of_s, near, rows, slope, stats, total, partial, count, tiles, **sums
        )
        kernels.combine_backward[(triton.cdiv(channels, COMBINED),)](
            partial, stats, slope, weight, factors, g_affine, g_slope, count, strips, **combine
        )
        kernels.write_backward[(triton.cdiv(count, write["ROWS"]), blocks)](
            of_y if total is None else total, rows, slope, stats, factors, g_c, count, **write
        )
    return rows.new_empty(0) if total is None else from_rows(total, c), from_rows(g_c, c), g_affine, g_slope


def split_rows(count: int, channels: int, entries: int, programs: int) -> tuple[int, int, dict[str, int]]:
    """Return the number of strips of rows, the tiles per strip, and the shape of a tile."""
    columns = min(_COLUMNS, max(8, triton.next_power_of_2(channels)))
    rows = entries // columns
    wanted = max(1, programs // triton.cdiv(channels, columns))
    tiles = triton.cdiv(triton.cdiv(count, rows), wanted)
    return triton.cdiv(count, rows * tiles), tiles, {"C": channels, "ROWS": rows, "COLUMNS": columns}


def tile_settings(count: int, strips: int, tiles: int, tile: dict[str, int]) -> tuple[dict[str, int], ...]:
    """Return the compile-time settings of the kernels that sum, combine and write."""
    whole = tile["C"] % tile["COLUMNS"] == 0
    sums = tile | _WARPS | {"EVEN": whole and count % (tile["ROWS"] * tiles) == 0}
    combine = tile | {"STRIPS": triton.next_power_of_2(strips), "COLUMNS": COMBINED, "num_warps": 8}
    rows = _TILE // tile["COLUMNS"]
    return sums, combine, tile | _WARPS | {"ROWS": rows, "EVEN": whole and count % rows == 0}
