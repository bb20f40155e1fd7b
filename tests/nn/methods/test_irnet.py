"""IR-Net equals its formulas in numpy, with gradients derived by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equalbits.functional import as_filters, standardize
from equalbits.nn.methods.irnet import irnet, irnet_stable


def standardised(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    spread = weights.std(axis=1, ddof=1, keepdims=True)
    return (weights - weights.mean(axis=1, keepdims=True)) / spread, spread


def slope(balanced: np.ndarray, t: float) -> np.ndarray:
    return max(1 / t, 1) * t * (1 - np.tanh(t * balanced) ** 2)


def through_statistics(gradient: np.ndarray, balanced: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Return the gradient through ``h = (w − mean) / std``: minus its mean and its part along h, over std."""
    along = (gradient * balanced).sum(axis=1, keepdims=True) / (balanced.shape[1] - 1)
    return (gradient - gradient.mean(axis=1, keepdims=True) - balanced * along) / spread


def drawn(seed: int, connections: int, skew: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    weights = torch.randn(4, connections, dtype=torch.float64, generator=draw)
    return weights.sign() * weights.abs() ** skew * 0.05 + 0.01, torch.randn(4, connections, generator=draw).double()


def assert_near(actual: np.ndarray, expected: np.ndarray) -> None:
    """Assert equality up to rounding relative to the largest entry of the row, since entries cancel."""
    assert (np.abs(actual - expected) <= 1e-9 * np.abs(expected).max(axis=1, keepdims=True)).all()


def gradient_of(out: Tensor, latents: Tensor, incoming: Tensor) -> np.ndarray:
    return torch.autograd.grad(out, latents, incoming.view_as(out))[0].numpy()


cases = (st.integers(0, 2**32), st.integers(8, 300), st.sampled_from([1, 3, 9]), st.sampled_from([0.1, 1.0, 3.0]))


@settings(deadline=None, max_examples=60)
@given(*cases)
def test_irnet_is_two_to_s_times_the_sign_with_the_gradient_through_the_normalisation(
    seed: int, connections: int, skew: int, t: float
) -> None:
    latents, incoming = drawn(seed, connections, skew)
    balanced, spread = standardised(latents.numpy())
    power = 2.0 ** np.round(np.log2(np.abs(balanced).mean(axis=1, keepdims=True)))
    latents.requires_grad_()
    out = irnet(latents, torch.tensor(t, dtype=torch.float64))
    np.testing.assert_array_equal(out.detach().numpy(), power * np.where(balanced >= 0, 1, -1))
    expected = through_statistics(incoming.numpy() * power * slope(balanced, t), balanced, spread)
    assert_near(gradient_of(out, latents, incoming), expected)


@settings(deadline=None, max_examples=60)
@given(*cases)
def test_stable_irnet_is_the_centred_sign_with_or_without_gradient_through_the_statistics(
    seed: int, connections: int, skew: int, t: float
) -> None:
    latents, incoming = drawn(seed, connections, skew)
    balanced, spread = standardised(latents.numpy())
    latents.requires_grad_()
    held = irnet_stable(latents, torch.tensor(t, dtype=torch.float64))
    free = irnet_stable(latents, torch.tensor(t, dtype=torch.float64), through_statistics=True)
    for out in (held, free):
        np.testing.assert_array_equal(out.detach().numpy(), np.where(balanced >= 0, 1.0, -1.0))
    after_slope = incoming.numpy() * slope(balanced, t)
    assert_near(gradient_of(held, latents, incoming), after_slope)
    expected = through_statistics(after_slope, balanced, spread)
    assert_near(gradient_of(free, latents, incoming), expected)


def test_gaussian_filters_need_no_shift() -> None:
    latents = 0.03 * torch.randn(64, 576, generator=torch.Generator().manual_seed(0)) - 0.2
    assert torch.equal(irnet(latents, torch.tensor(1.0)).abs(), torch.ones_like(latents)), "2^s = 1: mean |h| is 0.798"


def test_heavy_tails_shift_by_a_whole_power_of_two() -> None:
    latents, _ = drawn(0, 4096, 9)
    shifts = irnet(latents, torch.tensor(1.0)).abs().log2()
    assert torch.equal(shifts, shifts.round()) and (shifts < 0).all()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(3, 300))
def test_libra_is_invariant_to_mean_and_scale_and_so_is_its_gradient(seed: int, connections: int) -> None:
    latents, incoming = drawn(seed, connections, 1)
    sharpness = torch.tensor(1.0)
    assert torch.equal(irnet(4 * latents + 0.5, sharpness), irnet(latents, sharpness))
    latents.requires_grad_()
    gradient = torch.from_numpy(gradient_of(irnet(latents, sharpness), latents, incoming))
    centred = latents.detach() - latents.detach().mean(dim=1, keepdim=True)
    size = gradient.abs().sum(dim=1)
    assert (gradient.sum(dim=1).abs() < 1e-9 * size).all()
    assert ((gradient * centred).sum(dim=1).abs() < 1e-9 * size).all()


@pytest.mark.parametrize("value", [0.0, 0.1, -3.7e4])
@pytest.mark.parametrize("method", [irnet, irnet_stable])
def test_a_filter_of_equal_weights_has_finite_values_and_gradients(method: type[irnet], value: float) -> None:
    latents = torch.full((2, 27), value, requires_grad=True)
    out = method(latents, torch.tensor(1.0))
    out.backward(torch.randn(2, 27))
    assert out.isfinite().all() and (out != 0).all()
    assert latents.grad is not None and latents.grad.abs().max() < 100


def test_equal_weights_are_only_centred() -> None:
    latents = torch.full((2, 27), 0.1, dtype=torch.float64, requires_grad=True)
    incoming = torch.randn(2, 27, dtype=torch.float64)
    gradient = torch.autograd.grad(standardize(latents), latents, incoming)[0]
    torch.testing.assert_close(gradient, incoming - incoming.mean(dim=1, keepdim=True))


def test_filters_keep_their_shape_and_a_filter_of_one_weight_raises() -> None:
    weights = torch.randn(4, 3, 3, 3)
    for method in (irnet, irnet_stable):
        assert torch.equal(
            as_filters(method(weights, torch.tensor(1.0))), method(weights.flatten(1), torch.tensor(1.0))
        )
    assert torch.equal(irnet_stable(torch.randn(3, 1), torch.tensor(1.0)), torch.ones(3, 1))
    with pytest.raises(ValueError, match=r"\(3, 1\).*at least 2 connections; leave this layer real"):
        irnet(torch.randn(3, 1), torch.tensor(1.0))
    assert torch.equal(irnet(torch.tensor([[0.3, 0.1]]), torch.tensor(1.0)).sign(), torch.tensor([[1.0, -1.0]]))
