"""Binary weights do not depend on autocast, for every method, to the bit."""

import copy

import pytest
import torch

from equalbits.functional import to_bit_planes
from equalbits.functional.precision import autocast_disabled
from equalbits.nn import BinaryConv2d, list_quantizers, quantizer_by_name
from equalbits.nn.methods.rbnn import Rotation, rotate

_MORE = ("abc-net:bases=2", "abc-net:bases=5", "pruned-bihalf:by=score", "pruned-bihalf:by=magnitude")
each_method = pytest.mark.parametrize("name", [*list_quantizers(), *_MORE])
each_half = pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)


def layer_of(name):
    torch.manual_seed(0)
    return BinaryConv2d(32, 16, 3, bias=False, weight_quantizer=quantizer_by_name(name))


@pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])
@each_half
@each_method
def test_the_binary_weight_does_not_depend_on_autocast(name, half, training):
    layer = layer_of(name).train(training)
    expected = copy.deepcopy(layer).binary_weight()
    with torch.autocast("cpu", half):
        inside, symbols = layer.binary_weight(), layer.symbols()
    assert inside.dtype == torch.float32
    assert torch.equal(inside, expected)
    assert torch.equal(symbols, copy.deepcopy(layer).symbols())


@each_method
def test_a_weight_cached_under_autocast_is_valid_without_it(name):
    layer = layer_of(name).eval()
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            layer.binary_weight()
        assert torch.equal(layer.binary_weight(), copy.deepcopy(layer).binary_weight())


@pytest.mark.parametrize("name", ["rbnn", "abc-net:bases=3"])
def test_the_gradient_does_not_depend_on_autocast(name):
    gradients = []
    for enabled in (False, True):
        layer = layer_of(name)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            weight = layer.binary_weight()
        (weight * torch.linspace(-1, 1, weight.numel()).view_as(weight)).sum().backward()
        gradients.append({key: value.grad for key, value in layer.named_parameters() if value.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    assert all(torch.equal(gradients[1][key], gradient) for key, gradient in gradients[0].items())


@pytest.mark.parametrize("name", ["rbnn", "abc-net:bases=3"])
def test_the_compiled_binary_weight_does_not_depend_on_autocast(name):
    torch._dynamo.reset()
    layer = layer_of(name)
    compiled = torch.compile(layer.binary_weight, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(compiled(), layer_of(name).binary_weight())
    torch._dynamo.reset()


def test_fitting_a_rotation_does_not_depend_on_autocast():
    layer = layer_of("rbnn")
    other = copy.deepcopy(layer)
    other.weight_quantizer.at_epoch_(other.weight.detach())
    with torch.autocast("cpu", torch.bfloat16):
        layer.weight_quantizer.at_epoch_(layer.weight.detach())
    assert torch.equal(layer.weight_quantizer.left, other.weight_quantizer.left)
    assert torch.equal(layer.weight_quantizer.right, other.weight_quantizer.right)


@each_half
def test_rotations_in_half_precision_are_computed_in_float32_and_rounded_once(half):
    torch.manual_seed(0)
    rows = torch.randn(8, 64).to(half)
    rotation = Rotation(*(torch.linalg.qr(torch.randn(8, 8)).Q.to(half) for _ in range(2)))
    precise = rotate(rows.float(), Rotation(*(matrix.float() for matrix in rotation)))
    assert torch.equal(rotate(rows, rotation), precise.to(half))


@each_half
@each_method
def test_a_wide_layer_in_half_precision_matches_the_one_in_float32(name, half):
    torch.manual_seed(0)
    latents = torch.empty(8, 16400).uniform_(-1, 1).div(16400**0.5).to(half)  # float16 cannot represent their squares
    precise = quantizer_by_name(name)
    precise.fit_(latents.double())
    gradient, results = torch.randn(latents.shape).to(half), []
    for quantizer, dtype in ((precise.double(), torch.float64), (copy.deepcopy(precise).to(half), half)):
        inputs = latents.to(dtype, copy=True).requires_grad_()
        values = quantizer(inputs)
        assert values.dtype == dtype
        values.backward(gradient.to(dtype))
        gradients = [each.grad for each in (inputs, *quantizer.parameters()) if each.grad is not None]
        results.append([values.detach(), *(each for each in gradients if each.shape == latents.shape)])
    for expected, found in zip(*results, strict=True):
        assert (found.double() - expected).abs().mean() < 0.05 * expected.abs().mean()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", sorted(set(list_quantizers()) - {"abc-net", "bits"}))
def test_the_weight_decomposes_into_its_symbols_in_every_dtype(name, dtype):
    for middle, spread in ((1, 0.01), (-3, 1), (0, 1e-6)):
        layer = BinaryConv2d(32, 16, 3, bias=False, weight_quantizer=quantizer_by_name(name)).to(dtype)
        layer.weight.data.normal_(0, 1).mul_(spread).add_(middle)
        values, symbols = layer.binary_weight().detach(), layer.symbols()
        assert symbols.dtype == dtype
        if name in ("adabin", "zero-mean"):  # two values per filter that are not ± one number
            assert to_bit_planes(values, symbols) is not None
        else:
            assert torch.equal(values.sign(), symbols)


def test_autocast_disabled_accepts_devices_without_autocast():
    with torch.autocast("cpu", torch.bfloat16), autocast_disabled(torch.device("meta")):
        assert torch.is_autocast_enabled("cpu")
