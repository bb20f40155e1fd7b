"""Estimators: exact symbols forward, the slope of each formula backward."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equalbits.functional import (
    bihalf,
    clipped,
    decaying,
    ede_sharpness,
    ede_slope,
    polynomial,
    sign,
    sign_symbols,
    straight_through,
    surrogate,
)

Estimator = Callable[[Tensor, Tensor], Tensor]


def at_ten(reals: Tensor, symbols: Tensor) -> Tensor:
    return decaying(reals, symbols, torch.tensor(10.0, dtype=reals.dtype))


def at_a_tenth(reals: Tensor, symbols: Tensor) -> Tensor:
    return decaying(reals, symbols, torch.tensor(0.1, dtype=reals.dtype))


FORMULAS: dict[Estimator, Callable[[float], float]] = {
    straight_through: lambda x: 1.0,
    clipped: lambda x: 1.0 if abs(x) < 1 else 0.0,
    polynomial: lambda x: 2 - 2 * abs(x) if abs(x) < 1 else 0.0,
    at_ten: lambda x: 10 * (1 - math.tanh(10 * x) ** 2),
    at_a_tenth: lambda x: 1 - math.tanh(x / 10) ** 2,
}
edges = [-1.0, 1.0, 0.0, -0.0, math.nextafter(1, 0), math.nextafter(-1, 0), 1e-300]
reals = st.lists(st.one_of(st.floats(-3, 3), st.sampled_from(edges)), min_size=1, max_size=20)


@settings(deadline=None)
@pytest.mark.parametrize("estimator", FORMULAS, ids=lambda estimator: estimator.__name__)
@given(values=reals, data=st.data())
def test_the_gradient_is_the_slope_times_the_incoming_gradient(
    estimator: Estimator, values: list[float], data: st.DataObject
) -> None:
    inputs = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    incoming = torch.tensor(data.draw(st.lists(st.floats(-10, 10), min_size=len(values), max_size=len(values))))
    estimator(inputs, sign_symbols(inputs)).backward(incoming.double())
    expected = torch.tensor([FORMULAS[estimator](x) for x in values], dtype=torch.float64) * incoming.double()
    torch.testing.assert_close(inputs.grad, expected, rtol=1e-12, atol=1e-12)  # 1 − tanh² cancels


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_usual_sum_misses_a_quarter_of_the_symbols_that_differ_in_sign_from_their_reals(dtype: torch.dtype) -> None:
    inputs = torch.randn(10_000, generator=torch.Generator().manual_seed(0)).mul(0.1).to(dtype)
    for symbols, least, most in ((-sign_symbols(inputs), 0.2, 0.3), (sign_symbols(inputs), 0.0, 0.0)):
        missed = (inputs + (symbols - inputs)).abs() != 1
        assert least <= missed.float().mean() <= most


@pytest.mark.parametrize("estimator", FORMULAS, ids=lambda estimator: estimator.__name__)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_forward_value_equals_the_symbols_exactly(estimator: Estimator, dtype: torch.dtype) -> None:
    inputs = torch.randn(1000, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    symbols = sign_symbols(inputs)
    out = estimator(inputs, symbols)
    assert out.dtype == dtype and torch.equal(out, symbols)
    out.sum().backward()
    assert inputs.grad is not None and inputs.grad.dtype == dtype


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 600), st.floats(0, 1), st.integers(0, 2**32))
def test_the_straight_through_gradient_of_a_scaled_layer_is_exactly_scale_times_g(
    connections: int, p_pos: float, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    latents = torch.randn(3, connections, generator=draw).mul_(3).requires_grad_()
    incoming = torch.randn(3, connections, generator=draw)
    scale = torch.tensor(math.sqrt(2 / connections))
    for binarized in (bihalf(latents, p_pos), sign(latents)):
        latents.grad = None
        (scale * binarized).backward(incoming)
        assert latents.grad is not None and torch.equal(latents.grad, scale * incoming)


def test_a_masked_latent_still_gets_its_gradient() -> None:
    latents = torch.randn(2, 8, requires_grad=True)
    mask = torch.arange(8).expand(2, 8) < 4
    incoming = torch.randn(2, 8)
    bihalf(latents, mask=mask).backward(incoming)
    assert latents.grad is not None and torch.equal(latents.grad, incoming)


def test_no_gradient_reaches_the_symbols_or_the_slope() -> None:
    parts = [torch.randn(4, requires_grad=True) for _ in range(3)]
    surrogate(*parts).sum().backward()
    assert parts[0].grad is not None and parts[1].grad is None and parts[2].grad is None


def test_sign_is_never_zero_and_gives_plus_one_at_either_zero() -> None:
    assert sign_symbols(torch.tensor([-1e-45, -0.0, 0.0, 1e-45])).tolist() == [-1, 1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_sign_of_plain_execution_is_that_of_transformed_code_to_the_bit(dtype: torch.dtype) -> None:
    reals = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    reals[0, 0] = torch.tensor([0.0, -0.0, math.nan, math.inf, -math.inf])
    for each in (reals, reals.transpose(0, 2)):
        plain, transformed = sign_symbols(each), torch.vmap(sign_symbols)(each)
        assert torch.equal(plain, transformed) and plain.dtype == dtype and plain.stride() == each.stride()


@settings(deadline=None)
@given(st.floats(1e-3, 1.0), st.floats(1.0, 1e2))
def test_the_decaying_slope_is_one_at_zero_until_t_passes_one_and_then_t(small: float, large: float) -> None:
    zero = torch.zeros(1, dtype=torch.float64)
    assert float(ede_slope(zero, torch.tensor(small, dtype=torch.float64))) == 1.0
    assert float(ede_slope(zero, torch.tensor(large, dtype=torch.float64))) == large


def test_the_sharpness_grows_monotonically_from_t_min_to_t_max() -> None:
    progress = torch.linspace(0, 1, 101, dtype=torch.float64)
    for t_min, t_max in ((0.1, 10.0), (1e-3, 10.0)):
        sharpness = ede_sharpness(progress, t_min, t_max)
        assert float(sharpness[0]) == t_min
        assert float(sharpness[-1]) == pytest.approx(t_max)
        assert (sharpness.diff() > 0).all()
        exponents = math.log10(t_min) + (math.log10(t_max) - math.log10(t_min)) * progress
        torch.testing.assert_close(sharpness, 10**exponents)


def test_each_slope_integrates_to_two() -> None:
    """Each bounded slope is the derivative of a function from −1 to +1, so its integral is 2."""
    grid = torch.linspace(-4, 4, 80_001, dtype=torch.float64, requires_grad=True)
    for estimator in (clipped, polynomial, at_ten):
        grid.grad = None
        estimator(grid, sign_symbols(grid)).sum().backward()
        assert grid.grad is not None
        assert float(grid.grad.sum()) * 1e-4 == pytest.approx(2, rel=1e-3)
