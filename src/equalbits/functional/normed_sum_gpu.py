"""The normed sum on a GPU, in Triton: as few passes over memory as there can be, and the same answer every time.

Batch norm needs its sums before it can write, so each way takes two passes over a (position, channel) matrix, with a
tiny kernel between them that joins the sums of the strips. The first pass gives a program a strip of rows and a block
of channels; each thread keeps running sums for its own places, and the strip joins them once, at its end. Means and
squared deviations are joined by Chan's formula (Chan, Golub and LeVeque 1983), so a far-off mean costs no digits. No
sum goes through an atomic, so the order of additions is fixed.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803 (a kernel's compile-time settings are in capitals)

import torch
import triton
import triton.language as tl
from torch import Tensor

from equalbits.functional.normed_sum import as_rows, from_rows

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_TILE = 2048  # entries a program holds at once: one load of 16 bytes for each thread of 8 warps, and one byte of bits
_COLUMNS = 64  # channels in a tile: a line of 128 bytes in 16-bit input
_STRIPS = 512  # programs in a pass that sums: nearly four to each processor of a large GPU
_JOINED = 8  # channels to a program that joins the strips: 32 bytes of each strip, the least a GPU reads

_WARPS = {"num_warps": 8, "enable_fp_fusion": True}
# At 64 registers a thread four programs share a processor, so all strips run at once.
_FOUR_RESIDENT = _WARPS if torch.version.hip else _WARPS | {"maxnreg": 64}


def forward(
    c: Tensor, slope: Tensor | None, weight: Tensor, bias: Tensor, residual: Tensor | None, eps: float, signs: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As :func:`equalbits.functional.normed_sum.plain_forward`."""
    rows = as_rows(c)
    count, channels = rows.shape
    added = None if residual is None else as_rows(residual)
    strips, tiles, tile = _strips(count, channels)
    tile["SLOPES"] = 0 if slope is None else slope.numel()
    partial = torch.empty((4, strips, channels), dtype=torch.float32, device=c.device)
    stats = torch.empty((5, channels), dtype=torch.float32, device=c.device)
    y = torch.empty_like(rows)
    s = torch.empty_like(rows) if signs else None
    near = rows.new_empty((count, triton.cdiv(channels, 8)) if signs else 0, dtype=torch.uint8)
    blocks = triton.cdiv(channels, tile["COLUMNS"])
    join = tile | {"STRIPS": triton.next_power_of_2(strips), "COLUMNS": _JOINED}
    with torch.cuda.device_of(c):
        _sum_forward[(strips, blocks)](rows, slope, partial, count, tiles, **tile, **_FOUR_RESIDENT)
        _join_forward[(triton.cdiv(channels, _JOINED),)](partial, stats, count, tiles, strips, eps, **join, **_WARPS)
        _write_forward[(triton.cdiv(count, tile["ROWS"]), blocks)](
            rows, slope, weight, bias, added, stats, y, s, near, count, **tile, **_WARPS
        )
    return from_rows(y, c), rows.new_empty(0) if s is None else from_rows(s, c), near, stats


