"""The exact plan equals that of an independent optimal transport solver, and rounds to the symbols."""

import itertools
import math

import numpy as np
import ot
import pytest
import torch
from torch import Tensor

from equalbits.functional import positive_count, stable_ranks, transport_symbols

SIZES = [2, 3, 4, 5, 6, 7, 8, 9, 10, 16, 27, 28]
SHARES = [0.1, 0.25, 0.3, 1 / 3, 0.5, 0.75, 0.9]


def transport_plan(weights: Tensor, p_pos: float) -> Tensor:
    """Return the exact plan of one filter, shape (connection, 2): the mass each weight sends to −1 and to +1."""
    ranks = stable_ranks(weights[None])[0].double()
    to_negative = ((1 - p_pos) * len(ranks) - ranks).clamp(0, 1) / len(ranks)
    return torch.stack([to_negative, 1 / len(ranks) - to_negative], dim=1)


def weights_of(size: int, spread: float) -> Tensor:
    return spread * torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))


def solved(weights: Tensor, p_pos: float, power: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the solver's plan and the cost of each move."""
    cost = (weights[:, None] - torch.tensor([-1.0, 1.0])).abs().pow(power).numpy()
    return ot.emd(np.full(len(weights), 1 / len(weights)), np.array([1 - p_pos, p_pos]), cost), cost


@pytest.mark.parametrize("spread", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("p_pos", SHARES)
@pytest.mark.parametrize("power", [1, 2])
def test_the_plan_has_the_cost_of_the_solver(power: int, p_pos: float, spread: float) -> None:
    for size in SIZES:
        weights = weights_of(size, spread)
        plan, cost = solved(weights, p_pos, power)
        ours = transport_plan(weights, p_pos).numpy()
        assert (ours * cost).sum() == pytest.approx((plan * cost).sum(), abs=1e-9)
        if power == 2:  # strictly convex: the optimum is the only one
            np.testing.assert_allclose(ours, plan, atol=1e-9)


@pytest.mark.parametrize("p_pos", [0.0, *SHARES, 1.0])
@pytest.mark.parametrize("size", SIZES)
def test_the_plan_moves_all_mass_and_splits_at_most_the_weight_at_the_boundary(size: int, p_pos: float) -> None:
    weights = weights_of(size, 1.0)
    plan = transport_plan(weights, p_pos)
    assert (plan >= 0).all()
    torch.testing.assert_close(plan.sum(dim=1), torch.full((size,), 1 / size, dtype=torch.float64))
    torch.testing.assert_close(plan.sum(dim=0), torch.tensor([1 - p_pos, p_pos], dtype=torch.float64))
    split = ((plan > 1e-9).sum(dim=1) == 2).nonzero().flatten()
    whole = abs(size * p_pos - round(size * p_pos)) < 1e-9
    assert len(split) == (0 if whole else 1)
    if not whole:
        mass, at = size * p_pos, plan[split[0]] * size
        assert at.tolist() == pytest.approx([math.ceil(mass) - mass, mass - math.floor(mass)])
        assert int((weights < weights[split[0]]).sum()) == math.floor((1 - p_pos) * size), "the boundary rank"


@pytest.mark.parametrize("p_pos", SHARES)
@pytest.mark.parametrize("size", SIZES)
def test_the_symbols_round_the_plan_to_its_larger_part(size: int, p_pos: float) -> None:
    weights = weights_of(size, 1.0)
    to_negative, to_positive = transport_plan(weights, p_pos).unbind(dim=1)
    expected = torch.where(to_positive >= to_negative - 1e-9, 1.0, -1.0).double()
    assert torch.equal(transport_symbols(weights, p_pos), expected)
    other_counts = [n for n in range(size + 1) if n != positive_count(size, p_pos)]
    off = abs(positive_count(size, p_pos) / size - p_pos)
    assert all(off <= abs(n / size - p_pos) + 1e-12 for n in other_counts), "no other count is closer to the share"


def test_ten_weights_at_a_third_split_the_seventh() -> None:
    plan = transport_plan(torch.arange(10.0), 0.33) * 10
    torch.testing.assert_close(plan[6], torch.tensor([0.7, 0.3], dtype=torch.float64))


def test_weights_beyond_one_are_interchangeable_by_plain_cost_and_ordered_by_squared_cost() -> None:
    weights = torch.tensor([1.2, 1.5, 2.0, 3.0], dtype=torch.float64)
    choices = [
        torch.tensor([1.0 if i in chosen else -1.0 for i in range(4)]) for chosen in itertools.combinations(range(4), 2)
    ]
    plain = [float((weights - choice).abs().mean()) for choice in choices]
    assert plain == pytest.approx([1.925] * 6)
    squared = [float((weights - choice).square().mean()) for choice in choices]
    best = choices[squared.index(min(squared))]
    assert sorted(squared)[1] > min(squared)
    assert torch.equal(transport_symbols(weights).float(), best)
