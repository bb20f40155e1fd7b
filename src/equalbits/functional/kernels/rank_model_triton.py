"""The kernel that ranks one row, for ``rank_model``.

The edge between −1 and +1 is found by probing two thresholds at a time: first on both sides of where it was the last
time, as few weights cross it in a step; if that misses, where a normal distribution would have it; then in proportion
to the counts on both sides. Every eighth time the floats' own bits are cut in four, so that no distribution of weights
makes it slow. What is remembered of the last time decides how soon the edge is found, never where it is.

A layer in ``channels_last`` keeps its connections in another order than the one ties go by; only where weights tie is
that order worked out. Thresholds are held as keys, integers in the order of the floats.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803 (a kernel's compile-time settings are in capitals)

import triton
import triton.language as tl

# The keys of all finite weights lie above the one and up to the other.
LEAST = tl.constexpr(-0x7F800000)
GREATEST = tl.constexpr(0x7F7FFFFF)


@triton.jit
def rank_rows(table, notes, BLOCK: tl.constexpr, TAIL: tl.constexpr, ALIGNED: tl.constexpr, TYPE: tl.constexpr):
    """Write the scaled symbols of the row that the program's record tells of, and note where its edge is."""
    record = table + tl.program_id(0) * 7
    rows = tl.load(record).to(tl.pointer_type(tl.float32))
    out = tl.load(record + 1).to(tl.pointer_type(TYPE))
    scale = tl.load(tl.load(record + 2).to(tl.pointer_type(tl.float32)))
    connections = tl.load(record + 3).to(tl.int32)
    if ALIGNED:
        rows = tl.multiple_of(rows, 16)
        out = tl.multiple_of(out, 16)
        connections = tl.multiple_of(connections, 8)  # so that one mask serves eight
    inner = tl.load(record + 4).to(tl.int32)
    wanted = tl.load(record + 5).to(tl.int32)
    normal = tl.load(record + 6).to(tl.float32) / 65536
    column = tl.arange(0, BLOCK)
    values = tl.load(rows + column, mask=column < connections, other=float("inf"))
    behind = column
    rest = values
    if TAIL > 0:
        behind = BLOCK + tl.arange(0, TAIL)
        rest = tl.load(rows + behind, mask=behind < connections, other=float("inf"))
    note = notes + tl.program_id(0) * 2
    before = tl.load(note)
    around = tl.load(note + 1)
    # On both sides of where the edge was the last time; in the same pass, whether all weights are finite.
    first = _key(before - around)
    second = _key(before + around)
    counts = _look(values, column, connections, first, second)
    if TAIL > 0:
        counts += _look(rest, behind, connections, first, second)
    finite = counts >> 32 == 0
    low, under, high, upto = _narrowed(LEAST, 0, GREATEST, connections, wanted, first, second, counts.to(tl.int32))
    guess = before
    width = around
    near = (low > LEAST) & (high < GREATEST)
    if not near:
        most = _most(values, column, connections)
        mean = _sum(values, column, connections) / connections
        squares = _sum(values * values, column, connections) / connections
        if TAIL > 0:
            most = tl.maximum(most, _most(rest, behind, connections))
            mean += _sum(rest, behind, connections) / connections
            squares += _sum(rest * rest, behind, connections) / connections
        low = tl.maximum(low, -most - 1)
        high = tl.minimum(high, most)
        spread = tl.sqrt(tl.maximum(squares - mean * mean, 0.0))
        guess = mean + normal * spread
        width = 1.25 * spread / tl.sqrt(connections.to(tl.float32))
    edge, upto = _edge(values, rest, wanted, low, under, high, upto, guess, width, near, TAIL)
    last = connections - 1
    tied = upto > wanted
    if tied:  # of the weights at the edge those at lower places, in the layer's own order, get −1
        before_last = -1
        while before_last + 1 < last:
            middle = (before_last + last) // 2
            found = _negatives(values, column, edge, middle, connections, inner)
            if TAIL > 0:
                found += _negatives(rest, behind, edge, middle, connections, inner)
            last = tl.where(found >= wanted, middle, last)
            before_last = tl.where(found >= wanted, before_last, middle)
    plus = tl.where(finite, scale, float("nan"))
    minus = tl.where(finite, tl.where(wanted > 0, -scale, scale), float("nan"))
    _write(out, column, values, edge, last, tied, minus, plus, connections, inner, TYPE)
    if TAIL > 0:
        _write(out, behind, rest, edge, last, tied, minus, plus, connections, inner, TYPE)
    # Where to look first the next time: half as far again as the edge moved, and not much less than this time.
    moved = 1.5 * tl.abs(_value(edge) - before)
    around = tl.where(around > 0, tl.maximum(moved, 0.9 * around), tl.minimum(moved, width))
    known = finite & (around < float("inf"))
    tl.store(note, tl.where(known, _value(edge), 0.0))
    tl.store(note + 1, tl.where(known, around, 0.0))


