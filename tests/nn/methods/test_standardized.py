"""AdaBin, ReCU and BNN+ equal slow formulas in float64.

Where a gradient flows through statistics, the sign is replaced by its tangent: a line with the estimator's slope
through the symbol. What is left is smooth, and is differentiated numerically, a latent at a time.
"""

import math

import numpy as np
import pytest
import torch

from equalbits.functional import swish_sign
from equalbits.nn.methods.adabin import adabin
from equalbits.nn.methods.bnn_plus import distance_to_scale
from equalbits.nn.methods.recu import recu, recu_tau


def numeric_gradient(function, point, gradient, step=1e-6):
    """Return the gradient of ``sum(gradient · function(point))``, by central differences."""
    found = np.zeros_like(point)
    for index in np.ndindex(point.shape):
        ahead, behind = point.copy(), point.copy()
        ahead[index] += step
        behind[index] -= step
        found[index] = (gradient * (function(ahead) - function(behind))).sum() / (2 * step)
    return found


def torch_gradient(method, latents, gradient):
    tensor = torch.tensor(latents, requires_grad=True)
    values = method(tensor)
    values.backward(torch.tensor(gradient))
    return values.detach().numpy(), tensor.grad.numpy()


@pytest.mark.parametrize("t", [0.1, 1.0, 4.0])
def test_adabin_matches_its_formula_with_the_gradient_through_mean_and_rms(t):
    random = np.random.default_rng(0)
    latents, gradient = random.normal(0.3, 1.0, size=(3, 10)), random.normal(size=(3, 10))

    def parts(w):
        middle = w.mean(axis=1, keepdims=True)
        distance = np.sqrt(np.square(w - middle).mean(axis=1, keepdims=True))
        return middle, distance, (w - middle) / distance

    middle, distance, start = parts(latents)
    symbols = np.where(start >= 0, 1.0, -1.0)
    slope = max(1, t) * (1 - np.tanh(t * start) ** 2)

    def tangent(w):
        b, a, h = parts(w)
        return a * (symbols + slope * (h - start)) + b

    values, found = torch_gradient(lambda w: adabin(w, torch.tensor(t).double()), latents, gradient)
    np.testing.assert_allclose(values, distance * symbols + middle, rtol=1e-12)
    np.testing.assert_allclose(found, numeric_gradient(tangent, latents, gradient), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("tau", [0.6, 0.85, 0.99, 1.0])
def test_recu_is_the_sign_with_no_gradient_beyond_the_quantile(tau):
    random = np.random.default_rng(1)
    latents, gradient = random.normal(size=(3, 12)), random.normal(size=(3, 12))

    def standard(w):
        centred = w - w.mean(axis=1, keepdims=True)
        return centred * 2 * math.sqrt(2) / np.sqrt(centred.var(axis=1, ddof=1, keepdims=True) + 1e-5)

    start = standard(latents)
    bound = math.inf if tau == 1 else -np.abs(start).mean() * math.log(2 - 2 * tau)
    kept = np.abs(start) <= bound

    def tangent(w):
        return np.where(kept, standard(w), 0.0)

    values, found = torch_gradient(lambda w: recu(w, torch.tensor(tau).double()), latents, gradient)
    assert np.array_equal(values, np.where(start >= 0, 1.0, -1.0))
    np.testing.assert_allclose(found, numeric_gradient(tangent, latents, gradient), rtol=1e-6, atol=1e-8)
    assert kept.all() == (tau >= 0.99)


def test_recus_quantile_is_that_of_a_laplace_distribution():
    torch.manual_seed(0)
    laplace = torch.distributions.Laplace(0.0, 1.0).sample((200_000,)).double()
    for tau in (0.85, 0.95):
        bound = -float(laplace.abs().mean()) * math.log(2 - 2 * tau)
        assert float((laplace <= bound).double().mean()) == pytest.approx(tau, abs=0.003)


def test_recus_tau_follows_the_published_schedule():
    def published(epoch, epochs=600, low=0.85, high=0.99):
        a = (high - low) / (math.e - 1)
        return a * math.e ** (epoch / epochs) + low - a

    for epoch in (0, 1, 300, 599):
        found = recu_tau(torch.tensor(epoch / 600, dtype=torch.float64))
        assert float(found) == pytest.approx(published(epoch), abs=1e-12)


@pytest.mark.parametrize("beta", [1.0, 5.0, 10.0])
def test_the_swish_sign_slope_is_the_derivative_of_the_swish_sign(beta):
    reals = np.linspace(-3, 3, 61)

    def swish(x):
        share = 1 / (1 + np.exp(-beta * x))
        return 2 * share * (1 + beta * x * (1 - share)) - 1

    gradient = np.random.default_rng(2).normal(size=61)
    symbols = torch.where(torch.tensor(reals) >= 0, 1.0, -1.0).double()
    values, found = torch_gradient(lambda x: swish_sign(x, symbols, beta), reals, gradient)
    assert np.array_equal(values, symbols.numpy())
    published = beta * (2 - beta * reals * np.tanh(beta * reals / 2)) / (1 + np.cosh(beta * reals))
    np.testing.assert_allclose(found, gradient * published, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found, numeric_gradient(swish, reals, gradient), rtol=1e-5, atol=1e-8)


def test_the_swish_sign_slope_is_finite_for_large_inputs():
    far = torch.tensor([-1e6, 1e6], requires_grad=True)
    swish_sign(far, torch.tensor([-1.0, 1.0])).sum().backward()
    assert far.grad.tolist() == [0.0, 0.0]


def test_the_distance_to_the_scale_pulls_weights_and_scale_together():
    random = np.random.default_rng(3)
    latents, scale = random.normal(size=(3, 2, 2)), random.uniform(0.5, 1.5, size=3)
    tensors = [torch.tensor(array, requires_grad=True) for array in (latents, scale)]
    penalty = distance_to_scale(*tensors)
    penalty.backward()
    gap = scale[:, None, None] - np.abs(latents)
    assert float(penalty.detach()) == pytest.approx(np.abs(gap).sum())
    np.testing.assert_allclose(tensors[0].grad.numpy(), -np.sign(gap) * np.sign(latents))
    np.testing.assert_allclose(tensors[1].grad.numpy(), np.sign(gap).sum(axis=(1, 2)))


def test_the_distance_of_half_precision_weights_is_summed_in_float32():
    latents = torch.full((4, 300), 100.0, dtype=torch.float16, requires_grad=True)
    penalty = distance_to_scale(latents, torch.zeros(4, dtype=torch.float16))
    assert float(penalty.detach()) == 120_000.0
    penalty.backward()
    assert latents.grad.isfinite().all() and latents.grad.dtype == torch.float16


def test_constant_filters_have_finite_gradients():
    latents = torch.full((2, 5), 0.3, dtype=torch.float64, requires_grad=True)
    total = adabin(latents, torch.tensor(1.0)).sum() + recu(latents, torch.tensor(0.9)).sum()
    total.backward()
    assert latents.grad.isfinite().all()
