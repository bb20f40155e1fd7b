"""Triton kernels of the fused batch norm, addition, RPReLU and RSign, over a (position, channel) matrix.

The sums of the forward pass and the gradient of the convolution's output are those of ``prelu_norm_add_sign_triton``
without a PReLU, which explains the strips of rows. Here are the kernels between them.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803 (compile-time settings of a kernel are in capitals)

import triton
import triton.language as tl

from equalbits.functional.kernels.prelu_norm_add_sign_triton import _row, _tile, _tile_once


@triton.jit
def _affine_rows(stats, weight, bias, before, column, C: tl.constexpr, COLUMNS: tl.constexpr):
    """Load mean, factor and offset of ``inner = (c - mean) * factor + offset``, as rows."""
    mean = _row(stats, column, C, COLUMNS)
    factor = _row(stats + 2 * C, column, C, COLUMNS) * _row(weight, column, C, COLUMNS)
    offset = _row(bias, column, C, COLUMNS)
    if before is not None:
        offset += _row(before, column, C, COLUMNS)
    return mean, factor, offset


@triton.jit
def write_forward(
    c, residual, weight, bias, before, slope, after, shift, stats, y, s, positive, count,
    C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Write the output, and with a shift the signs after it, as values and as bits."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < count)[:, None] & (column < C)[None, :]
    place = row[:, None] * C + column[None, :]
    mean, factor, offset = _affine_rows(stats, weight, bias, before, column, C, COLUMNS)
    inner = (_tile_once(c + place, inside, EVEN).to(tl.float32) - mean) * factor + offset
    if residual is not None:
        inner += _tile_once(residual + place, inside, EVEN).to(tl.float32)
    wide = tl.where(inner > 0, inner, inner * _row(slope, column, C, COLUMNS))
    if after is not None:
        wide += _row(after, column, C, COLUMNS)
    rounded = wide.to(y.dtype.element_ty)
    tl.store(y + place, rounded, mask=inside)
    if shift is not None:  # of the rounded output
        above = rounded.to(tl.float32) + _row(shift, column, C, COLUMNS) >= 0
        tl.store(s + place, tl.where(above, 1.0, -1.0).to(s.dtype.element_ty), mask=inside)
        byte = tl.program_id(1) * (COLUMNS // 8) + tl.arange(0, COLUMNS // 8)
        bits = tl.reshape(tl.where(inside, above.to(tl.int32), 0), [ROWS, COLUMNS // 8, 8])
        packed = tl.sum(bits << tl.arange(0, 8)[None, None, :], axis=2)
        byte_inside = (row < count)[:, None] & (byte * 8 < C)[None, :]
        tl.store(positive + row[:, None] * ((C + 7) // 8) + byte[None, :], packed.to(tl.uint8), mask=byte_inside)


@triton.jit
def sum_backward(
    g_y, g_s, c, residual, weight, bias, before, slope, after, shift, stats, g_sum, partial, count, tiles,
    C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Write the gradient G of the sum, before the RPReLU, and sum a strip.

    The sums are ΣG, ΣG·(c − mean), those of the gradient of ``y`` and of its product with the PReLU's inputs up to 0,
    and with ``g_s`` that of the gradient that passes the sign.
    """
    row = tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.program_id(0).to(tl.int64) * tiles * ROWS
    left = tl.minimum(count - first, tiles * ROWS).to(tl.int32)
    place = row[:, None] * C + column[None, :]
    c += first * C
    g_sum += first * C
    if residual is not None:
        residual += first * C
    if g_y is not None:
        g_y += first * C
    mean, factor, offset = _affine_rows(stats, weight, bias, before, column, C, COLUMNS)
    slopes = _row(slope, column, C, COLUMNS)
    of_sum = tl.zeros([ROWS, COLUMNS], tl.float32)
    of_weight = tl.zeros([ROWS, COLUMNS], tl.float32)
    of_after = tl.zeros([ROWS, COLUMNS], tl.float32)
    of_slope = tl.zeros([ROWS, COLUMNS], tl.float32)
    if g_s is not None:
        g_s += first * C
        if after is not None:
            afters = _row(after, column, C, COLUMNS)
        shifts = _row(shift, column, C, COLUMNS)
        of_shift = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tile in range(tiles):
        inside = (tile * ROWS + row < left)[:, None] & (column < C)[None, :]
        x = _tile(c + place, inside, EVEN).to(tl.float32) - mean  # read again by the next pass
        inner = x * factor + offset
        if residual is not None:
            inner += _tile_once(residual + place, inside, EVEN).to(tl.float32)
        if g_s is not None:
            wide = tl.where(inner > 0, inner, inner * slopes)
            if after is not None:
                wide += afters
            shifted = wide.to(g_sum.dtype.element_ty).to(tl.float32) + shifts
            g = _tile_once(g_s + place, inside, EVEN).to(tl.float32) * tl.maximum(2.0 - 2.0 * tl.abs(shifted), 0.0)
            of_shift += g
            if g_y is not None:
                g += _tile_once(g_y + place, inside, EVEN).to(tl.float32)
        else:
            g = _tile_once(g_y + place, inside, EVEN).to(tl.float32)
        of_after += g
        of_slope += g * tl.minimum(inner, 0.0)
        rounded = tl.where(inner > 0, g, g * slopes).to(g_sum.dtype.element_ty)
        tl.store(g_sum + place, rounded, mask=inside)
        g = rounded.to(tl.float32)
        of_sum += g
        of_weight += g * x
        place += ROWS * C
    out = partial + tl.program_id(0) * C + column
    step = tl.num_programs(0) * C
    tl.store(out, tl.sum(of_sum, axis=0), mask=column < C)
    tl.store(out + step, tl.sum(of_weight, axis=0), mask=column < C)
    tl.store(out + 2 * step, tl.sum(of_slope, axis=0), mask=column < C)
    tl.store(out + 3 * step, tl.sum(of_after, axis=0), mask=column < C)
    if g_s is not None:
        tl.store(out + 4 * step, tl.sum(of_shift, axis=0), mask=column < C)


