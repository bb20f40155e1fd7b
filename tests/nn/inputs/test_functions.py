"""Functions of the input quantizers: bi-half over the batch, and HWGQ."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equalbits.functional import positive_count
from equalbits.nn.input_quantizers.bihalf import batch_symbols, bihalf_inputs
from equalbits.nn.input_quantizers.hwgq import HWGQ, HWGQ_LEVELS, hwgq


@settings(deadline=None)
@given(
    batch=st.integers(1, 9),
    channels=st.integers(1, 4),
    side=st.integers(1, 3),
    p_pos=st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]),
    seed=st.integers(0, 999),
)
def test_every_channel_has_an_exact_share_over_the_batch(batch, channels, side, p_pos, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randint(-2, 3, (batch, channels, side, side), generator=generator).double()  # many ties
    symbols = batch_symbols(inputs, p_pos)
    assert symbols.shape == inputs.shape
    counts = (symbols == 1).sum(dim=(0, 2, 3))
    assert counts.tolist() == [positive_count(batch * side * side, p_pos)] * channels
    for channel in range(channels):
        values, bits = inputs[:, channel].flatten(), symbols[:, channel].flatten()
        if 0 < counts[channel] < len(bits):
            assert values[bits > 0].min() >= values[bits < 0].max()


def test_the_gradient_is_straight_through_plus_the_pull_to_the_bit():
    random = np.random.default_rng(0)
    reals, gradient = random.normal(size=(6, 3, 2)), random.normal(size=(6, 3, 2))
    inputs = torch.tensor(reals, requires_grad=True)
    symbols = bihalf_inputs(inputs, pull=6.0)
    symbols.backward(torch.tensor(gradient))
    bits = symbols.detach().numpy()
    np.testing.assert_allclose(inputs.grad.numpy(), gradient + 6 * (reals - bits) / reals.size, rtol=1e-12)


def test_inputs_without_a_channel_raise():
    with pytest.raises(ValueError, match="batch, channel"):
        batch_symbols(torch.randn(5))


@pytest.mark.parametrize("bits", [1, 2])
def test_hwgq_matches_its_formula(bits):
    random = np.random.default_rng(1)
    reals, gradient = random.normal(size=200), random.normal(size=200)
    reals[:3] = [0.0, HWGQ_LEVELS[bits][-1], 3.0]
    inputs = torch.tensor(reals, requires_grad=True)
    values = hwgq(inputs, bits)
    values.backward(torch.tensor(gradient))
    levels = np.array(HWGQ_LEVELS[bits])
    nearest = levels[np.abs(reals[:, None] - levels).argmin(axis=1)]
    np.testing.assert_allclose(values.detach().numpy(), np.where(reals > 0, nearest, 0.0), rtol=1e-12)
    np.testing.assert_allclose(inputs.grad.numpy(), gradient * ((reals > 0) & (reals <= levels[-1])))


@pytest.mark.parametrize("bits", [1, 2])
def test_the_levels_have_the_least_squared_error_for_a_normal_input(bits):
    reals = np.linspace(0, 8, 400_001)
    density = np.exp(-np.square(reals) / 2)

    def error(step):
        levels = step * np.arange(1, 2**bits)
        nearest = levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, reals)]
        return (density * np.square(reals - nearest)).sum()

    step = HWGQ_LEVELS[bits][0]
    candidates = np.arange(step - 0.02, step + 0.02, 0.001)
    best = candidates[np.argmin([error(candidate) for candidate in candidates])]
    assert best == pytest.approx(step, abs=0.0016)
    assert HWGQ_LEVELS[1][0] == pytest.approx(math.sqrt(2 / math.pi))


def test_other_numbers_of_bits_raise():
    with pytest.raises(ValueError, match="has 1 or 2"):
        HWGQ(3)
