"""Laws of pruning: exact counts for every size, sparsity and tie."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equalbits import functional as F
from equalbits.functional.pruning import (
    edge_popup,
    keep_largest,
    keep_largest_globally,
    prune_middle_ranks,
    pruned_count,
    ramped_sparsity,
)
from equalbits.nn.methods.mpt import mpt_values

shapes = st.tuples(st.integers(1, 5), st.integers(1, 40))
rates = st.one_of(st.floats(0, 0.999), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95]))
shares = st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 0.75, 1.0])


def tied(shape: tuple[int, int], seed: int) -> torch.Tensor:
    """Latents of few distinct values, so that most are tied."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator).double() / 4


def slow_keep(importance: np.ndarray, pruned: int) -> np.ndarray:
    """Prune one weight at a time, by definition: the least important, of equal ones the first."""
    order = sorted(range(importance.size), key=lambda i: (importance[i], i))
    mask = np.ones(importance.size, dtype=bool)
    mask[order[:pruned]] = False
    return mask


@settings(deadline=None)
@given(shape=shapes, sparsity=rates, p_pos=shares, seed=st.integers(0, 999))
def test_a_filter_pruned_by_rank_has_exact_counts(shape, sparsity, p_pos, seed):
    latents = tied(shape, seed)
    symbols = prune_middle_ranks(latents, sparsity, p_pos)
    kept = shape[1] - math.floor(sparsity * shape[1] + 0.5 + 1e-9)
    positives = math.floor(p_pos * kept + 0.5 + 1e-9)
    assert set(symbols.unique().tolist()) <= {-1.0, 0.0, 1.0}
    assert (symbols == 1).sum(dim=1).tolist() == [positives] * shape[0]
    assert (symbols == -1).sum(dim=1).tolist() == [kept - positives] * shape[0]


@settings(deadline=None)
@given(shape=shapes, sparsity=rates, seed=st.integers(0, 999))
def test_pruning_by_rank_is_equation_4_on_the_weights_it_keeps(shape, sparsity, seed):
    latents = tied(shape, seed)
    symbols = prune_middle_ranks(latents, sparsity)
    assert torch.equal(symbols, F.transport_symbols(latents, mask=symbols != 0))


@settings(deadline=None)
@given(shape=shapes, sparsity=rates, seed=st.integers(0, 999), scope=st.sampled_from(["filter", "layer"]))
def test_a_mask_prunes_the_least_important_and_the_first_of_equal_ones(shape, sparsity, seed, scope):
    importance = tied(shape, seed).abs()
    mask = keep_largest(importance, sparsity, scope=scope).numpy()
    if scope == "layer":
        pruned = math.floor(sparsity * importance.numel() + 1e-9)
        assert np.array_equal(mask.ravel(), slow_keep(importance.numpy().ravel(), pruned))
    else:
        pruned = math.floor(sparsity * shape[1] + 0.5 + 1e-9)
        assert all(np.array_equal(m, slow_keep(i, pruned)) for m, i in zip(mask, importance.numpy(), strict=True))


@settings(deadline=None)
@given(shape=shapes, sparsity=rates, p_pos=shares, seed=st.integers(0, 999))
def test_a_sparsity_given_as_a_tensor_equals_one_given_as_a_number(shape, sparsity, p_pos, seed):
    latents = tied(shape, seed)
    dynamic = torch.tensor(sparsity, dtype=torch.float64)
    assert torch.equal(prune_middle_ranks(latents, dynamic, p_pos), prune_middle_ranks(latents, sparsity, p_pos))
    for scope in ("filter", "layer"):
        assert torch.equal(
            keep_largest(latents.abs(), dynamic, scope=scope), keep_largest(latents.abs(), sparsity, scope=scope)
        )


@settings(deadline=None)
@given(sizes=st.lists(shapes, min_size=1, max_size=4), sparsity=rates, p_pos=shares, seed=st.integers(0, 999))
def test_one_ranking_over_layers_keeps_an_exact_count_and_an_exact_share_in_every_filter(sizes, sparsity, p_pos, seed):
    layers = [tied(shape, seed + i) for i, shape in enumerate(sizes)]
    masks = keep_largest_globally([latents.abs() for latents in layers], sparsity)
    everything = torch.cat([latents.abs().flatten() for latents in layers]).numpy()
    expected = slow_keep(everything, math.floor(sparsity * everything.size + 1e-9))
    assert np.array_equal(torch.cat([mask.flatten() for mask in masks]).numpy(), expected)
    for latents, mask in zip(layers, masks, strict=True):
        symbols = F.transport_symbols(latents, p_pos, mask=mask)
        assert torch.equal(symbols != 0, mask)
        wanted = [F.positive_count(int(count), p_pos) for count in mask.sum(dim=1)]
        assert (symbols == 1).sum(dim=1).tolist() == wanted


