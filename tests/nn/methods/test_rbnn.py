"""RBNN: orthogonal rotations that never move away from the signs, and the published gradient."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from equalbits import functional as F
from equalbits.nn.methods import rbnn


def random_rotation(a, b, seed=0):
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(n, n, dtype=torch.float64, generator=generator) for n in (a, b))
    return rbnn.Rotation(torch.linalg.qr(left).Q, torch.linalg.qr(right).Q)


@pytest.mark.parametrize("connections", [1, 2, 9, 27, 64, 97, 576, 4608])
def test_the_factors_are_the_nearest_to_the_square_root(connections):
    a, b = rbnn.factor_pair(connections)
    assert a * b == connections
    assert a <= b
    assert not any(connections % n == 0 for n in range(a + 1, math.isqrt(connections) + 1))


def test_a_rotation_equals_its_kronecker_product():
    rotation = random_rotation(3, 4)
    rows = torch.randn(5, 12, dtype=torch.float64)
    whole = np.kron(rotation.left.numpy().T, rotation.right.numpy().T)  # acts on the rows of X, laid out one by one
    np.testing.assert_allclose(rbnn.rotate(rows, rotation).numpy(), rows.numpy() @ whole.T, rtol=1e-10, atol=1e-12)


def test_no_round_of_fitting_increases_the_distance_to_the_signs():
    torch.manual_seed(0)
    rows = F.standardize(torch.randn(8, 36, dtype=torch.float64))
    rotation, distances = random_rotation(6, 6), []
    for _ in range(12):
        rotated_rows = rbnn.rotate(rows, rotation)
        distances.append(float((rotated_rows - rotated_rows.sign()).square().sum()))
        rotation = rbnn.fit_rotation(rows, rotation, rounds=1)
        for matrix in rotation:
            torch.testing.assert_close(matrix @ matrix.T, torch.eye(6, dtype=torch.float64), atol=1e-10, rtol=0)
    assert all(after <= before + 1e-9 for before, after in pairwise(distances))
    assert distances[-1] < 0.9 * distances[0]


def test_each_step_of_a_round_is_the_published_procrustes_solution():
    torch.manual_seed(0)
    rows = F.standardize(torch.randn(4, 6, dtype=torch.float64))
    start = random_rotation(2, 3)
    fitted = rbnn.fit_rotation(rows, start, rounds=1)
    r1, r2, xs = start.left.numpy(), start.right.numpy(), rows.numpy().reshape(4, 2, 3)
    bs = [np.where(r1.T @ x @ r2 >= 0, 1.0, -1.0) for x in xs]
    u, _, vt = np.linalg.svd(sum(b @ r2.T @ x.T for b, x in zip(bs, xs, strict=True)))
    r1 = vt.T @ u.T
    u, _, vt = np.linalg.svd(sum(x.T @ r1 @ b for b, x in zip(bs, xs, strict=True)))
    np.testing.assert_allclose(fitted.left.numpy(), r1, atol=1e-10)
    np.testing.assert_allclose(fitted.right.numpy(), u @ vt, atol=1e-10)


def test_fitting_takes_three_rounds_by_default():
    torch.manual_seed(0)
    rows, one_by_one = F.standardize(torch.randn(20, 36, dtype=torch.float64)), random_rotation(6, 6)
    at_once = rbnn.fit_rotation(rows, one_by_one)
    for _ in range(3):
        one_by_one = rbnn.fit_rotation(rows, one_by_one, rounds=1)
    torch.testing.assert_close(at_once, one_by_one)


@pytest.mark.parametrize("t", [0.01, 0.5, 2.0])
def test_values_and_gradients_are_the_published_ones(t):
    random = np.random.default_rng(0)
    latents, gradient = random.normal(size=(3, 12)), random.normal(size=(3, 12))
    beta, rotation = random.uniform(0, math.pi, size=3), random_rotation(3, 4)

    def standard(w):
        centred = w - w.mean(axis=1, keepdims=True)
        return centred / centred.std(axis=1, ddof=1, keepdims=True)

    rotated = rbnn.rotate(torch.tensor(standard(latents)), rotation).numpy()  # a constant of the gradient

    def moved(w, angle):
        return standard(w) + np.abs(np.sin(angle))[:, None] * (rotated - standard(w))

    start = moved(latents, beta)
    slope = max(1 / t, 1) * np.maximum(0, 2 * math.sqrt(t * t / 2) - t * t * np.abs(start))
    tensors = [torch.tensor(array, requires_grad=True) for array in (latents, beta)]
    values = rbnn.rbnn(tensors[0], rotation, tensors[1], torch.tensor(t).double())
    values.backward(torch.tensor(gradient))
    assert np.array_equal(values.detach().numpy(), np.where(start >= 0, 1.0, -1.0))
    for tensor, array, function in (
        (tensors[0], latents, lambda w: moved(w, beta)),
        (tensors[1], beta, lambda angle: moved(latents, angle)),
    ):
        expected = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            ahead, behind = array.copy(), array.copy()
            ahead[index] += 1e-6
            behind[index] -= 1e-6
            expected[index] = (gradient * slope * (function(ahead) - function(behind))).sum() / 2e-6
        np.testing.assert_allclose(tensor.grad.numpy(), expected, rtol=1e-5, atol=1e-8)


def test_constant_filters_have_finite_gradients():
    latents = torch.full((2, 12), 0.3, requires_grad=True)
    beta = torch.tensor([0.3, 0.6], requires_grad=True)
    rotation = rbnn.Rotation(*(matrix.float() for matrix in random_rotation(3, 4)))
    rbnn.rbnn(latents, rotation, beta, torch.tensor(1.0)).sum().backward()
    assert latents.grad.isfinite().all()
    assert beta.grad.isfinite().all()
