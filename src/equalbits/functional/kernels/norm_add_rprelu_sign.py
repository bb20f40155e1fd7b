"""Launch the Triton kernels of :mod:`equalbits.functional.fused_rprelu`: two passes over memory each way.

The first pass of the forward and the last of the backward are kernels of ``prelu_norm_add_sign_triton``.
"""

# mypy: allow-untyped-calls

import torch
import triton
from torch import Tensor

from equalbits.functional.fused_norm import as_rows, from_rows
from equalbits.functional.kernels import norm_add_rprelu_sign_triton as kernels
from equalbits.functional.kernels import prelu_norm_add_sign_triton as norm_kernels
from equalbits.functional.kernels.prelu_norm_add_sign import COMBINED, DTYPES, SUM_PASS, split_rows, tile_settings

__all__ = ["DTYPES", "backward", "forward"]

#: Entries per tile and number of programs of the first backward pass: four per multiprocessor of a large GPU. Its five
#: sums take many registers, so tiles are small.
BACKWARD_PASS = (1024, 512)


def forward(c: Tensor, residual: Tensor | None, *others: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute :func:`equalbits.functional.fused_rprelu.reference_forward`."""
    *vectors, shift, eps = others
    rows = as_rows(c)
    count, channels = rows.shape
    added = None if residual is None else as_rows(residual)
    strips, tiles, tile = split_rows(count, channels, *SUM_PASS)
    sums, combine, write = tile_settings(count, strips, tiles, tile)
    partial = torch.empty((2, strips, channels), dtype=torch.float32, device=c.device)
    stats = torch.empty((3, channels), dtype=torch.float32, device=c.device)
    y = torch.empty_like(rows)
    s = rows.new_empty(0) if shift is None else torch.empty_like(rows)
    positive = rows.new_empty(0 if shift is None else (count, triton.cdiv(channels, 8)), dtype=torch.uint8)
    blocks = triton.cdiv(channels, tile["COLUMNS"])
    with torch.cuda.device_of(c):
        norm_kernels.sum_forward[(strips, blocks)](rows, None, partial, count, tiles, SLOPES=0, **sums)
        norm_kernels.combine_forward[(triton.cdiv(channels, COMBINED),)](
            partial, stats, count, tiles, strips, eps, SLOPES=0, **combine
        )
        kernels.write_forward[(triton.cdiv(count, write["ROWS"]), blocks)](
            rows, added, *vectors, shift, stats, y, s, positive, count, **write
        )
    return from_rows(y, c), s if shift is None else from_rows(s, c), positive, stats


def backward(
    g_y: Tensor | None,
    g_s: Tensor | None,
    c: Tensor,
    residual: Tensor | None,
    *others: Tensor,
    overwrite: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute :func:`equalbits.functional.fused_rprelu.reference_backward`; ``overwrite`` writes into c."""
    *vectors, shift, stats = others
    rows = as_rows(c)
    count, channels = rows.shape
    of_y, of_s, added = (None if each is None else as_rows(each) for each in (g_y, g_s, residual))
    strips, tiles, tile = split_rows(count, channels, *BACKWARD_PASS)
    sums, combine, write = tile_settings(count, strips, tiles, tile)
    kinds = 4 if of_s is None else 5
    partial = torch.empty((kinds, strips, channels), dtype=torch.float32, device=c.device)
    factors = torch.empty((3, channels), dtype=torch.float32, device=c.device)
    gradients = torch.empty((kinds + 1, channels), dtype=torch.float32, device=c.device)
    g_sum = torch.empty_like(rows)
    g_c = rows if overwrite else torch.empty_like(rows)  # a program reads its tile before it writes it
    blocks = triton.cdiv(channels, tile["COLUMNS"])
    with torch.cuda.device_of(c):
        kernels.sum_backward[(strips, blocks)](
            of_y, of_s, rows, added, *vectors, shift, stats, g_sum, partial, count, tiles, **sums
        )
        kernels.combine_backward[(triton.cdiv(channels, COMBINED),)](
            partial, stats, vectors[0], factors, gradients, count, strips, SHIFT=of_s is not None, **combine
        )
        norm_kernels.write_backward[(triton.cdiv(count, write["ROWS"]), blocks)](
            g_sum, rows, None, stats, factors, g_c, count, SLOPES=0, **write
        )
    return from_rows(g_sum, c), from_rows(g_c, c), gradients
