"""Every method inside a layer: values, learned parameters, and one contract for all."""

import copy
import math

import pytest
import torch
from torch import nn

from equalbits import functional as F
from equalbits.nn import (
    RBNN,
    XNOR,
    ABCNet,
    AdaBin,
    BinaryConnect,
    BinaryConv2d,
    BinaryConvTranspose2d,
    BinaryLinear,
    BiReal,
    BNNPlus,
    DoReFa,
    LeastSquares,
    ReCU,
    XNORPlusPlus,
    at_epoch_,
    binarize_,
    list_quantizers,
    quantizer_by_name,
    set_progress,
)
from equalbits.nn.methods.abcnet import abcnet, abcnet_bases
from equalbits.nn.methods.adabin import adabin
from equalbits.nn.methods.bireal import bireal
from equalbits.nn.methods.dorefa import dorefa
from equalbits.nn.methods.least_squares import least_squares
from equalbits.nn.methods.rbnn import rotate
from equalbits.nn.methods.recu import recu
from equalbits.nn.methods.xnor import xnor


def conv(quantizer, **kwargs):
    torch.manual_seed(0)
    return BinaryConv2d(4, 6, 3, weight_quantizer=quantizer, dtype=torch.float64, **kwargs)


@pytest.mark.parametrize(
    ("quantizer", "function"),
    [
        (XNOR(), xnor),
        (XNOR(centre=True), lambda w: xnor(w, centre=True)),
        (DoReFa(), dorefa),
        (BiReal(), bireal),
        (LeastSquares(), least_squares),
        (ABCNet(), abcnet),
        (ABCNet(3), lambda w: abcnet(w, 3)),
        (AdaBin(), lambda w: adabin(w, torch.tensor(1e-3).double())),
    ],
)
def test_a_layer_multiplies_with_the_values_of_the_method_and_scale_one(quantizer, function):
    layer, gradient = conv(quantizer), torch.randn(6, 4, 3, 3, dtype=torch.float64)
    latents = layer.weight.detach().clone().requires_grad_()
    expected = function(latents)
    expected.backward(gradient)
    layer.binary_weight().backward(gradient)
    torch.testing.assert_close(layer.binary_weight(), expected)
    torch.testing.assert_close(layer.weight.grad, latents.grad)
    assert float(layer.scale) == 1.0


def test_binaryconnect_uses_the_scale_of_the_layer_and_no_gradient_beyond_one():
    layer = conv(BinaryConnect())
    with torch.no_grad():
        layer.weight[0] = 1.5
        layer.weight[1] = -1.0
    layer.binary_weight().sum().backward()
    assert torch.equal(layer.binary_weight().detach(), F.sign_symbols(layer.weight) * layer.scale)
    assert layer.weight.grad[0].abs().max() == 0
    assert layer.weight.grad[1:].min() == layer.scale == math.sqrt(2 / 36)


def test_stochastic_binaryconnect_draws_in_training_and_takes_the_sign_in_eval():
    layer = conv(BinaryConnect(stochastic=True))
    first, second = (layer.binary_weight().detach() for _ in range(2))
    assert not torch.equal(first, second)
    assert first.abs().unique().numel() == 1
    assert torch.equal(layer.eval().symbols(), F.sign_symbols(layer.weight))


def test_xnor_plus_plus_learns_a_gain_for_each_filter():
    layer, gradient = conv(XNORPlusPlus()), torch.randn(6, 4, 3, 3, dtype=torch.float64)
    gains = layer.weight_quantizer.gains
    assert gains.tolist() == [1.0] * 6
    with torch.no_grad():
        gains.copy_(torch.arange(1, 7))
    layer.binary_weight().backward(gradient)
    symbols = layer.symbols()
    torch.testing.assert_close(layer.binary_weight(), symbols * gains.view(-1, 1, 1, 1))
    torch.testing.assert_close(gains.grad, (gradient * symbols).sum(dim=(1, 2, 3)))
    torch.testing.assert_close(layer.weight.grad, gradient * gains.detach().view(-1, 1, 1, 1))


