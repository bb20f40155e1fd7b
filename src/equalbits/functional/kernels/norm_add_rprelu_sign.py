"""Launch the Triton kernels of :mod:`equalbits.functional.fused_rprelu`: two passes over memory each way.

The first pass of the forward and the last of the backward are kernels of ``prelu_norm_add_sign_triton``.
"""

# mypy: allow-untyped-calls

from collections.abc import Container

import torch
from torch import Tensor

from equalbits.functional.kernels import norm_add_rprelu_sign_triton as kernels
from equalbits.functional.kernels import prelu_norm_add_sign_triton as norm_kernels
from equalbits.functional.kernels.prelu_norm_add_sign import (
    DTYPES,
    SUM_PASS,
    empty_rows,
    in_memory,
    in_place_of,
    in_rows,
    plan_launches,
)
from equalbits.functional.kernels.sizes import cdiv

__all__ = ["DTYPES", "backward", "forward"]

#: Entries per tile and number of programs of the first backward pass: four per multiprocessor of a large GPU. Its five
#: sums take many registers, so tiles are small; four programs run concurrently with up to 128 registers per thread.
BACKWARD_PASS = (1024, 512)
_OCCUPANCY = {} if torch.version.hip else {"maxnreg": 128}


def forward(c: Tensor, residual: Tensor | None, *others: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute :func:`equalbits.functional.fused_rprelu.reference_forward`."""
    *given, eps = others
    *vectors, shift = in_memory(given)
    channels = c.shape[1]
    count = c.numel() // channels
    rows, added = in_rows(c), None if residual is None else in_rows(residual)
    plan = plan_launches(count, channels, None, SUM_PASS)
    partial = torch.empty((2, plan.strips, channels), dtype=torch.float32, device=c.device)
    stats = torch.empty((3, channels), dtype=torch.float32, device=c.device)
    y = empty_rows(c)
    s = c.new_empty(0) if shift is None else empty_rows(c)
    packed = (0,) if shift is None else (count, cdiv(channels, 8))
    positive = torch.empty(packed, dtype=torch.uint8, device=c.device)
    with torch.cuda.device_of(c):
        norm_kernels.sum_forward[(plan.strips, plan.blocks)](
            rows, None, partial, count, plan.tiles, SLOPES=0, **plan.sums
        )
        norm_kernels.combine_forward[plan.combine_grid](
            partial, stats, count, plan.tiles, plan.strips, eps, SLOPES=0, **plan.combine
        )
        kernels.write_forward[plan.write_grid](rows, added, *vectors, shift, stats, y, s, positive, count, **plan.write)
    return y, s, positive, stats


def backward(
    g_y: Tensor | None,
    g_s: Tensor | None,
    c: Tensor,
    residual: Tensor | None,
    *others: Tensor,
    overwrite: Container[str] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute :func:`equalbits.functional.fused_rprelu.reference_backward`.

    With "c" in ``overwrite`` its gradient takes its memory, and with "g_s" that of the residual takes that of ``g_s``.
    """
    *vectors, shift, stats = in_memory(others)
    channels = c.shape[1]
    count = c.numel() // channels
    rows = in_rows(c)
    of_y, of_s, added = (None if each is None else in_rows(each) for each in (g_y, g_s, residual))
    plan = plan_launches(count, channels, None, BACKWARD_PASS)
    sums: dict[str, int] = plan.sums | _OCCUPANCY
    kinds = 4 if of_s is None else 5
    partial = torch.empty((kinds, plan.strips, channels), dtype=torch.float32, device=c.device)
    factors = torch.empty((3, channels), dtype=torch.float32, device=c.device)
    gradients = torch.empty((kinds + 1, channels), dtype=torch.float32, device=c.device)
    # Where a tile is overwritten, the same program has read it.
    g_sum = in_place_of(of_s, c) if of_s is not None and "g_s" in overwrite else empty_rows(c)
    g_c = in_place_of(rows, c) if "c" in overwrite else empty_rows(c)
    with torch.cuda.device_of(c):
        kernels.sum_backward[(plan.strips, plan.blocks)](
            of_y, of_s, rows, added, *vectors, shift, stats, g_sum, partial, count, plan.tiles, **sums
        )
        kernels.combine_backward[plan.combine_grid](
            partial, stats, vectors[0], factors, gradients, count, plan.strips, SHIFT=of_s is not None, **plan.combine
        )
        norm_kernels.write_backward[plan.write_grid](
            g_sum, rows, None, stats, factors, g_c, count, SLOPES=0, **plan.write
        )
    return g_sum, g_c, gradients
