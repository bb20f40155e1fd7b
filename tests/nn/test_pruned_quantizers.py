"""Pruned quantizers inside layers: counts, gradients, scales, ramps."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from equalbits import functional as F
from equalbits.functional.pruning import keep_largest, prune_middle_ranks, ramped_sparsity
from equalbits.nn import (
    MPT,
    BinaryConv2d,
    BinaryConvTranspose2d,
    BinaryLinear,
    PrunedBiHalf,
    PrunedSign,
    empty_filters,
    freeze_latents_,
    quantizer_by_name,
    set_progress,
)

RULES = [("rank", "filter"), ("magnitude", "layer"), ("magnitude", "filter"), ("score", "layer"), ("score", "filter")]


def linear(inputs, outputs, quantizer, **kwargs):
    return BinaryLinear(inputs, outputs, bias=False, weight_quantizer=quantizer, dtype=torch.float64, **kwargs)


@settings(deadline=None, max_examples=60)
@given(
    rule=st.sampled_from(RULES),
    connections=st.integers(1, 30),
    filters=st.integers(1, 5),
    sparsity=st.floats(0, 0.99),
    p_pos=st.sampled_from([0.0, 0.25, 0.5, 0.7, 1.0]),
)
def test_sparsity_and_the_share_of_plus_one_are_exact_by_every_rule(rule, connections, filters, sparsity, p_pos):
    by, scope = rule
    symbols = linear(connections, filters, PrunedBiHalf(sparsity, p_pos=p_pos, by=by, scope=scope)).symbols()
    kept = (symbols != 0).sum(dim=1)
    if scope == "layer":
        assert kept.sum() == filters * connections - math.floor(sparsity * filters * connections + 1e-9)
    else:
        assert kept.tolist() == [connections - math.floor(sparsity * connections + 0.5 + 1e-9)] * filters
    assert (symbols == 1).sum(dim=1).tolist() == [F.positive_count(int(count), p_pos) for count in kept]


def test_a_layer_multiplies_with_scaled_symbols_and_every_latent_gets_the_scaled_gradient():
    layer = BinaryConv2d(4, 6, 3, weight_quantizer=PrunedBiHalf(0.75))
    gradient = torch.randn_like(layer.weight)
    weight = layer.binary_weight()
    weight.backward(gradient)
    assert float(layer.scale) == pytest.approx(math.sqrt(2 / (36 * 0.25)))
    assert torch.equal(weight.detach(), layer.symbols() * layer.scale)
    assert torch.equal(layer.weight.grad, gradient * layer.scale)


def test_the_mask_of_a_score_is_that_of_its_magnitude_over_the_layer():
    layer = linear(12, 5, PrunedBiHalf(0.6, by="score"))
    scores = layer.weight_quantizer.scores
    assert scores.shape == layer.weight.shape
    assert scores.abs().max() <= 1 / math.sqrt(12)
    mask = keep_largest(scores.abs(), 0.6)
    assert torch.equal(layer.symbols() != 0, mask)
    assert torch.equal(layer.symbols(), F.transport_symbols(layer.weight.detach(), mask=mask))


@pytest.mark.parametrize("train_latent", [True, False])
def test_scores_learn_by_gradient_times_weight_times_sign_of_the_score(train_latent):
    layer = linear(12, 5, PrunedBiHalf(0.6, by="score", train_latent=train_latent))
    gradient = torch.randn(5, 12, dtype=torch.float64)
    layer.binary_weight().backward(gradient)
    scores = layer.weight_quantizer.scores
    expected = gradient * layer.weight.detach() * scores.detach().sign()
    torch.testing.assert_close(scores.grad, expected, rtol=1e-12, atol=0)
    if train_latent:
        torch.testing.assert_close(layer.weight.grad, gradient * layer.scale, rtol=1e-12, atol=0)
    else:
        assert layer.weight.grad is None


def test_mpt_keeps_frozen_signs_at_one_scale_and_trains_its_scores_alone():
    layer = linear(20, 4, MPT(0.7, scale_fan=False), init="kaiming")
    scores, weight = layer.weight_quantizer.scores, layer.weight.detach()
    mask = keep_largest(scores.abs(), 0.7)
    assert int(mask.sum()) == 80 - int(0.7 * 80)
    gradient = torch.randn(4, 20, dtype=torch.float64)
    binary = layer.binary_weight()
    binary.backward(gradient)
    scale = float(weight.abs()[mask].mean())
    torch.testing.assert_close(binary.detach(), scale * torch.where(weight >= 0, 1.0, -1.0).double() * mask)
    assert torch.equal(scores.grad, gradient * (weight * scores.detach().sign()))
    assert layer.weight.grad is None
    assert freeze_latents_(nn.Sequential(layer)) == ["0"]
    assert not layer.weight.requires_grad


def test_mpt_with_scale_fan_equals_mpt_on_latents_initialized_for_the_kept_connections():
    torch.manual_seed(3)
    fanned, plain = linear(20, 4, MPT(0.75), init="kaiming"), linear(20, 4, MPT(0.75, scale_fan=False))
    with torch.no_grad():
        plain.weight.copy_(2 * fanned.weight)  # √(2/(D/4)) is twice √(2/D)
        plain.weight_quantizer.scores.copy_(fanned.weight_quantizer.scores)
    gradient = torch.randn(4, 20, dtype=torch.float64)
    for layer in (fanned, plain):
        layer.binary_weight().backward(gradient)
    torch.testing.assert_close(fanned.binary_weight(), plain.binary_weight())
    torch.testing.assert_close(fanned.weight_quantizer.scores.grad, plain.weight_quantizer.scores.grad)


def test_mpt_with_scale_fan_keeps_the_output_variance_of_a_deep_net_at_any_sparsity():
    def loudness(sparsity: float, scale_fan: bool) -> float:
        torch.manual_seed(0)
        rule = MPT(sparsity, scale_fan=scale_fan)
        layers = [part for _ in range(6) for part in (linear(256, 256, rule, init="kaiming"), nn.ReLU())]
        with torch.no_grad():
            return float(nn.Sequential(*layers)(torch.randn(64, 256, dtype=torch.float64)).std())

    assert loudness(0.9, True) == pytest.approx(loudness(0.0, True), rel=0.5)
    assert loudness(0.9, False) < 0.01 * loudness(0.0, False)


@pytest.mark.parametrize("progress", [0.0, 0.05, 1.0])
def test_mpt_with_scale_fan_follows_a_ramp(progress):
    layer = linear(40, 5, MPT(0.9, scale_fan=True, ramp=0.1), init="kaiming")
    set_progress(layer, progress)
    kept = layer.symbols() != 0
    share = float(1 - ramped_sparsity(torch.tensor(progress, dtype=torch.float64), 0.9, 0.1))
    expected = float(layer.weight.detach().abs()[kept].mean()) / math.sqrt(share)
    assert float(layer.binary_weight().detach().abs().max()) == pytest.approx(expected)


def test_training_a_score_restores_its_weight():
    torch.manual_seed(0)
    layer = linear(8, 1, MPT(0.5), init="kaiming")
    wanted = torch.zeros(1, 8, dtype=torch.float64)
    wanted[0, layer.symbols()[0] == 0] = layer.weight.detach()[0, layer.symbols()[0] == 0].sign()
    before = layer.symbols()
    optimizer = torch.optim.SGD(layer.weight_quantizer.parameters(), lr=0.5)
    for _ in range(20):
        optimizer.zero_grad()
        (layer.binary_weight() - wanted).square().sum().backward()
        optimizer.step()
    assert torch.equal(layer.symbols() != 0, before == 0)


def test_pruned_sign_zeros_the_smallest_weights_of_the_layer():
    layer = linear(10, 4, PrunedSign(0.3))
    weight = layer.weight.detach()
    assert torch.equal(layer.symbols(), weight.sign() * (weight.abs() >= weight.abs().flatten().sort().values[12]))
    gradient = torch.randn_like(weight)
    layer.binary_weight().backward(gradient)
    assert torch.equal(layer.weight.grad, gradient * layer.scale)
    assert float(layer.scale) == pytest.approx(math.sqrt(2 / 7))
    assert float(linear(10, 4, PrunedSign(0.3, scale_fan=False)).scale) == pytest.approx(math.sqrt(0.2))


def test_sparsity_zero_equals_the_unpruned_method():
    latents = torch.randn(3, 9)
    assert torch.equal(PrunedSign(0.0).symbols(latents), F.sign_symbols(latents))
    for by in ("rank", "magnitude"):
        assert torch.equal(PrunedBiHalf(0.0, by=by).symbols(latents), F.transport_symbols(latents))


@pytest.mark.parametrize(
    "quantizer",
    [
        PrunedBiHalf(0.9, ramp=0.1),
        PrunedBiHalf(0.9, by="magnitude", ramp=0.1),
        PrunedBiHalf(0.9, by="score", ramp=0.1),
        PrunedSign(0.9, ramp=0.1),
        MPT(0.9, ramp=0.1),
    ],
)
def test_the_sparsity_rises_with_the_progress(quantizer):
    layer = linear(100, 1, quantizer)
    zeros = []
    for progress in (0.0, 0.05, 0.1, 1.0):
        set_progress(layer, progress)
        zeros.append(int((layer.symbols() == 0).sum()))
    assert zeros == [50, 85, 90, 90]


LOUD = [
    *(PrunedBiHalf(0.9, by=by, ramp=0.1) for by in ("rank", "magnitude", "score")),
    PrunedBiHalf(0.9, by="magnitude", scope="filter", ramp=0.1),
    PrunedSign(0.9, ramp=0.1),
    PrunedSign(0.3, ramp=0.1),
]


@pytest.mark.parametrize("quantizer", LOUD)
@pytest.mark.parametrize("training", [True, False])
def test_a_ramp_keeps_the_output_variance_constant(quantizer, training):
    layer = linear(100, 4, quantizer).train(training)
    for progress in (0.0, 0.05, 0.1, 1.0):
        set_progress(layer, progress)
        weight, symbols = layer.binary_weight().detach(), layer.symbols()
        power = weight.square().sum(dim=1).mean()  # 2 keeps the variance through a ReLU
        assert float(power) == pytest.approx(2.0)
        assert len(weight[symbols != 0].abs().unique()) == 1
    assert torch.equal(weight, symbols * layer.scale)  # at the full sparsity nothing is added


def test_without_scale_fan_a_ramp_does_not_change_the_scale():
    layer = linear(100, 4, PrunedSign(0.9, ramp=0.1, scale_fan=False))
    assert torch.equal(layer.binary_weight().detach(), layer.symbols() * math.sqrt(2 / 100))


def test_scores_learn_by_the_same_rule_along_a_ramp():
    layer = linear(12, 5, PrunedBiHalf(0.9, by="score", ramp=0.1))
    gradient = torch.randn(5, 12, dtype=torch.float64)
    weight = layer.binary_weight()
    weight.backward(gradient)
    scores = layer.weight_quantizer.scores
    expected = gradient * layer.weight.detach() * scores.detach().sign()
    torch.testing.assert_close(scores.grad, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(layer.weight.grad, gradient * weight.detach().abs().max(), rtol=1e-12, atol=0)


def test_an_empty_filter_is_allowed_and_reported():
    layer = BinaryLinear(4, 3, weight_quantizer=PrunedBiHalf(2 / 3, by="magnitude"))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.1, 0.2, 0.1, 0.1], [2.0, 3.0, 2.0, 2.0], [0.2, 0.2, -0.3, 0.1]]))
    net = nn.Sequential(layer, nn.ReLU(), BinaryLinear(3, 2))
    assert empty_filters(net) == {"0": [0, 2]}
    output = layer(torch.randn(5, 4))
    assert torch.equal(output[:, 0], layer.bias[0].expand(5))
    output.sum().backward()
    assert layer.weight.grad[0].abs().sum() > 0


def test_transposed_convolutions_are_pruned_by_their_own_filters():
    layer = BinaryConvTranspose2d(4, 6, 3, groups=2, weight_quantizer=PrunedBiHalf(0.5, by="score", scope="filter"))
    assert layer.weight_quantizer.scores.shape == (6, 2, 3, 3)
    assert (layer.symbols() != 0).flatten(1).sum(dim=1).tolist() == [9] * 6
    layer(torch.randn(1, 4, 5, 5)).sum().backward()
    assert layer.weight_quantizer.scores.grad is not None


@pytest.mark.parametrize("by", ["rank", "magnitude", "score"])
def test_pruned_layers_cache_their_weight_in_eval_and_notice_changes(by):
    layer = BinaryLinear(10, 3, weight_quantizer=PrunedBiHalf(0.4, by=by)).eval()
    inputs = torch.randn(2, 10)
    assert torch.equal(layer(inputs), layer(inputs))
    moved = layer.weight if by != "score" else layer.weight_quantizer.scores
    with torch.no_grad():
        moved.copy_(moved.flip(1))
    expected = (layer.symbols() * layer.scale) @ inputs.T
    torch.testing.assert_close(layer(inputs), expected.T + layer.bias)


def test_repr_shows_the_settings_given_by_name():
    text = repr(quantizer_by_name("pruned-bihalf:sparsity=0.9,by=score,p_pos=0.25,train_latent=False"))
    assert text == "PrunedBiHalf(sparsity=0.9, p_pos=0.25, by='score', scope='layer', train_latent=False)"
    assert torch.equal(PrunedBiHalf(0.5).symbols(torch.eye(4)), prune_middle_ranks(torch.eye(4), 0.5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sparsity": 1.0}, r"must lie in \[0, 1\)"),
        ({"sparsity": None}, r"sparsity=None is not a share of zeros"),
        ({"sparsity": [0.5]}, r"sparsity=\[0.5\] is not a share of zeros"),
        ({"by": "size"}, "choose one of 'rank'"),
        ({"by": ["rank"]}, r"by=\['rank'\] is not known"),
        ({"scope": "layer"}, "does not go with by='rank': choose 'filter' or by='magnitude' or by='score'$"),
        ({"by": "score", "scope": "net"}, "does not go with by='score'"),
        ({"train_latent": False}, "would train nothing"),
        ({"p_pos": 1.5}, "is not a share"),
        ({"p_pos": None}, "p_pos=None is not a share"),
        ({"ramp": 2.0}, "is not a share of training"),
        ({"ramp": True}, "ramp=True is not a share of training"),
        ({"ramp": "ten"}, "ramp='ten' is not a share of training"),
        ({"ramp": None}, "ramp=None is not a share of training"),
    ],
)
def test_invalid_settings_raise(arguments, message):
    with pytest.raises(ValueError, match=message):
        PrunedBiHalf(**{"sparsity": 0.5, **arguments})