def test_bnn_plus_starts_its_gains_at_the_mean_magnitude_and_pulls_weights_towards_them():
    layer = conv(BNNPlus(2.0))
    gains = layer.weight_quantizer.gains
    torch.testing.assert_close(gains.detach(), layer.weight.detach().abs().mean(dim=(1, 2, 3)))
    expected = (gains.view(-1, 1, 1, 1) - layer.weight.abs()).abs().sum()
    torch.testing.assert_close(layer.weight_quantizer.penalty(layer.weight), 1e-6 * expected)
    layer.binary_weight().sum().backward()
    slope = 2 * (2 - 2 * layer.weight * (layer.weight).tanh()) / (1 + (2 * layer.weight).cosh())
    torch.testing.assert_close(layer.weight.grad, (gains.view(-1, 1, 1, 1) * slope).detach())


def test_recu_follows_the_progress_and_learns_its_gains():
    layer = conv(ReCU())
    grads = []
    for progress in (0.0, 1.0):
        set_progress(layer, progress)
        layer.zero_grad()
        layer.binary_weight().sum().backward()
        grads.append(layer.weight.grad.clone())
        tau = 0.85 if progress == 0 else 0.99
        values = recu(layer.weight.detach(), torch.tensor(tau).double())
        gains = layer.weight_quantizer.gains.view(-1, 1, 1, 1)
        torch.testing.assert_close(layer.binary_weight(), values * gains)
    assert not torch.allclose(*grads)


@pytest.mark.parametrize("quantizer", [AdaBin(), RBNN()])
def test_the_slope_sharpens_with_the_progress(quantizer):
    layer, grads = conv(quantizer), []
    for progress in (0.0, 1.0):
        set_progress(layer, progress)
        layer.zero_grad()
        layer.binary_weight().square().sum().backward()
        grads.append(layer.weight.grad.clone())
    assert not torch.allclose(*grads)


def test_the_symbols_of_abc_net_are_the_base_with_the_largest_weight():
    layer = conv(ABCNet(3))
    found = abcnet_bases(layer.weight.detach(), 3)
    for number, (bases, weights) in enumerate(zip(found.symbols, found.weights, strict=True)):
        assert torch.equal(layer.symbols()[number].flatten(), bases[:, weights.abs().argmax()])
    single = conv(ABCNet())
    assert torch.equal(single.symbols(), F.centred_symbols(single.weight))


def test_rbnn_rotates_filters_learns_angles_and_fits_its_rotation_at_an_epoch():
    layer = conv(RBNN())
    quantizer = layer.weight_quantizer
    assert quantizer.beta.unique().numel() == 6
    assert 0 <= quantizer.beta.min() < quantizer.beta.max() <= math.pi / 2
    torch.testing.assert_close(quantizer.gains.detach(), layer.weight.detach().abs().mean(dim=(1, 2, 3)))
    layer.binary_weight().square().sum().backward()
    for parameter in (layer.weight, quantizer.beta, quantizer.gains):
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().sum() > 0

    def distance():
        rotated = rotate(F.standardize(layer.weight.detach()), quantizer.rotation())
        return float((rotated - rotated.sign()).square().sum())

    with torch.no_grad():
        layer.weight.copy_(torch.randn_like(layer.weight))
    before = distance()
    at_epoch_(nn.Sequential(layer))
    assert distance() < before
    identity = torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(quantizer.left @ quantizer.left.T, identity, atol=1e-10, rtol=0)


def test_rbnn_without_rotation_is_the_centred_sign():
    layer = conv(RBNN())
    with torch.no_grad():
        layer.weight_quantizer.beta.zero_()
    assert torch.equal(layer.symbols(), F.centred_symbols(layer.weight))


@pytest.mark.parametrize("name", list_quantizers())
def test_every_method_trains_saves_copies_and_gives_the_same_outputs_in_eval(name):
    torch.manual_seed(0)
    layer = BinaryConv2d(4, 6, 3, weight_quantizer=quantizer_by_name(name))
    inputs = torch.randn(2, 4, 5, 5)
    assert set(layer.symbols().unique().tolist()) <= {-1.0, 0.0, 1.0}
    outputs = layer(inputs)
    outputs.square().sum().backward()
    learned = [p for p in layer.parameters() if p.grad is not None]
    assert learned
    assert all(p.grad.isfinite().all() for p in learned)
    torch.optim.SGD(learned, lr=1e-3).step()
    expected = layer(inputs).detach()
    torch.testing.assert_close(layer.eval()(inputs).detach(), expected)
    for other in (
        copy.deepcopy(layer),
        BinaryConv2d(4, 6, 3, weight_quantizer=quantizer_by_name(name)),
    ):
        other.load_state_dict(layer.state_dict())
        torch.testing.assert_close(other.eval()(inputs), layer(inputs))


