"""Triton kernels of the fused PReLU, batch norm, addition and sign, over a (position, channel) matrix.

In the first pass each program sums a strip of rows and a block of channels: each thread accumulates its own entries,
and the strip reduces them once at its end. Sums use no atomics, so the order of additions is fixed. Deviations are
taken from a value of the channel itself, and strips are combined by Chan's formula (Chan, Golub and LeVeque 1983), so
a mean far from 0 costs no precision.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803 (compile-time settings of a kernel are in capitals)

import triton
import triton.language as tl


@triton.jit
def _tile(place, inside, EVEN: tl.constexpr):
    """Load a tile of a matrix, masked unless the tiles fill it."""
    return tl.load(place) if EVEN else tl.load(place, mask=inside, other=0)


@triton.jit
def _tile_once(place, inside, EVEN: tl.constexpr):
    """Load a tile that will not be read again soon: the cache evicts it first."""
    if EVEN:
        values = tl.load(place, eviction_policy="evict_first")
    else:
        values = tl.load(place, mask=inside, other=0, eviction_policy="evict_first")
    return values


@triton.jit
def _row(values, column, C: tl.constexpr, COLUMNS: tl.constexpr):
    """Load one value per channel, as a row."""
    return _tile(values + column, column < C, C % COLUMNS == 0).to(tl.float32)[None, :]


@triton.jit
def _slope_row(slope, column, C: tl.constexpr, SLOPES: tl.constexpr, COLUMNS: tl.constexpr):
    """Load the PReLU slopes, as a row; without PReLU an unused row."""
    if SLOPES == C:
        slopes = _row(slope, column, C, COLUMNS)
    elif SLOPES == 1:
        slopes = column[None, :] * 0 + tl.load(slope).to(tl.float32)
    else:
        slopes = column[None, :] * 0.0
    return slopes


@triton.jit
def _prelu(x, slopes, SLOPES: tl.constexpr):
    if SLOPES > 0:
        x = tl.where(x > 0, x, x * slopes)
    return x


@triton.jit
def _step_row(stats, slopes, column, count, C: tl.constexpr, SLOPES: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the distance of neighboring inputs in 8 bits, as a row: 8 root mean squares of the input make 127."""
    mean = _row(stats, column, C, COLUMNS)
    square = _row(stats + C, column, C, COLUMNS) + mean * mean
    if SLOPES > 0:
        square += (1.0 - slopes * slopes) * (_row(stats + 4 * C, column, C, COLUMNS) / count)
    return tl.sqrt(tl.maximum(square, 1e-30)) * (8.0 / 127.0)