@triton.jit
def _look(values, column, connections, first, second):
    """The counts of two probes, and above those how many weights are not finite."""
    strange = (column < connections) & ~(tl.abs(values) < float("inf"))
    return tl.sum(_beneath(values, first, second).to(tl.int64) + (strange.to(tl.int64) << 32), axis=0)


@triton.jit
def _beneath(values, first, second):
    """Whether each is at or below a key, and in the upper half, whether at or below another."""
    return (values <= _value(first)).to(tl.int32) + ((values <= _value(second)).to(tl.int32) << 16)


@triton.jit
def _narrowed(low, under, high, upto, wanted, first, second, both):
    """The closest keys that hold the edge between them, and how many weights lie at or below each, after two probes."""
    below = both & 0xFFFF
    beneath = (both >> 16) & 0xFFFF  # 32768 of them look negative
    # From the outside in: the second probe first, then the first.
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
def _write(out, column, values, edge, last, tied, minus, plus, connections, inner, TYPE: tl.constexpr):
    """Negative below the edge, and at it up to the last place."""
    edge = _value(edge)
    negative = values <= edge
    if tied:
        negative = (values < edge) | ((values == edge) & (_place(column, connections, inner) <= last))
    tl.store(out + column, tl.where(negative, minus, plus).to(TYPE), mask=column < connections)


@triton.jit
def _place(column, connections, inner):
    """Where a connection stands in the layer's own order, which ties go by."""
    return (column % inner) * (connections // inner) + column // inner


@triton.jit
def _negatives(values, column, edge, last, connections, inner):
    """How many weights lie below the edge, or at it at a place up to the last."""
    edge = _value(edge)
    place = _place(column, connections, inner)
    return tl.sum(((values < edge) | ((values == edge) & (place <= last))).to(tl.int32), axis=0)


@triton.jit
def _edge(values, rest, wanted, low, under, high, upto, guess, width, between, TAIL: tl.constexpr):
    """The key with ``wanted`` weights at or below it, or if ties forbid that, the least with more; and how many.

    At or below ``low`` there are ``under``, fewer than wanted; at or below ``high`` there are ``upto``, enough.
    """
    turn = tl.where(between, 1, 0)
    while (low + 1 < high) & (upto != wanted) & (wanted > 0):
        if turn > 0:
            bottom = _value(low)
            span = _value(high) - bottom
            number = (upto - under).to(tl.float32)
            share = ((wanted - under).to(tl.float32) + 0.5) / (number + 1)
            guess = bottom + share * span
            width = tl.where(number < 16, 0.5, 0.7 * tl.sqrt((number + 1) * share * (1 - share)))
            width *= span / (number + 1)
        third = (high >> 2) - (low >> 2)
        sound = (turn % 8 < 7) & (guess == guess) & (width == width)
        first = tl.where(sound, _key(guess - width), low + third)
        second = tl.where(sound, _key(guess + width), high - third)
        first = tl.minimum(tl.maximum(first, low + 1), high - 1)
        second = tl.minimum(tl.maximum(second, first), high - 1)
        # Unsigned, for 32768 in the upper half are one too many for a signed sum, which an interpreter may refuse.
        both = tl.sum(_beneath(values, first, second).to(tl.uint32), axis=0)
        if TAIL > 0:
            both += tl.sum(_beneath(rest, first, second).to(tl.uint32), axis=0)
        low, under, high, upto = _narrowed(low, under, high, upto, wanted, first, second, both.to(tl.int32))
        turn += 1
    return high, upto


@triton.jit
def _sum(values, column, connections):
    return tl.sum(tl.where(column < connections, values, 0.0), axis=0)


@triton.jit
def _most(values, column, connections):
    """The key of the greatest magnitude."""
    return tl.max(tl.where(column < connections, _key(tl.abs(values)), 0), axis=0)


@triton.jit
def _key(values):
    """Integers in the order of the floats, −0.0 and +0.0 both 0."""
    bits = values.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    return tl.where(bits < 0, -magnitude, magnitude)


@triton.jit
def _value(key):
    """The float whose key this is."""
    bits = tl.where(key < 0, (-key) | -0x80000000, key)
    return bits.to(tl.float32, bitcast=True)
