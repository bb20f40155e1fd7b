"""Triton kernel that ranks one row of a model, launched by ``rank_model``.

The threshold between −1 and +1 is found by probing two candidates at a time. The first pair brackets the threshold of
the previous step, since few weights cross it in a step. If that misses, the next pair brackets the quantile of a normal
distribution; later pairs interpolate between the counts on both sides. Every eighth pair splits the range of the
floats' bits at its quarters, so that no distribution of weights makes the search slow. The notes of the previous step
affect the speed, never the result.

A layer in ``channels_last`` stores its connections in another order than the one that breaks ties; that order is
computed only for rows with ties. Thresholds are held as keys: integers in the order of the floats.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803 (compile-time settings of a kernel are in capitals)

import triton
import triton.language as tl

# Keys of finite weights lie above LEAST and at most at GREATEST.
LEAST = tl.constexpr(-0x7F800000)
GREATEST = tl.constexpr(0x7F7FFFFF)


@triton.jit
def rank_rows(table, notes, out, BLOCK: tl.constexpr, TAIL: tl.constexpr, ALIGNED: tl.constexpr):
    """Write the scaled symbols of the row described by the program's record, and note its threshold."""
    record = table + tl.program_id(0) * 7
    rows = tl.load(record).to(tl.pointer_type(tl.float32))
    out += tl.load(record + 1)
    scale = tl.load(tl.load(record + 2).to(tl.pointer_type(tl.float32)))
    connections = tl.load(record + 3).to(tl.int32)
    if ALIGNED:
        rows = tl.multiple_of(rows, 16)
        out = tl.multiple_of(out, 16)
        connections = tl.multiple_of(connections, 8)  # so that one mask covers eight entries
    inner = tl.load(record + 4).to(tl.int32)
    wanted = tl.load(record + 5).to(tl.int32)
    normal = tl.load(record + 6).to(tl.float32) / 65536
    column = tl.arange(0, BLOCK)
    values = tl.load(rows + column, mask=column < connections, other=float("inf"))
    tail_column = column
    tail_values = values
    if TAIL > 0:
        tail_column = BLOCK + tl.arange(0, TAIL)
        tail_values = tl.load(rows + tail_column, mask=tail_column < connections, other=float("inf"))
    note = notes + tl.program_id(0) * 2
    before = tl.load(note)
    radius = tl.load(note + 1)
    # Bracket the previous threshold; the same pass checks that all weights are finite.
    first = _key(before - radius)
    second = _key(before + radius)
    counts = _count_probes(values, column, connections, first, second)
    if TAIL > 0:
        counts += _count_probes(tail_values, tail_column, connections, first, second)
    finite = counts >> 32 == 0
    low, under, high, upto = _narrow(LEAST, 0, GREATEST, connections, wanted, first, second, counts.to(tl.int32))
    guess = before
    width = radius
    bracketed = (low > LEAST) & (high < GREATEST)
    if not bracketed:
        largest = _largest_magnitude(values, column, connections)
        mean = _sum(values, column, connections) / connections
        squares = _sum(values * values, column, connections) / connections
        if TAIL > 0:
            largest = tl.maximum(largest, _largest_magnitude(tail_values, tail_column, connections))
            mean += _sum(tail_values, tail_column, connections) / connections
            squares += _sum(tail_values * tail_values, tail_column, connections) / connections
        low = tl.maximum(low, -largest - 1)
        high = tl.minimum(high, largest)
        spread = tl.sqrt(tl.maximum(squares - mean * mean, 0.0))
        guess = mean + normal * spread
        width = 1.25 * spread / tl.sqrt(connections.to(tl.float32))
    threshold, upto = _find_threshold(
        values, tail_values, wanted, low, under, high, upto, guess, width, bracketed, TAIL
    )
    last = connections - 1
    tied = upto > wanted
    if tied:  # of the weights at the threshold, those at lower indices of the layer get −1
        before_last = -1
        while before_last + 1 < last:
            middle = (before_last + last) // 2
            found = _negatives(values, column, threshold, middle, connections, inner)
            if TAIL > 0:
                found += _negatives(tail_values, tail_column, threshold, middle, connections, inner)
            last = tl.where(found >= wanted, middle, last)
            before_last = tl.where(found >= wanted, before_last, middle)
    plus = tl.where(finite, scale, float("nan"))
    minus = tl.where(finite, tl.where(wanted > 0, -scale, scale), float("nan"))
    _write(out, column, values, threshold, last, tied, minus, plus, connections, inner)
    if TAIL > 0:
        _write(out, tail_column, tail_values, threshold, last, tied, minus, plus, connections, inner)
    # Radius of the next bracket: 1.5 times the last move, and at least 0.9 times the current radius.
    moved = 1.5 * tl.abs(_value(threshold) - before)
    radius = tl.where(radius > 0, tl.maximum(moved, 0.9 * radius), tl.minimum(moved, width))
    known = finite & (radius < float("inf"))
    tl.store(note, tl.where(known, _value(threshold), 0.0))
    tl.store(note + 1, tl.where(known, radius, 0.0))