@pytest.mark.parametrize("name", list_quantizers())
def test_every_method_works_in_half_precision_in_transposed_layers_and_in_binarize(name):
    half = BinaryLinear(12, 5, weight_quantizer=quantizer_by_name(name), dtype=torch.bfloat16)
    half(torch.randn(3, 12, dtype=torch.bfloat16)).sum().backward()
    transposed = BinaryConvTranspose2d(4, 6, 3, groups=2, weight_quantizer=quantizer_by_name(name))
    transposed(torch.randn(1, 4, 4, 4)).sum().backward()
    assert transposed.symbols().shape == (6, 2, 3, 3)
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    assert binarize_(net, quantizer_by_name(name)).replaced == ("1",)
    net(torch.randn(3, 6)).sum().backward()


@pytest.mark.parametrize("name", [*list_quantizers(), "pruned-bihalf:by=score", "pruned-bihalf:ramp=0.2"])
def test_every_method_exports_and_trains_under_vmap(name):
    torch._dynamo.reset()  # torch 2.6 counts the exports of a process
    torch.manual_seed(0)
    layers = [BinaryConv2d(4, 6, 3, weight_quantizer=quantizer_by_name(name)) for _ in range(2)]
    inputs = torch.randn(2, 4, 5, 5)
    exported = torch.export.export(nn.Sequential(copy.deepcopy(layers[0])).eval(), (inputs,)).module()
    torch.testing.assert_close(exported(inputs), layers[0](inputs))

    def loss(parameters, buffers):
        return torch.func.functional_call(layers[0], (parameters, buffers), (inputs,)).square().sum()

    stacked = torch.func.vmap(torch.func.grad(loss))(*torch.func.stack_module_state(layers))
    for number, layer in enumerate(layers):
        layer(inputs).square().sum().backward()
        for key, parameter in layer.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(stacked[key][number], parameter.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", [n for n in list_quantizers() if n not in ("adabin", "abc-net")])
def test_the_binary_weight_has_the_signs_of_the_symbols(name):
    torch.manual_seed(1)
    layer = BinaryLinear(20, 6, weight_quantizer=quantizer_by_name(name))
    assert torch.equal(layer.binary_weight().detach().sign(), layer.symbols())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ABCNet(0), "at least 1"),
        (lambda: BNNPlus(0.0), "above 0"),
        (lambda: AdaBin(t_min=2.0, t_max=1.0), "must grow"),
        (lambda: RBNN(t_min=0.0), "must grow"),
        (lambda: ReCU(tau_min=0.4), "upper tail"),
        (lambda: ReCU(tau_max=1.5), "upper tail"),
        (lambda: XNORPlusPlus()(torch.randn(2, 3)), "a layer makes them"),
    ],
)
def test_invalid_settings_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_schedules_accept_equal_ends_and_their_limits():
    for quantizer in (AdaBin(t_min=2.0, t_max=2.0), RBNN(t_min=2.0, t_max=2.0), ReCU(tau_min=1.0, tau_max=1.0)):
        (layer := conv(quantizer)).binary_weight().sum().backward()
        assert layer.weight.grad.isfinite().all()


@pytest.mark.parametrize(
    ("quantizer", "text"),
    [
        (BinaryConnect(stochastic=True), "BinaryConnect(stochastic=True)"),
        (XNOR(centre=True), "XNOR(centre=True)"),
        (ABCNet(3), "ABCNet(bases=3)"),
        (BNNPlus(), "BNNPlus(beta=5.0)"),
        (AdaBin(), "AdaBin()"),
        (ReCU(tau_max=1.0), "ReCU(tau_max=1.0)"),
        (RBNN(t_min=0.5), "RBNN(t_min=0.5)"),
    ],
)
def test_repr_shows_the_settings(quantizer, text):
    assert repr(quantizer) == text


LEARNED = ("bnn-plus", "rbnn", "recu", "xnor-plus-plus", "mpt", "pruned-bihalf:by=score")
RANKED_TOGETHER = ("pruned-sign:scope=global", "mpt:scope=global", "pruned-bihalf:by=magnitude,scope=global")


@pytest.mark.parametrize("name", [*LEARNED, *RANKED_TOGETHER])
def test_a_method_without_a_layer_raises_until_it_is_fitted(name):
    with pytest.raises(ValueError, match=r"a layer makes them, or call fit_\(latents\) first"):
        quantizer_by_name(name)(torch.randn(2, 4))