@triton.jit
def sum_forward(
    c, slope, partial, count, tiles,
    C: tl.constexpr, SLOPES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Sum a strip: mean and squared deviations of the PReLU output, and two sums of the inputs up to 0."""
    row = tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.program_id(0).to(tl.int64) * tiles * ROWS
    left = tl.minimum(count - first, tiles * ROWS).to(tl.int32)
    place = row[:, None] * C + column[None, :]
    c += first * C
    slopes = _slope_row(slope, column, C, SLOPES, COLUMNS)
    typical = _prelu(_row(c, column, C, COLUMNS), slopes, SLOPES)  # the strip's first value approximates its mean
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    squares = tl.zeros([ROWS, COLUMNS], tl.float32)
    low_sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    low_squares = tl.zeros([ROWS, COLUMNS], tl.float32)
    inside = (row < left)[:, None] & (column < C)[None, :]
    loaded = _tile(c + place, inside, EVEN)
    for tile in range(tiles):
        x = loaded.to(tl.float32)
        off = x - typical
        if SLOPES > 0:
            low = tl.minimum(x, 0.0)
            off += low * (slopes - 1.0)  # the PReLU in one operation
            low_sums += low
            low_squares += low * low
        if not EVEN:
            off = tl.where(inside, off, 0.0)
        place += ROWS * C  # prefetch the next tile
        inside = ((tile + 1) * ROWS + row < left)[:, None] & (column < C)[None, :]
        loaded = tl.load(c + place, mask=inside) if EVEN else tl.load(c + place, mask=inside, other=0)
        sums += off
        squares += off * off
    here = column < C
    out = partial + tl.program_id(0) * C + column
    step = tl.num_programs(0) * C
    off_sum = tl.sum(sums, axis=0)
    shift = off_sum / left
    tl.store(out, tl.reshape(typical, [COLUMNS]) + shift, mask=here)
    tl.store(out + step, tl.maximum(tl.sum(squares, axis=0) - off_sum * shift, 0.0), mask=here)
    if SLOPES > 0:
        tl.store(out + 2 * step, tl.sum(low_sums, axis=0), mask=here)
        tl.store(out + 3 * step, tl.sum(low_squares, axis=0), mask=here)


@triton.jit
def combine_forward(
    partial, stats, count, tiles, strips, eps,
    C: tl.constexpr, SLOPES: tl.constexpr, ROWS: tl.constexpr, STRIPS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Combine the statistics of all strips."""
    strip = tl.arange(0, STRIPS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (strip < strips)[:, None] & (column < C)[None, :]
    place = partial + strip[:, None] * C + column[None, :]
    seen = tl.maximum(tl.minimum(count - strip * tiles * ROWS, tiles * ROWS), 0).to(tl.float32)[:, None]
    means = tl.load(place, mask=inside, other=0)  # all loads before the first reduction, which synchronizes
    spread = tl.load(place + strips * C, mask=inside, other=0)
    if SLOPES > 0:
        low_sum = tl.load(place + 2 * strips * C, mask=inside, other=0)
        low_squares = tl.load(place + 3 * strips * C, mask=inside, other=0)
    mean = tl.sum(means * seen, axis=0) / count
    off = means - mean[None, :]
    variance = tl.sum(spread + seen * off * off, axis=0) / count
    tl.store(stats + column, mean, mask=column < C)
    tl.store(stats + C + column, variance, mask=column < C)
    tl.store(stats + 2 * C + column, 1.0 / tl.sqrt(variance + eps), mask=column < C)
    if SLOPES > 0:
        tl.store(stats + 3 * C + column, tl.sum(low_sum, axis=0), mask=column < C)
        tl.store(stats + 4 * C + column, tl.sum(low_squares, axis=0), mask=column < C)


@triton.jit
def write_forward(
    c, slope, weight, bias, residual, stats, y, s, positive, near, kept, count, BITS: tl.constexpr,
    C: tl.constexpr, SLOPES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Write the output, and optionally its signs, two planes of bits, ``y ≥ 0`` and ``|y| < 1``, and c in 8 bits."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < count)[:, None] & (column < C)[None, :]
    place = row[:, None] * C + column[None, :]
    x = _tile_once(c + place, inside, EVEN).to(tl.float32)  # not read again before the backward pass
    slopes = _slope_row(slope, column, C, SLOPES, COLUMNS)
    if kept is not None:  # the sign is exact
        whole = tl.floor(x / _step_row(stats, slopes, column, count, C, SLOPES, COLUMNS) + 0.5)
        whole = tl.where(x > 0, tl.maximum(whole, 1.0), tl.minimum(whole, 0.0))
        tl.store(kept + place, tl.maximum(tl.minimum(whole, 127.0), -127.0).to(tl.int8), mask=inside)
    z = _prelu(x, slopes, SLOPES)
    gain = _row(stats + 2 * C, column, C, COLUMNS) * _row(weight, column, C, COLUMNS)
    wide = (z - _row(stats, column, C, COLUMNS)) * gain + _row(bias, column, C, COLUMNS)
    if residual is not None:
        wide += _tile_once(residual + place, inside, EVEN).to(tl.float32)
    rounded = wide.to(y.dtype.element_ty)
    tl.store(y + place, rounded, mask=inside)
    exact = rounded.to(tl.float32)  # signs and bits of the rounded output
    if s is not None:
        tl.store(s + place, tl.where(exact >= 0, 1.0, -1.0).to(s.dtype.element_ty), mask=inside)
    if BITS:
        byte = tl.program_id(1) * (COLUMNS // 8) + tl.arange(0, COLUMNS // 8)
        byte_place = row[:, None] * ((C + 7) // 8) + byte[None, :]
        byte_inside = (row < count)[:, None] & (byte * 8 < C)[None, :]
        # Both planes in one reduction: the sign in the low byte, |y| < 1 in the next.
        both = (exact >= 0).to(tl.int32) + ((tl.abs(exact) < 1).to(tl.int32) << 8)
        both = tl.reshape(tl.where(inside, both, 0), [ROWS, COLUMNS // 8, 8])
        packed = tl.sum(both << tl.arange(0, 8)[None, None, :], axis=2)
        tl.store(positive + byte_place, (packed & 255).to(tl.uint8), mask=byte_inside)
        tl.store(near + byte_place, (packed >> 8).to(tl.uint8), mask=byte_inside)


@triton.jit
def sum_backward(
    g_y, g_s, near, c, slope, stats, total, partial, count, tiles,
    C: tl.constexpr, SLOPES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Sum a strip: the gradient G of the output, ΣG, ΣG·x̂ and ΣG·c over c ≤ 0, with x̂ the normalized input."""
    row = tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    byte = tl.program_id(1) * (COLUMNS // 8) + tl.arange(0, COLUMNS // 8)
    first = tl.program_id(0).to(tl.int64) * tiles * ROWS
    left = tl.minimum(count - first, tiles * ROWS).to(tl.int32)
    place = row[:, None] * C + column[None, :]
    byte_place = row[:, None] * ((C + 7) // 8) + byte[None, :]
    c += first * C
    if g_y is not None:
        g_y += first * C
    if g_s is not None:
        g_s += first * C
        total += first * C
        near += first * ((C + 7) // 8)
    slopes = _slope_row(slope, column, C, SLOPES, COLUMNS)
    steps = slopes
    if c.dtype.element_ty == tl.int8:
        steps = _step_row(stats, slopes, column, count, C, SLOPES, COLUMNS)
    mean = _row(stats, column, C, COLUMNS)
    sum_g = tl.zeros([ROWS, COLUMNS], tl.float32)
    sum_gz = tl.zeros([ROWS, COLUMNS], tl.float32)
    sum_gc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tile in range(tiles):
        here = (tile * ROWS + row < left)[:, None]
        inside = here & (column < C)[None, :]
        if g_s is not None:
            packed = _tile_once(near + byte_place, here & (byte * 8 < C)[None, :], EVEN)
            passed = _tile_once(g_s + place, inside, EVEN)
            if g_y is not None:
                g = _tile_once(g_y + place, inside, EVEN).to(tl.float32)
        else:  # read again by the next pass
            g = _tile(g_y + place, inside, EVEN).to(tl.float32)
        x = _tile(c + place, inside, EVEN).to(tl.float32)
        if c.dtype.element_ty == tl.int8:
            x *= steps
        if g_s is not None:
            bits = (packed.to(tl.int32)[:, :, None] >> tl.arange(0, 8)[None, None, :]) & 1
            passed = tl.where(tl.reshape(bits, [ROWS, COLUMNS]) != 0, passed.to(tl.float32), 0.0)
            if g_y is not None:
                passed += g
            rounded = passed.to(total.dtype.element_ty)
            tl.store(total + place, rounded, mask=inside)
            g = rounded.to(tl.float32)
        sum_g += g
        sum_gz += g * (_prelu(x, slopes, SLOPES) - mean)
        if SLOPES > 0:
            sum_gc += g * tl.minimum(x, 0.0)
        place += ROWS * C
        byte_place += ROWS * ((C + 7) // 8)
    out = partial + tl.program_id(0) * C + column
    step = tl.num_programs(0) * C
    tl.store(out, tl.sum(sum_g, axis=0), mask=column < C)
    tl.store(out + step, tl.sum(sum_gz, axis=0), mask=column < C)
    if SLOPES > 0:
        tl.store(out + 2 * step, tl.sum(sum_gc, axis=0), mask=column < C)


@triton.jit
def combine_backward(
    partial, stats, slope, weight, factors, g_affine, g_slope, count, strips,
    C: tl.constexpr, SLOPES: tl.constexpr, ROWS: tl.constexpr, STRIPS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Combine the gradients of weight, bias and slope, and the factors of g_z = a·(G − b − (z − mean)·d)."""
    strip = tl.arange(0, STRIPS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (strip < strips)[:, None] & (column < C)[None, :]
    place = partial + strip[:, None] * C + column[None, :]
    here = column < C
    sums_g = tl.load(place, mask=inside, other=0)
    sums_gz = tl.load(place + strips * C, mask=inside, other=0)
    inverse = tl.load(stats + 2 * C + column, mask=here, other=0)
    gain = tl.load(weight + column, mask=here, other=0).to(tl.float32) * inverse
    if SLOPES > 0:
        sums_gc = tl.load(place + 2 * strips * C, mask=inside, other=0)
        mean = tl.load(stats + column, mask=here, other=0)
        low_sum = tl.load(stats + 3 * C + column, mask=here, other=0)
        low_squares = tl.load(stats + 4 * C + column, mask=here, other=0)
        a = tl.reshape(_slope_row(slope, column, C, SLOPES, COLUMNS), [COLUMNS])
    sum_g = tl.sum(sums_g, axis=0)
    sum_gx = tl.sum(sums_gz, axis=0) * inverse
    base = sum_g / count
    tilt = sum_gx / count * inverse
    tl.store(g_affine + column, sum_gx, mask=here)
    tl.store(g_affine + C + column, sum_g, mask=here)
    tl.store(factors + column, gain, mask=here)
    tl.store(factors + C + column, base, mask=here)
    tl.store(factors + 2 * C + column, tilt, mask=here)
    if SLOPES > 0:
        g_a = gain * (tl.sum(sums_gc, axis=0) - base * low_sum - tilt * (a * low_squares - mean * low_sum))
        tl.store(g_slope + column, g_a, mask=here)


@triton.jit
def write_backward(
    total, c, slope, stats, factors, g_c, count,
    C: tl.constexpr, SLOPES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Write the gradient of c."""
    last_first = tl.num_programs(0) - 1 - tl.program_id(0)  # the end of the previous pass is still in the cache
    row = last_first.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < count)[:, None] & (column < C)[None, :]
    place = row[:, None] * C + column[None, :]
    slopes = _slope_row(slope, column, C, SLOPES, COLUMNS)
    x = _tile_once(c + place, inside, EVEN).to(tl.float32)
    if c.dtype.element_ty == tl.int8:
        x *= _step_row(stats, slopes, column, count, C, SLOPES, COLUMNS)
    g = _tile(total + place, inside, EVEN).to(tl.float32)
    g -= _row(factors + C, column, C, COLUMNS)
    g -= (_prelu(x, slopes, SLOPES) - _row(stats, column, C, COLUMNS)) * _row(factors + 2 * C, column, C, COLUMNS)
    g *= _row(factors, column, C, COLUMNS)
    if SLOPES > 0:
        g = tl.where(x > 0, g, g * slopes)
    tl.store(g_c + place, g.to(g_c.dtype.element_ty), mask=inside)