@triton.jit
def _count_probes(values, column, connections, first, second):
    """Count the values at or below two probes (16 bits each) and, in the upper half, the nonfinite ones."""
    nonfinite = (column < connections) & ((tl.abs(values) < float("inf")) == 0)
    return tl.sum(_at_or_below(values, first, second).to(tl.int64) + (nonfinite.to(tl.int64) << 32), axis=0)


@triton.jit
def _at_or_below(values, first, second):
    """Return whether each value is at or below the first key, and in the upper 16 bits, the second."""
    return (values <= _value(first)).to(tl.int32) + ((values <= _value(second)).to(tl.int32) << 16)


@triton.jit
def _narrow(low, under, high, upto, wanted, first, second, counts):
    """Narrow the keys that bracket the threshold, and the counts at or below each, by two probes."""
    below = counts & 0xFFFF
    beneath = (counts >> 16) & 0xFFFF  # 32768 sets the sign bit
    # The second probe first, then the first: from the outside in.
    upto = tl.where((beneath >= wanted) & (second < high), beneath, upto)
    high = tl.where((beneath >= wanted) & (second < high), second, high)
    under = tl.where((beneath < wanted) & (second > low), beneath, under)
    low = tl.where((beneath < wanted) & (second > low), second, low)
    upto = tl.where((below >= wanted) & (first < high), below, upto)
    high = tl.where((below >= wanted) & (first < high), first, high)
    under = tl.where((below < wanted) & (first > low), below, under)
    low = tl.where((below < wanted) & (first > low), first, low)
    return low, under, high, upto


@triton.jit
def _write(out, column, values, threshold, last, tied, minus, plus, connections, inner):
    """Write the negative value below the threshold, and at it up to the index ``last``."""
    threshold = _value(threshold)
    negative = values <= threshold
    if tied:
        negative = (values < threshold) | ((values == threshold) & (_layer_index(column, connections, inner) <= last))
    tl.store(out + column, tl.where(negative, minus, plus).to(out.dtype.element_ty), mask=column < connections)


@triton.jit
def _layer_index(column, connections, inner):
    """Return the index of a connection in the layer's own order, which breaks ties."""
    return (column % inner) * (connections // inner) + column // inner


@triton.jit
def _negatives(values, column, threshold, last, connections, inner):
    """Count the weights below the threshold, or at it with an index up to ``last``."""
    threshold = _value(threshold)
    layer_index = _layer_index(column, connections, inner)
    return tl.sum(((values < threshold) | ((values == threshold) & (layer_index <= last))).to(tl.int32), axis=0)


@triton.jit
def _find_threshold(values, tail_values, wanted, low, under, high, upto, guess, width, bracketed, TAIL: tl.constexpr):
    """Find the key with ``wanted`` weights at or below it, or with ties the least one with more; and that count.

    ``under`` weights lie at or below ``low``, fewer than wanted; ``upto`` at or below ``high``, enough.
    """
    probe_round = tl.where(bracketed, 1, 0)
    while (low + 1 < high) & (upto != wanted) & (wanted > 0):
        if probe_round > 0:
            bottom = _value(low)
            span = _value(high) - bottom
            number = (upto - under).to(tl.float32)
            share = ((wanted - under).to(tl.float32) + 0.5) / (number + 1)
            guess = bottom + share * span
            width = tl.where(number < 16, 0.5, 0.7 * tl.sqrt((number + 1) * share * (1 - share)))
            width *= span / (number + 1)
        quarter = (high >> 2) - (low >> 2)
        usable = (probe_round % 8 < 7) & (guess == guess) & (width == width)
        first = tl.where(usable, _key(guess - width), low + quarter)
        second = tl.where(usable, _key(guess + width), high - quarter)
        first = tl.minimum(tl.maximum(first, low + 1), high - 1)
        second = tl.minimum(tl.maximum(second, first), high - 1)
        # Unsigned: 32768 in the upper half overflows a signed sum, which the interpreter rejects.
        counts = tl.sum(_at_or_below(values, first, second).to(tl.uint32), axis=0)
        if TAIL > 0:
            counts += tl.sum(_at_or_below(tail_values, first, second).to(tl.uint32), axis=0)
        low, under, high, upto = _narrow(low, under, high, upto, wanted, first, second, counts.to(tl.int32))
        probe_round += 1
    return high, upto


@triton.jit
def _sum(values, column, connections):
    return tl.sum(tl.where(column < connections, values, 0.0), axis=0)


@triton.jit
def _largest_magnitude(values, column, connections):
    """Return the key of the largest magnitude."""
    return tl.max(tl.where(column < connections, _key(tl.abs(values)), 0), axis=0)


@triton.jit
def _key(values):
    """Convert floats to integers in the same order, with −0.0 and +0.0 both 0."""
    bits = values.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    return tl.where(bits < 0, -magnitude, magnitude)


@triton.jit
def _value(key):
    """Convert a key back to its float."""
    bits = tl.where(key < 0, (-key) | -0x80000000, key)
    return bits.to(tl.float32, bitcast=True)