def backward(
    g_y: Tensor | None, g_s: Tensor | None, c: Tensor, slope: Tensor | None, weight: Tensor, near: Tensor, stats: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As :func:`equalbits.functional.normed_sum.plain_backward`; the slope's gradient is made of the same few sums."""
    rows = as_rows(c)
    count, channels = rows.shape
    of_y, of_s = (None if g is None else as_rows(g) for g in (g_y, g_s))
    strips, tiles, tile = _strips(count, channels)
    tile["SLOPES"] = 0 if slope is None else slope.numel()
    partial = torch.empty((3, strips, channels), dtype=torch.float32, device=c.device)
    factors = torch.empty((3, channels), dtype=torch.float32, device=c.device)
    g_affine = torch.empty((2, channels), dtype=torch.float32, device=c.device)
    g_slope = stats.new_empty(0 if slope is None else channels)
    total = None if of_s is None else torch.empty_like(rows)
    g_c = torch.empty_like(rows)
    blocks = triton.cdiv(channels, tile["COLUMNS"])
    join = tile | {"STRIPS": triton.next_power_of_2(strips), "COLUMNS": _JOINED}
    with torch.cuda.device_of(c):
        _sum_backward[(strips, blocks)](
            of_y, of_s, near, rows, slope, stats, total, partial, count, tiles, **tile, **_FOUR_RESIDENT
        )
        _join_backward[(triton.cdiv(channels, _JOINED),)](
            partial, stats, slope, weight, factors, g_affine, g_slope, count, strips, **join, **_WARPS
        )
        _write_backward[(triton.cdiv(count, tile["ROWS"]), blocks)](
            of_y if total is None else total, rows, slope, stats, factors, g_c, count, **tile, **_WARPS
        )
    return rows.new_empty(0) if total is None else from_rows(total, c), from_rows(g_c, c), g_affine, g_slope


def _strips(count: int, channels: int) -> tuple[int, int, dict[str, int]]:
    """How many strips of rows there are, of how many tiles each, and the shape of a tile."""
    columns = min(_COLUMNS, max(8, triton.next_power_of_2(channels)))
    rows = _TILE // columns
    wanted = max(1, _STRIPS // triton.cdiv(channels, columns))
    tiles = triton.cdiv(triton.cdiv(count, rows), wanted)
    return triton.cdiv(count, rows * tiles), tiles, {"C": channels, "ROWS": rows, "COLUMNS": columns}


@triton.jit
def _row(values, column, C: tl.constexpr):
    """One value for each channel, as a row."""
    return tl.load(values + column, mask=column < C, other=0).to(tl.float32)[None, :]


@triton.jit
def _slope_row(slope, column, C: tl.constexpr, SLOPES: tl.constexpr):
    """The PReLU's slopes, as a row; without PReLU a row that nothing reads."""
    if SLOPES == C:
        slopes = _row(slope, column, C)
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
def _sum_forward(
    c, slope, partial, count, tiles,
    C: tl.constexpr, SLOPES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """For a strip: the mean and squared deviations of the PReLU's output, and two sums of inputs at or below 0."""
    row = tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.program_id(0).to(tl.int64) * tiles * ROWS
    left = tl.minimum(count - first, tiles * ROWS).to(tl.int32)
    place = row[:, None] * C + column[None, :]
    c += first * C
    slopes = _slope_row(slope, column, C, SLOPES)
    mean = tl.zeros([ROWS, COLUMNS], tl.float32)
    spread = tl.zeros([ROWS, COLUMNS], tl.float32)
    low_sum = tl.zeros([ROWS, COLUMNS], tl.float32)
    low_squares = tl.zeros([ROWS, COLUMNS], tl.float32)
    inside = (row < left)[:, None] & (column < C)[None, :]
    loaded = tl.load(c + place, mask=inside, other=0)
    for tile in range(tiles):
        x = loaded.to(tl.float32)
        z = _prelu(x, slopes, SLOPES)
        step = tl.where(inside, z - mean, 0.0)
        place += ROWS * C  # the next tile is on its way while this one is summed
        inside = ((tile + 1) * ROWS + row < left)[:, None] & (column < C)[None, :]
        loaded = tl.load(c + place, mask=inside, other=0)
        mean += step * (1.0 / (tile + 1))
        spread += step * (z - mean)
        if SLOPES > 0:
            low = tl.minimum(x, 0.0)
            low_sum += low
            low_squares += low * low
    seen = ((left - row + ROWS - 1) // ROWS).to(tl.float32)[:, None]  # of each thread's place
    joined = tl.sum(mean * seen, axis=0) / left
    off = mean - joined[None, :]
    out = partial + tl.program_id(0) * C + column
    step_out = tl.num_programs(0) * C
    tl.store(out, joined, mask=column < C)
    tl.store(out + step_out, tl.sum(spread + seen * off * off, axis=0), mask=column < C)
    if SLOPES > 0:
        tl.store(out + 2 * step_out, tl.sum(low_sum, axis=0), mask=column < C)
        tl.store(out + 3 * step_out, tl.sum(low_squares, axis=0), mask=column < C)


@triton.jit
def _join_forward(
    partial, stats, count, tiles, strips, eps,
    C: tl.constexpr, SLOPES: tl.constexpr, ROWS: tl.constexpr, STRIPS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The statistics of all strips together."""
    strip = tl.arange(0, STRIPS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (strip < strips)[:, None] & (column < C)[None, :]
    place = partial + strip[:, None] * C + column[None, :]
    seen = tl.maximum(tl.minimum(count - strip * tiles * ROWS, tiles * ROWS), 0).to(tl.float32)[:, None]
    means = tl.load(place, mask=inside, other=0)
    mean = tl.sum(means * seen, axis=0) / count
    off = means - mean[None, :]
    spread = tl.load(place + strips * C, mask=inside, other=0) + seen * off * off
    variance = tl.sum(spread, axis=0) / count
    tl.store(stats + column, mean, mask=column < C)
    tl.store(stats + C + column, variance, mask=column < C)
    tl.store(stats + 2 * C + column, 1.0 / tl.sqrt(variance + eps), mask=column < C)
    if SLOPES > 0:
        low_sum = tl.load(place + 2 * strips * C, mask=inside, other=0)
        low_squares = tl.load(place + 3 * strips * C, mask=inside, other=0)
        tl.store(stats + 3 * C + column, tl.sum(low_sum, axis=0), mask=column < C)
        tl.store(stats + 4 * C + column, tl.sum(low_squares, axis=0), mask=column < C)


@triton.jit
def _write_forward(
    c, slope, weight, bias, residual, stats, y, s, near, count,
    C: tl.constexpr, SLOPES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < count)[:, None] & (column < C)[None, :]
    place = row[:, None] * C + column[None, :]
    z = _prelu(tl.load(c + place, mask=inside, other=0).to(tl.float32), _slope_row(slope, column, C, SLOPES), SLOPES)
    gain = _row(stats + 2 * C, column, C) * _row(weight, column, C)
    wide = (z - _row(stats, column, C)) * gain + _row(bias, column, C)
    if residual is not None:
        wide += tl.load(residual + place, mask=inside, other=0).to(tl.float32)
    rounded = wide.to(y.dtype.element_ty)
    tl.store(y + place, rounded, mask=inside)
    if s is not None:
        kept = rounded.to(tl.float32)  # signs and bits are those of the y that others see
        tl.store(s + place, tl.where(kept >= 0, 1.0, -1.0).to(s.dtype.element_ty), mask=inside)
        bits = tl.reshape((inside & (tl.abs(kept) < 1)).to(tl.int32), [ROWS, COLUMNS // 8, 8])
        packed = tl.sum(bits << tl.arange(0, 8)[None, None, :], axis=2).to(tl.uint8)
        byte = tl.program_id(1) * (COLUMNS // 8) + tl.arange(0, COLUMNS // 8)
        byte_place = near + row[:, None] * ((C + 7) // 8) + byte[None, :]
        tl.store(byte_place, packed, mask=(row < count)[:, None] & (byte * 8 < C)[None, :])


@triton.jit
def _sum_backward(
    g_y, g_s, near, c, slope, stats, total, partial, count, tiles,
    C: tl.constexpr, SLOPES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """For a strip: the gradient G of the sum, and ΣG, ΣG·x̂ and ΣG·c over c ≤ 0, where x̂ is the normed input."""
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
    slopes = _slope_row(slope, column, C, SLOPES)
    mean = _row(stats, column, C)
    sum_g = tl.zeros([ROWS, COLUMNS], tl.float32)
    sum_gz = tl.zeros([ROWS, COLUMNS], tl.float32)
    sum_gc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tile in range(tiles):
        here = (tile * ROWS + row < left)[:, None]
        inside = here & (column < C)[None, :]
        x = tl.load(c + place, mask=inside, other=0).to(tl.float32)
        if g_y is not None:
            g = tl.load(g_y + place, mask=inside, other=0).to(tl.float32)
        if g_s is not None:
            packed = tl.load(near + byte_place, mask=here & (byte * 8 < C)[None, :], other=0).to(tl.int32)
            bits = (packed[:, :, None] >> tl.arange(0, 8)[None, None, :]) & 1
            passed = tl.load(g_s + place, mask=inside, other=0).to(tl.float32)
            passed = tl.where(tl.reshape(bits, [ROWS, COLUMNS]) != 0, passed, 0.0)
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
    step_out = tl.num_programs(0) * C
    tl.store(out, tl.sum(sum_g, axis=0), mask=column < C)
    tl.store(out + step_out, tl.sum(sum_gz, axis=0), mask=column < C)
    if SLOPES > 0:
        tl.store(out + 2 * step_out, tl.sum(sum_gc, axis=0), mask=column < C)


@triton.jit
def _join_backward(
    partial, stats, slope, weight, factors, g_affine, g_slope, count, strips,
    C: tl.constexpr, SLOPES: tl.constexpr, ROWS: tl.constexpr, STRIPS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradients of weight, bias and slope, and what the last pass needs: g_z = a·(G − b − (z − mean)·d)."""
    strip = tl.arange(0, STRIPS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (strip < strips)[:, None] & (column < C)[None, :]
    place = partial + strip[:, None] * C + column[None, :]
    here = column < C
    inverse = tl.load(stats + 2 * C + column, mask=here, other=0)
    sum_g = tl.sum(tl.load(place, mask=inside, other=0), axis=0)
    sum_gx = tl.sum(tl.load(place + strips * C, mask=inside, other=0), axis=0) * inverse
    gain = tl.load(weight + column, mask=here, other=0).to(tl.float32) * inverse
    base = sum_g / count
    tilt = sum_gx / count * inverse
    tl.store(g_affine + column, sum_gx, mask=here)
    tl.store(g_affine + C + column, sum_g, mask=here)
    tl.store(factors + column, gain, mask=here)
    tl.store(factors + C + column, base, mask=here)
    tl.store(factors + 2 * C + column, tilt, mask=here)
    if SLOPES > 0:
        sum_gc = tl.sum(tl.load(place + 2 * strips * C, mask=inside, other=0), axis=0)
        mean = tl.load(stats + column, mask=here, other=0)
        low_sum = tl.load(stats + 3 * C + column, mask=here, other=0)
        low_squares = tl.load(stats + 4 * C + column, mask=here, other=0)
        a = tl.reshape(_slope_row(slope, column, C, SLOPES), [COLUMNS])
        g_a = gain * (sum_gc - base * low_sum - tilt * (a * low_squares - mean * low_sum))
        tl.store(g_slope + column, g_a, mask=here)


@triton.jit
def _write_backward(
    total, c, slope, stats, factors, g_c, count,
    C: tl.constexpr, SLOPES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    last_first = tl.num_programs(0) - 1 - tl.program_id(0)  # what the pass before read last is still in the cache
    row = last_first.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < count)[:, None] & (column < C)[None, :]
    place = row[:, None] * C + column[None, :]
    slopes = _slope_row(slope, column, C, SLOPES)
    x = tl.load(c + place, mask=inside, other=0).to(tl.float32)
    g = tl.load(total + place, mask=inside, other=0).to(tl.float32)
    g -= _row(factors + C, column, C)
    g -= (_prelu(x, slopes, SLOPES) - _row(stats, column, C)) * _row(factors + 2 * C, column, C)
    g *= _row(factors, column, C)
    if SLOPES > 0:
        g = tl.where(x > 0, g, g * slopes)
    tl.store(g_c + place, g.to(g_c.dtype.element_ty), mask=inside)