def test_ties_across_layers_keep_the_later_layer():
    first, second = keep_largest_globally([torch.ones(1, 3), torch.ones(1, 3)], 0.5)
    assert first.tolist() == [[False] * 3]
    assert second.tolist() == [[True] * 3]


def test_pruned_counts_round_to_the_nearest_in_a_filter_and_down_in_a_layer():
    assert [pruned_count(10, k) for k in (0.0, 0.14, 0.15, 0.9)] == [0, 1, 2, 9]
    assert [pruned_count(10, k, scope="layer") for k in (0.0, 0.14, 0.19, 0.9)] == [0, 1, 1, 9]
    assert pruned_count(64 * 576, 0.9, scope="layer") == int(0.9 * 64 * 576)


def test_a_ramp_rises_from_one_half_by_the_cube_and_then_stays_constant():
    epochs = torch.arange(0, 101) / 100
    ramp = [float(ramped_sparsity(progress, 0.9, 0.1)) for progress in epochs]
    assert ramp[:11] == pytest.approx([0.9 + (0.5 - 0.9) * (1 - e / 10) ** 3 for e in range(11)], abs=1e-6)
    assert ramp[10:] == pytest.approx([0.9] * 91)
    assert all(after >= before for before, after in pairwise(ramp))
    assert float(ramped_sparsity(torch.tensor(0.0), 0.3, 0.1)) == pytest.approx(0.3)


def test_scores_get_the_gradient_times_the_weight_times_the_sign_of_the_score():
    torch.manual_seed(0)
    latents, scores = (torch.randn(3, 7, dtype=torch.float64, requires_grad=True) for _ in "ab")
    gradient = torch.randn(3, 7, dtype=torch.float64)
    values = mpt_values(latents, keep_largest(scores.abs(), 0.5))
    edge_popup(latents, scores, values, latents.detach() * scores.detach().sign()).backward(gradient)
    weights, s = latents.detach().numpy(), scores.detach().numpy()
    assert np.array_equal(scores.grad.numpy(), gradient.numpy() * (weights * np.sign(s)))
    assert torch.equal(latents.grad, gradient)


def test_mpt_values_are_the_signs_times_the_mean_magnitude_of_the_kept_weights():
    torch.manual_seed(1)
    latents = torch.randn(4, 5, dtype=torch.float64)
    mask = keep_largest(torch.randn(4, 5), 0.6)
    weights, kept = latents.numpy(), mask.numpy()
    expected = np.abs(weights[kept]).sum() / kept.sum() * np.where(weights >= 0, 1, -1) * kept
    np.testing.assert_allclose(mpt_values(latents, mask).numpy(), expected, rtol=1e-12)
    assert kept.sum() == 20 - int(0.6 * 20)


@pytest.mark.parametrize("sparsity", [-0.1, 1.0, 1.5])
def test_an_invalid_sparsity_raises(sparsity):
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\)"):
        prune_middle_ranks(torch.randn(2, 4), sparsity)


@pytest.mark.parametrize("sparsity", [0.5, torch.tensor(0.5)], ids=["number", "tensor"])
def test_a_layer_without_filters_gives_an_empty_mask(sparsity):
    for scope in ("layer", "filter", "global"):
        assert keep_largest(torch.empty(0, 3, 2), sparsity, scope=scope).shape == (0, 3, 2)
    empty, full = keep_largest_globally([torch.empty(0, 4), torch.randn(2, 4)], sparsity)
    assert (empty.shape, int(full.sum())) == ((0, 4), 4)


def test_an_unknown_scope_and_no_layers_raise():
    with pytest.raises(ValueError, match="choose one of 'filter'"):
        keep_largest(torch.randn(2, 4), 0.5, scope="channel")
    with pytest.raises(ValueError, match="at least one"):
        keep_largest_globally([], 0.5)
