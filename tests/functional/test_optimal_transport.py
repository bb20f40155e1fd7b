"""Laws of the ranking: exact counts, only ranks matter, least cost, equal to the slow twin."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from equalbits.functional import (
    positive_count,
    prune_middle_ranks,
    stable_ranks,
    transport_by_sorting,
    transport_symbols,
)

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
shares = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.1, 0.25, 0.33, 1 / 3, 0.5, 0.9, 1.0]))


def draw_rows(kind: str, shape: tuple[int, int], seed: int) -> Tensor:
    """Draw rows of one kind: distinct values, few values, one value, both zeros, or subnormal numbers."""
    noise = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return {
        "normal": lambda: noise,
        "tied": lambda: (noise * 2).round(),
        "equal": lambda: torch.full(shape, 0.1, dtype=torch.float64),
        "zeros": lambda: torch.where(noise > 0, 0.0, -0.0).double(),
        "denormal": lambda: noise * 1e-40,
        "large": lambda: noise.clamp(-6, 6) * 1e4,
    }[kind]()


@st.composite
def latents(draw: st.DrawFn, *, longest: int = 5000, kinds: tuple[str, ...] = ()) -> Tensor:
    kind = draw(st.sampled_from(kinds or ("normal", "tied", "equal", "zeros", "denormal", "large")))
    connections = draw(st.one_of(st.integers(1, min(40, longest)), st.integers(1, longest)))
    rows = draw_rows(kind, (draw(st.integers(1, 4)), connections), draw(st.integers(0, 2**32)))
    return rows.to(draw(st.sampled_from(DTYPES)))


@settings(deadline=None, max_examples=200)
@given(latents(), shares)
def test_every_row_has_exactly_the_requested_count_of_plus_ones(rows: Tensor, p_pos: float) -> None:
    symbols = transport_symbols(rows, p_pos)
    assert symbols.dtype == rows.dtype and symbols.shape == rows.shape
    assert torch.equal(symbols.abs(), torch.ones_like(rows)), "±1 to the last bit"
    assert set((symbols == 1).sum(dim=1).tolist()) == {positive_count(rows.shape[1], p_pos)}


@settings(deadline=None, max_examples=300)
@given(st.integers(1, 100_000), shares)
@example(50, 0.29)
@example(45, 0.7)
@example(10, 0.25)
def test_the_count_is_the_nearest_integer_and_one_half_rounds_up(connections: int, p_pos: float) -> None:
    exact = Fraction(p_pos) * connections
    count = positive_count(connections, p_pos)
    assert 0 <= count <= connections
    assert abs(count - exact) <= Fraction(1, 2) + Fraction(2, 10**9)
    if abs(exact % 1 - Fraction(1, 2)) < Fraction(1, 10**10):  # one half up to the rounding of p_pos
        assert count > exact


@settings(deadline=None, max_examples=200)
@given(latents(), shares)
def test_transport_symbols_equals_its_slow_twin(rows: Tensor, p_pos: float) -> None:
    assert torch.equal(transport_symbols(rows, p_pos), transport_by_sorting(rows, p_pos))
    assert torch.equal(transport_symbols(rows), transport_by_sorting(rows)), "both halve where no share is asked"


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32, allow_subnormal=True), min_size=1, max_size=40),
    shares,
)
def test_transport_symbols_equals_its_slow_twin_on_extreme_floats(values: list[float], p_pos: float) -> None:
    rows = torch.tensor([values, values[::-1]])
    assert torch.equal(transport_symbols(rows, p_pos), transport_by_sorting(rows, p_pos))


@pytest.mark.parametrize("kind", ["normal", "tied"])
@pytest.mark.parametrize("shape", [(201, 1152), (3, 100_001)])
def test_transport_symbols_equals_its_slow_twin_in_layers_larger_than_the_cache(
    shape: tuple[int, int], kind: str
) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        rows = draw_rows(kind, shape, 0).to(dtype)
        assert torch.equal(transport_symbols(rows, 0.4), transport_by_sorting(rows, 0.4))


@settings(deadline=None, max_examples=150)
@given(latents(longest=600), shares, st.floats(0, 1), st.integers(0, 2**32))
def test_a_mask_leaves_zeros_and_the_share_is_exact_among_the_kept(
    rows: Tensor, p_pos: float, kept_share: float, seed: int
) -> None:
    mask = torch.rand(rows.shape, generator=torch.Generator().manual_seed(seed)) < kept_share
    mask[0] = False  # an empty row
    symbols = transport_symbols(rows, p_pos, mask=mask)
    assert torch.equal(symbols != 0, mask)
    assert torch.equal(symbols.abs(), mask.to(rows.dtype))
    for row, kept, values in zip(symbols, mask, rows, strict=True):
        assert int((row == 1).sum()) == positive_count(int(kept.sum()), p_pos)
        if kept.any():
            assert torch.equal(row[kept], transport_symbols(values[kept], p_pos)), "as if the others were not there"
    assert torch.equal(symbols, transport_by_sorting(rows, p_pos, mask=mask))


@settings(deadline=None, max_examples=50)
@given(latents(longest=600), shares)
def test_a_mask_that_keeps_all_changes_nothing(rows: Tensor, p_pos: float) -> None:
    everything = torch.ones_like(rows, dtype=torch.bool)
    assert torch.equal(transport_symbols(rows, p_pos, mask=everything), transport_symbols(rows, p_pos))


@pytest.mark.parametrize(
    "kind", [np.float16, np.float32, np.float64, lambda share: Fraction(share).limit_denominator()]
)
def test_numpy_numbers_and_fractions_are_valid_shares(kind) -> None:
    for share in (0.01, 0.29, 0.53, 0.9):
        for connections in (50, 150, 4097):  # where numpy's float32 and float16 round the product up, or away
            p_pos, rows = kind(share), torch.arange(connections, dtype=torch.float32)[None]
            everything = torch.ones_like(rows, dtype=torch.bool)
            expected = transport_symbols(rows, float(p_pos))
            assert positive_count(connections, p_pos) == int((expected > 0).sum())
            assert torch.equal(transport_symbols(rows, p_pos), expected)
            assert torch.equal(transport_symbols(rows, p_pos, mask=everything), expected)
            assert torch.equal(prune_middle_ranks(rows, kind(0.0), p_pos), expected)
            assert torch.equal(prune_middle_ranks(rows, kind(0.5), p_pos), prune_middle_ranks(rows, 0.5, float(p_pos)))


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 2000), shares, st.integers(0, 2**32))
def test_permuted_weights_get_permuted_symbols(connections: int, p_pos: float, seed: int) -> None:
    rows = draw_rows("normal", (3, connections), seed)  # float64 noise: no ties
    order = torch.randperm(connections, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(transport_symbols(rows[:, order], p_pos), transport_symbols(rows, p_pos)[:, order])


@settings(deadline=None, max_examples=60)
@given(latents(longest=800, kinds=("normal", "tied", "equal", "zeros")), shares)
def test_only_ranks_matter(rows: Tensor, p_pos: float) -> None:
    rows = rows.double()
    expected = transport_symbols(rows, p_pos)
    bend = {"exp": rows.exp(), "cube": rows**3, "arctan": rows.atan(), "to its rank": stable_ranks(rows).double()}
    for name, bent in bend.items():
        assert torch.equal(transport_symbols(bent, p_pos), expected), name


@settings(deadline=None, max_examples=60)
@given(latents(longest=800, kinds=("tied", "equal", "zeros")), shares, st.integers(-8, 8), st.integers(-1000, 1000))
def test_a_positive_scale_and_a_shift_of_a_row_change_nothing(
    rows: Tensor, p_pos: float, power: int, shift: int
) -> None:
    rows = rows.double()  # a power of two and integers: rounding changes no tie
    assert torch.equal(transport_symbols(rows * 2.0**power + shift, p_pos), transport_symbols(rows, p_pos))


@settings(deadline=None, max_examples=100)
@given(latents(longest=800), shares, shares)
def test_more_p_pos_never_takes_a_plus_one_away(rows: Tensor, first: float, second: float) -> None:
    low, high = sorted((first, second))
    assert (transport_symbols(rows, low) <= transport_symbols(rows, high)).all()


@settings(deadline=None, max_examples=60)
@given(latents(longest=10), shares, st.sampled_from([1, 2]))
def test_no_assignment_with_the_same_counts_is_cheaper(rows: Tensor, p_pos: float, power: int) -> None:
    connections = rows.shape[1]

    def cost(symbols: Tensor) -> Tensor:
        return (rows.double() - symbols).abs().pow(power).mean(dim=1)

    ours = cost(transport_symbols(rows, p_pos))
    for chosen in itertools.combinations(range(connections), positive_count(connections, p_pos)):
        other = torch.full_like(rows, -1.0)
        other[:, list(chosen)] = 1.0
        assert (ours <= cost(other) * (1 + 1e-12) + 1e-12).all()


@settings(deadline=None, max_examples=60)
@given(latents(), shares)
def test_no_swap_of_two_symbols_is_cheaper_however_long_the_row(rows: Tensor, p_pos: float) -> None:
    symbols, weights = transport_symbols(rows, p_pos), rows.double()
    for gain in (weights, (weights + 1).abs() - (weights - 1).abs()):  # of +1 over −1, by squared and by plain cost
        top_negative = gain.masked_fill(symbols > 0, -math.inf).amax(dim=1)
        low_positive = gain.masked_fill(symbols < 0, math.inf).amin(dim=1)
        assert (top_negative <= low_positive + 1e-9).all()


def test_of_equal_weights_the_lower_index_counts_as_smaller() -> None:
    assert transport_symbols(torch.tensor([0.5, 0.1, 0.5, 0.5, 0.9])).tolist() == [-1, -1, 1, 1, 1]
    assert transport_symbols(torch.tensor([0.0, -0.0, 0.0, -0.0])).tolist() == [-1, -1, 1, 1], "both zeros are one"
    assert transport_symbols(torch.tensor([-0.0, 0.0, -0.0, 0.0])).tolist() == [-1, -1, 1, 1]


@pytest.mark.parametrize(
    ("row", "p_pos", "expected"),
    [
        ([-0.4, -0.1, 0.05, 0.3, 0.7], 0.5, [-1, -1, 1, 1, 1]),
        ([0.2] * 6, 0.5, [-1, -1, -1, 1, 1, 1]),
        (list(range(10)), 0.33, [-1] * 7 + [1] * 3),
        (list(range(10)), 0.25, [-1] * 7 + [1] * 3),
        (list(range(27)), 0.5, [-1] * 13 + [1] * 14),
        (list(range(9)), 0.5, [-1] * 4 + [1] * 5),
        ([3, 1, 2], 0.0, [-1, -1, -1]),
        ([3, 1, 2], 1.0, [1, 1, 1]),
    ],
)
def test_golden_rows(row: list[float], p_pos: float, expected: list[int]) -> None:
    assert transport_symbols(torch.tensor(row, dtype=torch.float32), p_pos).tolist() == expected


def test_at_one_half_an_even_row_is_the_sign_around_its_median() -> None:
    rows = torch.randn(20, 576, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ordered = rows.sort(dim=1).values
    median = (ordered[:, 287:288] + ordered[:, 288:289]) / 2
    assert torch.equal(transport_symbols(rows), (rows - median).sign())


@settings(deadline=None, max_examples=40)
@given(latents(longest=600), shares)
def test_all_dtypes_that_represent_the_weights_agree(rows: Tensor, p_pos: float) -> None:
    wider = {torch.bfloat16: torch.float32, torch.float16: torch.float32}.get(rows.dtype, torch.float64)
    assert torch.equal(transport_symbols(rows.to(wider), p_pos), transport_symbols(rows, p_pos).to(wider))


def test_a_filter_is_the_first_axis_whatever_the_memory_layout() -> None:
    weights = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    expected = transport_symbols(weights.reshape(6, -1), 0.3).view_as(weights)
    for layout in (
        weights,
        weights.to(memory_format=torch.channels_last),
        weights.transpose(0, 3).contiguous().transpose(0, 3),
    ):
        assert torch.equal(transport_symbols(layout, 0.3), expected)
    assert transport_symbols(torch.empty(0, 4)).shape == (0, 4), "a layer without filters has nothing to rank"


def test_symbols_carry_no_gradient() -> None:
    assert not transport_symbols(torch.randn(2, 8, requires_grad=True)).requires_grad
