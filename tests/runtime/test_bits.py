"""Meaning of a bit: packing and unpacking are inverse, and unused bits are zero."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from equalbits import functional
from equalbits.runtime import bits

SHAPES = npst.array_shapes(min_dims=2, max_dims=2, max_side=40)
SYMBOLS = npst.arrays(np.int8, SHAPES, elements=st.integers(-1, 1))


@given(SYMBOLS)
def test_unpacking_inverts_packing(symbols: np.ndarray) -> None:
    sign, kept = bits.pack_symbols(symbols)
    assert (kept is None) == bool((symbols != 0).all())
    assert sign.shape == (len(symbols), bits.plane_width(symbols.shape[1]))
    np.testing.assert_array_equal(bits.unpack_symbols(sign, kept, symbols.shape[1]), symbols)
    assert bits.plane_fault(sign, kept, symbols.shape[1]) is None


@given(SYMBOLS)
def test_symbols_are_counted_without_unpacking(symbols: np.ndarray) -> None:
    counts = bits.count_symbols(*bits.pack_symbols(symbols), symbols.shape[1])
    for symbol, count in zip((-1, 0, 1), counts, strict=True):
        np.testing.assert_array_equal(count, (symbols == symbol).sum(axis=1))


@given(SYMBOLS, st.data())
def test_a_bit_set_for_a_pruned_or_absent_weight_is_found(symbols: np.ndarray, data: st.DataObject) -> None:
    width = symbols.shape[1]
    sign, kept = bits.pack_symbols(symbols)
    spare = [(row, place) for row in range(len(symbols)) for place in range(width, 8 * sign.shape[1])]
    pruned = list(zip(*np.nonzero(symbols == 0), strict=True))
    if spare or pruned:
        row, place = data.draw(st.sampled_from(spare + pruned))
        sign[row, place // 8] |= 1 << place % 8
        assert bits.plane_fault(sign, kept, width) is not None


def test_the_first_connection_is_the_lowest_bit_of_the_first_byte() -> None:
    symbols = -np.ones((1, 9), np.int8)
    symbols[0, 0] = symbols[0, 8] = 1
    assert bits.pack_symbols(symbols)[0].tolist() == [[1, 1]]


def test_the_connections_are_in_the_order_of_torch() -> None:
    symbols = np.ones((2, 3, 3, 3), np.int8)
    symbols[1, 2, 0, 1] = -1  # connection 2 · 9 + 0 · 3 + 1 = 19
    assert bits.pack_symbols(symbols)[0][1].tolist() == [255, 255, 255 - 8, 7]


@pytest.mark.parametrize("wrong", [2, 0.5, -3, np.nan])
def test_values_other_than_symbols_are_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match=r"must be -1, \+1, or 0"):
        bits.pack_symbols(np.array([[1.0, wrong]]))


@given(st.integers(0, 5000), st.floats(0, 1))
def test_the_promised_count_equals_that_of_training(connections: int, p_pos: float) -> None:
    assert bits.positive_count(connections, p_pos) == functional.positive_count(connections, p_pos)
