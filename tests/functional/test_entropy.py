"""Entropy, shares and flips per filter."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equalbits.functional import (
    attainable_entropy,
    binary_entropy,
    count_flips,
    filter_entropy,
    positive_count,
    sign_symbols,
    transport_symbols,
)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 2000), st.floats(0, 1))
def test_every_filter_reaches_the_attainable_entropy_exactly(connections: int, p_pos: float) -> None:
    symbols = transport_symbols(torch.randn(3, connections, dtype=torch.float64), p_pos)
    expected = torch.full((3,), attainable_entropy(connections, p_pos))
    torch.testing.assert_close(filter_entropy(symbols), expected, rtol=0, atol=2e-6)
    assert (symbols > 0).sum(dim=1).tolist() == [positive_count(connections, p_pos)] * 3


def test_attainable_entropy_is_one_bit_for_even_filters_and_less_for_odd_ones() -> None:
    assert attainable_entropy(576) == 1.0
    assert attainable_entropy(27) == pytest.approx(0.999010, abs=1e-6)
    assert attainable_entropy(9) == pytest.approx(0.991076, abs=1e-6)
    assert attainable_entropy(9) == max(attainable_entropy(9, n / 9) for n in range(10)), "no count does better"


@pytest.mark.parametrize(
    ("connections", "filters", "expected"),
    [(27, 40_000, 0.9733), (256, 8_000, 0.9972), (576, 4_000, 0.9987), (4608, 500, 0.9998)],
)
def test_random_signs_have_an_entropy_about_one_over_two_ln_two_d_below_one_bit(
    connections: int, filters: int, expected: float
) -> None:
    latents = torch.randn(filters, connections, generator=torch.Generator().manual_seed(0))
    measured = float(filter_entropy(sign_symbols(latents)).mean())
    missing = 1 / (2 * math.log(2) * connections)
    assert 1 - missing == pytest.approx(expected, abs=1e-4)
    standard_error = missing * math.sqrt(2 / filters)
    assert measured == pytest.approx(1 - missing, abs=4 * standard_error + 0.03 * missing)  # to first order in 1/D


@given(st.floats(0, 1))
def test_binary_entropy_matches_its_formula_is_symmetric_and_at_most_one_bit(share: float) -> None:
    both = binary_entropy(torch.tensor([share, 1 - share], dtype=torch.float64)).tolist()
    expected = -sum(p * math.log2(p) for p in (share, 1 - share) if p > 0)
    assert both == pytest.approx([expected, expected], abs=1e-12)
    assert 0 <= both[0] <= 1


def test_entropy_of_half_precision_is_computed_in_float32() -> None:
    assert binary_entropy(torch.tensor([0.5], dtype=torch.bfloat16)).dtype == torch.float32


def test_pruned_connections_are_ignored_in_shares_and_flips() -> None:
    symbols = torch.tensor([[1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    entropy = filter_entropy(symbols)
    assert entropy[0] == 1.0 and entropy[1].isnan()
    flips = count_flips(torch.tensor([[1.0, -1.0, 0.0, 1.0]]), torch.tensor([[-1.0, 0.0, 1.0, 1.0]]))
    assert (flips.to_positive.tolist(), flips.to_negative.tolist()) == ([0], [1])


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from([-1.0, 1.0]), st.sampled_from([-1.0, 1.0])), min_size=1, max_size=30))
def test_flips_are_counted_by_direction_and_swap_when_time_is_reversed(pairs: list[tuple[float, float]]) -> None:
    before, after = (torch.tensor(side) for side in zip(*pairs, strict=True))
    flips, back = count_flips(before, after), count_flips(after, before)
    assert int(flips.to_positive) == pairs.count((-1.0, 1.0)) == int(back.to_negative)
    assert int(flips.to_negative) == pairs.count((1.0, -1.0)) == int(back.to_positive)
