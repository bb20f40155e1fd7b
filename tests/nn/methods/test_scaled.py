"""Methods with a scale of their own equal slow formulas in float64: values and gradients."""

import numpy as np
import pytest
import torch

from equalbits.nn import ABCNet
from equalbits.nn.methods.abcnet import abcnet, abcnet_bases
from equalbits.nn.methods.binaryconnect import binaryconnect, stochastic_symbols
from equalbits.nn.methods.bireal import bireal
from equalbits.nn.methods.dorefa import dorefa
from equalbits.nn.methods.least_squares import least_squares
from equalbits.nn.methods.xnor import centred_over_inputs, xnor


def _latents(seed, shape=(3, 4, 2, 2)):
    """Draw latents, some beyond ±1, some at the bound, one 0."""
    latents = np.random.default_rng(seed).normal(size=shape)
    latents.reshape(shape[0], -1)[0, :3] = [1.0, -1.0, 0.0]
    return latents


def values_and_gradient(method, latents, gradient):
    tensor = torch.tensor(latents, requires_grad=True)
    values = method(tensor)
    values.backward(torch.tensor(gradient))
    return values.detach().numpy(), tensor.grad.numpy()


def signs(w):
    return np.where(w >= 0, 1.0, -1.0)


def inside(w):
    return np.abs(w) <= 1


def slow_xnor(w, g):
    scale = np.abs(w).mean()
    return scale * signs(w), scale * inside(w) * g + signs(w) * (signs(w) * g).mean()


def slow_bireal(w, g):
    return np.abs(w).mean() * signs(w), inside(w) * g


def slow_least_squares(w, g):
    return np.abs(w).mean() * signs(w), np.abs(w).mean() * inside(w) * g


def slow_binaryconnect(w, g):
    return signs(w), inside(w) * g


def slow_abcnet(bases):
    def method(w, g):
        flat = w.ravel()
        shifts = [0.0] if bases == 1 else [-1 + 2 * m / (bases - 1) for m in range(bases)]
        matrix = np.stack([signs(flat - flat.mean() + u * flat.std()) for u in shifts], axis=1)
        weights = np.linalg.lstsq(matrix, flat, rcond=None)[0]
        return (matrix @ weights).reshape(w.shape), weights.sum() * g

    return method


@pytest.mark.parametrize(
    ("method", "slow"),
    [
        (binaryconnect, slow_binaryconnect),
        (xnor, slow_xnor),
        (bireal, slow_bireal),
        (least_squares, slow_least_squares),
        (lambda w: abcnet(w, 1), slow_abcnet(1)),
        (lambda w: abcnet(w, 2), slow_abcnet(2)),
        (lambda w: abcnet(w, 5), slow_abcnet(5)),
    ],
    ids=["binaryconnect", "xnor", "bireal", "least squares", "abc-net 1", "abc-net 2", "abc-net 5"],
)
@pytest.mark.parametrize("shape", [(3, 4, 2, 2), (5, 7), (2, 3, 5)])
def test_a_method_matches_its_formula_in_every_filter(method, slow, shape):
    latents, gradient = _latents(1, shape), np.random.default_rng(2).normal(size=shape)
    values, found = values_and_gradient(method, latents, gradient)
    for filter_, (w, g) in enumerate(zip(latents, gradient, strict=True)):
        expected, slope = slow(w, g)
        np.testing.assert_allclose(values[filter_], expected, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found[filter_], slope, rtol=1e-10, atol=1e-12)


def test_dorefa_scales_by_the_whole_layer_with_an_unchanged_gradient():
    latents, gradient = _latents(3), np.random.default_rng(4).normal(size=(3, 4, 2, 2))
    values, found = values_and_gradient(dorefa, latents, gradient)
    np.testing.assert_allclose(values, np.abs(latents).mean() * signs(latents), rtol=1e-12)
    assert np.array_equal(found, gradient)


def test_centred_xnor_subtracts_the_mean_of_each_kernel_position_in_the_graph():
    latents, gradient = _latents(5), np.random.default_rng(6).normal(size=(3, 4, 2, 2))
    values, found = values_and_gradient(lambda w: xnor(w, centre=True), latents, gradient)
    centred = latents - latents.mean(axis=1, keepdims=True)
    inner = np.stack([slow_xnor(w, g)[1] for w, g in zip(centred, gradient, strict=True)])
    np.testing.assert_allclose(values, np.stack([slow_xnor(w, g)[0] for w, g in zip(centred, gradient, strict=True)]))
    np.testing.assert_allclose(found, inner - inner.mean(axis=1, keepdims=True), rtol=1e-10, atol=1e-14)


def test_a_linear_layer_of_two_inputs_is_centred():
    assert centred_over_inputs(torch.tensor([[1.0, 3.0], [0.0, -4.0]])).tolist() == [[-1, 1], [2, -2]]


def test_centring_a_depthwise_layer_raises():
    with pytest.raises(ValueError, match="at least two input channels"):
        xnor(torch.randn(6, 1, 3, 3), centre=True)


def test_the_mean_magnitude_is_the_nearest_scale_for_the_signs():
    latents = _latents(7, (1, 40))
    best = np.square(latents - least_squares(torch.tensor(latents)).numpy()).sum()
    for factor in (0.9, 0.99, 1.01, 1.1):
        other = factor * np.abs(latents).mean() * signs(latents)
        assert np.square(latents - other).sum() > best


@pytest.mark.parametrize("bases", [0, -1, 1.5, "2"])
def test_an_invalid_number_of_bases_raises(bases):
    with pytest.raises(ValueError, match=f"bases={bases!r}"):
        ABCNet(bases)


def test_more_bases_reduce_the_error_and_equal_bases_are_allowed():
    latents = torch.tensor(_latents(8, (4, 60)))
    errors = [float((latents - abcnet(latents, bases)).square().sum()) for bases in (1, 3, 5)]
    assert errors[0] > errors[1] > errors[2]
    assert torch.equal(abcnet_bases(torch.full((2, 6), 0.5), 3).symbols, torch.ones(2, 6, 3))
    constant = abcnet(torch.full((2, 6), 0.5, dtype=torch.float64), 3)
    torch.testing.assert_close(constant, torch.full((2, 6), 0.5, dtype=torch.float64))


def test_stochastic_symbols_follow_the_hard_sigmoid():
    torch.manual_seed(0)
    latents = torch.tensor([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0]).expand(20000, 7)
    share = (stochastic_symbols(latents) > 0).double().mean(dim=0)
    torch.testing.assert_close(share, torch.tensor([0, 0, 0.25, 0.5, 0.75, 1, 1]).double(), atol=0.015, rtol=0)
