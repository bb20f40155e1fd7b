"""Bop and BalancedBop: flip rule, exact counts, resuming, and learning on real images."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as nnf

from equalbits.data import load_dataset
from equalbits.functional.optimal_transport import transport_symbols
from equalbits.nn import BinaryConv2d, BinaryConvTranspose2d, BinaryLinear, Bits, binarize_, bop_parameters
from equalbits.optim import BalancedBop, Bop
from equalbits.optim.bop import balanced_flips


def step(optimizer, parameter, gradient):
    parameter.grad = torch.as_tensor(gradient, dtype=parameter.dtype)
    optimizer.step()
    return parameter.detach().tolist()


@pytest.mark.parametrize(
    ("bit", "gradient", "flips"),
    [
        (1.0, 0.75, True),
        (-1.0, -0.75, True),
        (1.0, -0.75, False),
        (-1.0, 0.75, False),
        (1.0, 0.5, False),  # b·m is exactly tau
        (-1.0, -0.5, False),
        (1.0, 0.0, False),
        (1.0, 0.5078125, True),
    ],
)
def test_a_bit_flips_when_the_average_gradient_exceeds_tau(bit, gradient, flips):
    parameter = nn.Parameter(torch.tensor([bit]))
    assert step(Bop([parameter], gamma=0.5, tau=0.25), parameter, [gradient]) == [-bit if flips else bit]


@settings(deadline=None)
@given(seed=st.integers(0, 999), gamma=st.floats(0.01, 1), tau=st.floats(0, 1))
def test_bop_is_the_published_rule(seed, gamma, tau):
    random = np.random.default_rng(seed)
    bits, momentum = np.where(random.random((3, 5)) < 0.5, -1.0, 1.0), np.zeros((3, 5))
    parameter = nn.Parameter(torch.tensor(bits))
    optimizer = Bop([parameter], gamma=gamma, tau=tau)
    for _ in range(8):
        gradient = random.normal(size=(3, 5))
        momentum = (1 - gamma) * momentum + gamma * gradient
        bits = np.where(bits * momentum > tau, -bits, bits)
        step(optimizer, parameter, gradient)
        assert np.array_equal(parameter.detach().numpy(), bits)


def slow_balanced(bits, momentum, tau):
    """The rule, one pair at a time: exchange the strongest candidate of each sign while both exist."""
    flips = np.zeros(bits.shape, dtype=bool)
    for f, (b, m) in enumerate(zip(bits, momentum, strict=True)):
        candidates = sorted((i for i in range(len(b)) if b[i] * m[i] > tau), key=lambda i: (-b[i] * m[i], i))
        rising, falling = [i for i in candidates if b[i] < 0], [i for i in candidates if b[i] > 0]
        for pair in zip(rising, falling, strict=False):
            flips[f, list(pair)] = True
    return flips


@settings(deadline=None)
@given(seed=st.integers(0, 9999), filters=st.integers(1, 4), connections=st.integers(1, 24), tau=st.floats(0, 1.5))
def test_balanced_flips_swap_the_strongest_pairs_and_break_ties_by_index(seed, filters, connections, tau):
    random = np.random.default_rng(seed)
    bits = np.where(random.random((filters, connections)) < 0.6, -1.0, 1.0)
    momentum = random.integers(-4, 5, (filters, connections)) / 2  # few values, many ties
    found = balanced_flips(torch.tensor(bits), torch.tensor(momentum), tau)
    assert np.array_equal(found.numpy(), slow_balanced(bits, momentum, tau))


@settings(deadline=None, max_examples=4)
@given(seed=st.integers(0, 9999), connections=st.integers(1, 40), gamma=st.sampled_from([1e-3, 0.1, 1.0]))
def test_balanced_bop_keeps_every_count_over_thousands_of_steps(seed, connections, gamma):
    generator = torch.Generator().manual_seed(seed)
    bits = nn.Parameter(torch.where(torch.rand(6, connections, generator=generator) < 0.5, -1.0, 1.0))
    counts = (bits > 0).sum(dim=1)
    optimizer = BalancedBop([bits], gamma=gamma, tau=1e-6)
    drift = torch.randn(6, connections, generator=generator)
    for number in range(1200):
        bits.grad = torch.randn(6, connections, generator=generator) + (drift if number % 200 < 100 else -drift)
        optimizer.step()
        assert torch.equal((bits > 0).sum(dim=1), counts)
    assert bits.detach().abs().eq(1).all()


def test_balanced_bop_reaches_the_best_bits_with_its_counts():
    torch.manual_seed(0)
    wanted = torch.randn(5, 64)
    bits = nn.Parameter(torch.ones(5, 64))
    with torch.no_grad():
        bits[:, :32] = -1
    optimizer = BalancedBop([bits], gamma=0.1, tau=0.0)
    for _ in range(50):
        step(optimizer, bits, wanted.quantile(0.5, dim=1, keepdim=True) - wanted)  # pulls each filter's upper half up
    assert torch.equal(bits.detach(), transport_symbols(wanted))


def test_balanced_bop_keeps_the_filters_of_transposed_convolutions():
    layer = BinaryConvTranspose2d(6, 4, 3, groups=2, weight_quantizer=Bits(p_pos=0.25))
    bits, _ = bop_parameters(nn.Sequential(layer))
    assert bits[0]["transposed_groups"] == 2
    optimizer = BalancedBop(bits, gamma=0.5, tau=0.0)
    before = layer.symbols()
    for _ in range(20):
        layer.weight.grad = torch.randn_like(layer.weight)
        optimizer.step()
        assert (layer.symbols() == 1).flatten(1).sum(dim=1).tolist() == [7] * 4
    assert not torch.equal(layer.symbols(), before)


@pytest.mark.parametrize("kind", [Bop, BalancedBop])
def test_a_resumed_run_equals_an_uninterrupted_one(kind):
    torch.manual_seed(0)
    start = torch.where(torch.rand(4, 30) < 0.5, -1.0, 1.0)
    gradients = torch.randn(20, 4, 30)
    whole = nn.Parameter(start.clone())
    optimizer = kind([whole], gamma=0.1, tau=0.02)
    for number, gradient in enumerate(gradients):
        if number == 10:
            saved, bits = copy.deepcopy(optimizer.state_dict()), whole.detach().clone()
        step(optimizer, whole, gradient)
    resumed = nn.Parameter(bits)
    other = kind([resumed], gamma=0.5, tau=1.0)
    other.load_state_dict(saved)
    for gradient in gradients[10:]:
        step(other, resumed, gradient)
    assert torch.equal(whole, resumed)


def test_a_closure_returns_its_loss_and_parameters_without_gradient_stay():
    bits, still = (nn.Parameter(torch.ones(3)) for _ in "ab")
    optimizer = Bop([bits, still], gamma=1.0, tau=0.0)

    def closure():
        loss = bits.sum()
        loss.backward()
        return loss.detach()

    assert float(optimizer.step(closure)) == 3.0
    assert bits.tolist() == [-1.0] * 3
    assert still.tolist() == [1.0] * 3


def test_a_small_gamma_does_not_underflow_in_half_precision():
    bits = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = Bop([bits], gamma=1e-4, tau=0.05)
    for _ in range(700):
        bits.grad = torch.ones_like(bits)
        optimizer.step()
    assert bits.tolist() == [-1.0, -1.0]


@pytest.mark.parametrize("kind", [Bop, BalancedBop])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_loaded_average_keeps_its_dtype(kind, dtype):
    bits, others = (nn.Parameter(torch.ones(2, 3, dtype=dtype)) for _ in "ab")
    optimizer = kind([bits], gamma=1e-4, tau=1.0)
    step(optimizer, bits, [[0.1, 0.2, 0.3]] * 2)
    loaded = kind([others], tau=1.0)
    loaded.load_state_dict(optimizer.state_dict())
    saved, found = optimizer.state[bits]["momentum"], loaded.state[others]["momentum"]
    assert found.dtype == torch.promote_types(dtype, torch.float32)
    assert torch.equal(found, saved)
    step(loaded, others, [[1.0, 1.0, 1.0]] * 2)
    assert not torch.equal(found, saved)  # a copy, not the saved tensor itself


@pytest.mark.parametrize("rate", [1.0, 0.2, torch.tensor(0.2)])
def test_gamma_follows_the_scheduled_learning_rate(rate):
    bits = nn.Parameter(torch.ones(1))
    optimizer = Bop([bits], gamma=0.5, tau=1.0, lr=rate)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    expected = 0.0
    for gamma in (0.5, 0.25, 0.125):
        step(optimizer, bits, [0.75])
        scheduler.step()
        expected = (1 - gamma) * expected + gamma * 0.75
        assert float(optimizer.state[bits]["momentum"]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gamma": 0.0}, "gamma=0.0"),
        ({"gamma": 2.0}, "usual"),
        ({"tau": -1.0}, "at least 0"),
        ({"lr": 0.0}, "lr=0.0.*above 0"),
    ],
)
def test_invalid_settings_raise(arguments, message):
    bits = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=message):
        Bop([bits], **arguments)
    optimizer = Bop([nn.Parameter(torch.ones(2))])
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": [bits], **arguments})
    assert len(optimizer.param_groups) == 1


def test_values_other_than_plus_and_minus_one_raise():
    with pytest.raises(ValueError, match=r"other than -1 and \+1"):
        Bop([nn.Parameter(torch.tensor([1.0, 0.5]))])
    with pytest.raises(ValueError, match="no bits to optimize"):
        bop_parameters(nn.Linear(3, 2))


@pytest.mark.parametrize("p_pos", [None, 0.5])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_weights_do_not_become_bits(p_pos, value):
    net = nn.Sequential(nn.Linear(4, 3))
    net[0].weight.data[0, 0] = value
    with pytest.raises(ValueError, match=f"latents hold {value}"):
        binarize_(net, Bits(p_pos), where="0")
    layer = BinaryLinear(4, 3, weight_quantizer=Bits(p_pos))
    layer.load_state_dict(net[0].state_dict())
    with pytest.raises(ValueError, match=f"latents hold {value}"):
        bop_parameters(layer)


def test_bits_shared_by_two_layers_are_returned_once():
    net = nn.Sequential(*(BinaryLinear(8, 8, weight_quantizer=Bits(p_pos=0.5)) for _ in "ab"))
    net[1].weight = net[0].weight
    bits, reals = bop_parameters(net)
    assert [len(group["params"]) for group in bits] == [1]
    assert len(reals) == 2
    optimizer = BalancedBop(bits)
    net(torch.randn(3, 8)).sum().backward()
    optimizer.step()
    assert (net[0].weight > 0).sum(dim=1).tolist() == [4] * 8


def test_bits_replace_the_latents():
    layer = BinaryConv2d(3, 8, 3, weight_quantizer=Bits(p_pos=0.5))
    assert layer.weight.detach().abs().eq(1).all()
    assert (layer.weight > 0).flatten(1).sum(dim=1).tolist() == [14] * 8
    assert torch.equal(layer.symbols(), layer.weight.detach())
    gradient = torch.randn_like(layer.weight)
    layer.binary_weight().backward(gradient)
    assert torch.equal(layer.weight.grad, gradient * layer.scale)
    real = nn.Linear(5, 4)
    signs = torch.where(real.weight >= 0, 1.0, -1.0)
    net = nn.Sequential(real)
    binarize_(net, Bits(), where="0")
    assert torch.equal(net[0].weight, signs)


def test_parameters_split_into_bits_and_reals_even_after_a_real_checkpoint():
    net = nn.Sequential(BinaryLinear(9, 4, weight_quantizer=Bits(p_pos=1 / 3)), nn.Linear(4, 2))
    net.load_state_dict(nn.Sequential(nn.Linear(9, 4), nn.Linear(4, 2)).state_dict())
    assert not net[0].weight.detach().abs().eq(1).all()
    bits, reals = bop_parameters(net)
    assert (net[0].weight > 0).sum(dim=1).tolist() == [3] * 4
    assert bits[0]["params"] == [net[0].weight]
    assert [tuple(parameter.shape) for parameter in reals] == [(4,), (2, 4), (2,)]


@pytest.mark.parametrize(("kind", "quantizer"), [(Bop, Bits()), (BalancedBop, Bits(p_pos=0.5))])
def test_a_small_network_learns_fashion_mnist_without_latents(kind, quantizer):
    torch.manual_seed(0)
    train, test = (load_dataset("fashion", split=split) for split in ("train", "test"))
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
        BinaryConv2d(16, 32, 3, stride=2, bias=False, weight_quantizer=quantizer), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Flatten(), nn.LazyLinear(10),
    )  # fmt: skip
    images = train.images[:2048].float().div(255)
    targets = train.labels[:2048].long()
    net(images[:2])
    bits, reals = bop_parameters(net)
    optimizers = [kind(bits, gamma=1e-2, tau=1e-5), torch.optim.Adam(reals, lr=0.01)]
    before = net[3].symbols()
    for _ in range(4):
        for batch in torch.randperm(2048).split(128):
            net.zero_grad()
            nnf.cross_entropy(net(images[batch]), targets[batch]).backward()
            for optimizer in optimizers:
                optimizer.step()
    assert not torch.equal(net[3].symbols(), before)
    if quantizer.p_pos:
        assert (net[3].symbols() == 1).flatten(1).sum(dim=1).tolist() == [72] * 32
    with torch.no_grad():
        right = net.eval()(test.images[:1000].float().div(255)).argmax(dim=1) == test.labels[:1000]
    assert right.double().mean() > 0.6  # chance is 0.1