@triton.jit
def combine_backward(
    partial, stats, weight, factors, gradients, count, strips, SHIFT: tl.constexpr,
    C: tl.constexpr, ROWS: tl.constexpr, STRIPS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Combine the gradients of weight, bias, before, slope, after and shift, and the factors of the next pass."""
    strip = tl.arange(0, STRIPS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (strip < strips)[:, None] & (column < C)[None, :]
    place = partial + strip[:, None] * C + column[None, :]
    here = column < C
    of_sum = tl.load(place, mask=inside, other=0)  # all loads before the first reduction, which synchronizes
    of_weight = tl.load(place + strips * C, mask=inside, other=0)
    of_slope = tl.load(place + 2 * strips * C, mask=inside, other=0)
    of_after = tl.load(place + 3 * strips * C, mask=inside, other=0)
    if SHIFT:
        of_shift = tl.load(place + 4 * strips * C, mask=inside, other=0)
    inverse = tl.load(stats + 2 * C + column, mask=here, other=0)
    gain = tl.load(weight + column, mask=here, other=0).to(tl.float32) * inverse
    g_bias = tl.sum(of_sum, axis=0)
    g_weight = tl.sum(of_weight, axis=0) * inverse
    tl.store(gradients + column, g_weight, mask=here)
    tl.store(gradients + C + column, g_bias, mask=here)
    tl.store(gradients + 2 * C + column, g_bias, mask=here)
    tl.store(gradients + 3 * C + column, tl.sum(of_slope, axis=0), mask=here)
    tl.store(gradients + 4 * C + column, tl.sum(of_after, axis=0), mask=here)
    if SHIFT:
        tl.store(gradients + 5 * C + column, tl.sum(of_shift, axis=0), mask=here)
    tl.store(factors + column, gain, mask=here)
    tl.store(factors + C + column, g_bias / count, mask=here)
    tl.store(factors + 2 * C + column, g_weight / count * inverse, mask=here)
