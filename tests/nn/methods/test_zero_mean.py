import torch
from hypothesis import given
from hypothesis import strategies as st

from equalbits.nn import BiHalf, BinaryLinear, ZeroMean


@given(st.integers(2, 60), st.sampled_from([None, 0.1, 0.45, 0.5, 0.9]), st.integers(0, 99))
def test_every_filter_has_zero_mean_and_unit_variance_whatever_its_share(connections, p_pos, seed):
    latents = torch.randn(5, connections, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    quantizer = ZeroMean(p_pos)
    symbols, values = quantizer.symbols(latents), quantizer(latents)
    mixed = symbols.sum(dim=1).abs() < connections
    assert values.mean(dim=1).abs().max() < 1e-12
    torch.testing.assert_close(values.square().mean(dim=1)[mixed], torch.ones(int(mixed.sum()), dtype=torch.float64))
    assert not values[~mixed].any()
    assert torch.equal(values.sign()[mixed], symbols[mixed])


def test_one_half_is_bihalf():
    latents = torch.randn(4, 10)
    assert torch.equal(ZeroMean(0.5)(latents), BiHalf()(latents))


def test_latents_get_the_gradient_unchanged():
    layer = BinaryLinear(6, 2, weight_quantizer=ZeroMean(1 / 3), bias=False)
    layer(torch.ones(1, 6)).sum().backward()
    torch.testing.assert_close(layer.weight.grad, layer.scale * torch.ones(2, 6))
