"""Binary layers are torch's layers with other weights: same arguments, outputs and checkpoints."""

import copy
import inspect
import math
import pickle
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from equalbits import functional as F
from equalbits.nn import (
    BiHalf,
    BinaryConv1d,
    BinaryConv2d,
    BinaryConvTranspose2d,
    BinaryLayer,
    BinaryLinear,
    IRNet,
    Sign,
    SignActivation,
)
from equalbits.nn.rank_ahead import ACTIVE_RANKERS

PAIRS = [
    (BinaryLinear, nn.Linear),
    (BinaryConv1d, nn.Conv1d),
    (BinaryConv2d, nn.Conv2d),
    (BinaryConvTranspose2d, nn.ConvTranspose2d),
]
SMALL = [  # class, torch's class, arguments, shape of an input
    (BinaryLinear, nn.Linear, {"in_features": 7, "out_features": 5}, (3, 7)),
    (BinaryConv1d, nn.Conv1d, {"in_channels": 4, "out_channels": 6, "kernel_size": 3, "groups": 2}, (2, 4, 9)),
    (BinaryConv2d, nn.Conv2d, {"in_channels": 4, "out_channels": 6, "kernel_size": 3, "groups": 2}, (2, 4, 8, 8)),
    (
        BinaryConvTranspose2d,
        nn.ConvTranspose2d,
        {"in_channels": 4, "out_channels": 6, "kernel_size": 3, "stride": 2, "groups": 2},
        (2, 4, 5, 5),
    ),
]
each_small_layer = pytest.mark.parametrize(("binary", "real", "arguments", "shape"), SMALL)


def filters_of(layer: nn.Module, weight: torch.Tensor) -> list[torch.Tensor]:
    """The weights behind each output channel, one by one, as torch's documentation places them."""
    if not isinstance(layer, nn.ConvTranspose2d):
        return [row.flatten() for row in weight]
    inputs, outputs = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    groups = (divmod(channel, outputs) for channel in range(layer.out_channels))
    return [weight[g * inputs : (g + 1) * inputs, channel].flatten() for g, channel in groups]


def real_twin(layer: BinaryLayer, real: type[nn.Module], arguments: dict) -> nn.Module:
    """Torch's layer with ``scale · symbols`` as weight; symbols computed slowly, filter by filter."""
    twin = real(**arguments)
    p_pos = layer.weight_quantizer.p_pos
    with torch.no_grad():
        twin.load_state_dict({name: value for name, value in layer.state_dict().items() if name in ("weight", "bias")})
        for latents in filters_of(twin, twin.weight):
            assert latents.numel() == math.prod(layer.symbols().shape[1:])
        ranked = torch.stack([F.transport_by_sorting(latents, p_pos) for latents in filters_of(twin, layer.weight)])
        twin.weight.copy_(layer.from_filters(ranked.view(layer.symbols().shape)) * layer.scale)
    return twin


def assert_same(layer: BinaryLayer, twin: nn.Module, inputs: torch.Tensor, *more: object) -> None:
    """Same output and gradients to the last bit; the latents' gradient is the weight's times the scale."""
    ours, theirs = inputs.clone().requires_grad_(), inputs.clone().requires_grad_()
    answer, expected = layer(ours, *more), twin(theirs, *more)
    assert torch.equal(answer, expected)
    direction = torch.randn_like(answer)
    answer.backward(direction)
    expected.backward(direction)
    assert torch.equal(ours.grad, theirs.grad)
    assert torch.equal(layer.weight.grad, twin.weight.grad * layer.scale)
    if layer.bias is not None:
        assert torch.equal(layer.bias.grad, twin.bias.grad)


@pytest.mark.parametrize(("binary", "real"), PAIRS)
def test_the_signature_is_torchs_plus_three_keywords(binary, real):
    ours = list(inspect.signature(binary).parameters.values())
    theirs = list(inspect.signature(real).parameters.values())
    assert [(p.name, p.default, p.kind) for p in ours[:-3]] == [(p.name, p.default, p.kind) for p in theirs]
    assert [p.name for p in ours[-3:]] == ["weight_quantizer", "input_quantizer", "init"]
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in ours[-3:])
    assert list(inspect.signature(binary.forward).parameters) == list(inspect.signature(real.forward).parameters)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@settings(max_examples=60, deadline=None)
@given(
    groups=st.integers(1, 3),
    inputs=st.integers(1, 3),
    outputs=st.integers(1, 3),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.integers(1, 3),
    padding=st.one_of(st.tuples(st.integers(0, 2), st.integers(0, 2)), st.just("same"), st.just("valid")),
    dilation=st.integers(1, 2),
    bias=st.booleans(),
    padding_mode=st.sampled_from(["zeros", "reflect", "replicate", "circular"]),
    p_pos=st.sampled_from([0.5, 0.25, 0.9]),
)
def test_a_convolution_equals_torchs_with_symbols_as_weights(
    groups, inputs, outputs, kernel, stride, padding, dilation, bias, padding_mode, p_pos
):
    arguments = {
        "in_channels": groups * inputs,
        "out_channels": groups * outputs,
        "kernel_size": kernel,
        "stride": 1 if padding == "same" else stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "bias": bias,
        "padding_mode": padding_mode,
    }
    layer = BinaryConv2d(**arguments, weight_quantizer=BiHalf(p_pos))
    twin = real_twin(layer, nn.Conv2d, arguments)
    assert_same(layer, twin, torch.randn(2, groups * inputs, 7, 6))


@pytest.mark.parametrize("padding_mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_one_dimensional_convolution_equals_torchs(groups, padding_mode):
    arguments = {"in_channels": 4, "out_channels": 8, "kernel_size": 3, "stride": 2, "padding": 1, "dilation": 2}
    arguments |= {"groups": groups, "padding_mode": padding_mode}
    layer = BinaryConv1d(**arguments)
    assert_same(layer, real_twin(layer, nn.Conv1d, arguments), torch.randn(3, 4, 11))


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_equals_torchs(shape, bias):
    arguments = {"in_features": 5, "out_features": 4, "bias": bias}
    layer = BinaryLinear(**arguments, weight_quantizer=BiHalf(0.4))
    assert_same(layer, real_twin(layer, nn.Linear, arguments), torch.randn(shape))


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("output_size", [None, [12, 11]])
def test_a_transposed_convolution_equals_torchs(groups, output_size):
    arguments = {"in_channels": 6, "out_channels": 12, "kernel_size": (3, 2), "stride": 2, "padding": (1, 0)}
    arguments |= {"groups": groups, "dilation": (1, 2)}
    layer = BinaryConvTranspose2d(**arguments)
    inputs = torch.randn(2, 6, 6, 5)
    assert_same(layer, real_twin(layer, nn.ConvTranspose2d, arguments), inputs, output_size)
    if output_size is not None:
        assert list(layer(inputs, output_size).shape[2:]) == output_size


@settings(max_examples=40, deadline=None)
@given(groups=st.integers(1, 4), inputs=st.integers(1, 3), outputs=st.integers(1, 3), p_pos=st.floats(0, 1))
def test_every_filter_has_exactly_the_requested_share_in_any_layout(groups, inputs, outputs, p_pos):
    sizes = {"in_channels": groups * inputs, "out_channels": groups * outputs, "kernel_size": 3, "groups": groups}
    for kind in (BinaryConv1d, BinaryConv2d, BinaryConvTranspose2d):
        layer = kind(**sizes, weight_quantizer=BiHalf(p_pos))
        for row in filters_of(layer, layer.binary_weight()):
            assert int((row > 0).sum()) == F.positive_count(row.numel(), p_pos)
            assert torch.equal(row.abs(), layer.scale.expand(row.shape))


def test_to_filters_and_from_filters_are_inverse_for_a_transposed_layer():
    layer = BinaryConvTranspose2d(6, 9, (2, 3), groups=3)
    filters = layer.to_filters(layer.weight)
    assert filters.shape == (9, 2, 2, 3)
    assert torch.equal(layer.from_filters(filters), layer.weight)
    assert all(torch.equal(a.flatten(), b) for a, b in zip(filters, filters_of(layer, layer.weight), strict=True))


@each_small_layer
def test_latents_are_initialized_bit_for_bit_as_in_torchs_layer(binary, real, arguments, shape):
    torch.manual_seed(3)
    expected = real(**arguments)
    torch.manual_seed(3)
    layer = binary(**arguments)
    assert torch.equal(layer.weight, expected.weight)
    assert torch.equal(layer.bias, expected.bias)
    after = torch.rand(())
    torch.manual_seed(3)
    real(**arguments)
    assert torch.equal(after, torch.rand(())), "the layer draws no random number of its own"


def test_kaiming_latents_have_the_variance_two_over_connections():
    torch.manual_seed(0)
    for layer, connections in (
        (BinaryConv2d(32, 64, 3, init="kaiming"), 288),
        (BinaryConvTranspose2d(32, 64, 3, groups=2, init="kaiming"), 144),
        (BinaryLinear(200, 100, init="kaiming"), 200),
    ):
        assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / connections), rel=0.03)
        assert layer.weight.mean().item() == pytest.approx(0, abs=0.01)


@each_small_layer
def test_the_scale_is_a_buffer_that_is_saved_and_cast(binary, real, arguments, shape):
    layer = binary(**arguments)
    connections = filters_of(layer, layer.weight)[0].numel()
    assert layer.scale.item() == pytest.approx(math.sqrt(2 / connections))
    assert dict(layer.named_buffers())["scale"] is layer.scale
    assert set(layer.state_dict()) == {"weight", "bias", "scale"}
    assert layer.to(torch.float64).scale.dtype == torch.float64
    assert not layer.scale.requires_grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@each_small_layer
def test_a_cast_layer_works_in_its_new_dtype(binary, real, arguments, shape, dtype):
    layer = binary(**arguments, input_quantizer=SignActivation("decaying")).to(dtype)
    inputs = torch.randn(shape, dtype=dtype, requires_grad=True)
    answer = layer(inputs)
    answer.float().sum().backward()
    assert answer.dtype == layer.weight.grad.dtype == inputs.grad.dtype == dtype
    assert torch.equal((layer.symbols() > 0).flatten(1).sum(1), (binary(**arguments).symbols() > 0).flatten(1).sum(1))


@each_small_layer
def test_a_layer_can_be_created_in_another_dtype(binary, real, arguments, shape):
    layer = binary(
        **arguments, dtype=torch.float64, weight_quantizer=IRNet(), input_quantizer=SignActivation("decaying")
    )
    assert {tensor.dtype for tensor in layer.state_dict().values()} == {torch.float64}
    assert layer(torch.randn(shape, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize("weight_quantizer", [BiHalf(0.3), Sign(), IRNet()])
@each_small_layer
def test_the_checkpoint_of_a_real_layer_loads_strictly(binary, real, arguments, shape, weight_quantizer):
    checkpoint = real(**arguments).state_dict()
    layer = binary(**arguments, weight_quantizer=weight_quantizer, input_quantizer=SignActivation("decaying"))
    scale = layer.scale.clone()
    layer.load_state_dict(checkpoint, strict=True)
    assert torch.equal(layer.weight, checkpoint["weight"])
    assert torch.equal(layer.scale, scale)
    assert set(checkpoint) == {"weight", "bias"}, "the caller's checkpoint is left alone"


def test_a_checkpoint_without_a_quantizers_buffer_raises():
    layer = BinaryLinear(4, 2, weight_quantizer=IRNet())
    checkpoint = layer.state_dict()
    del checkpoint["weight_quantizer.progress"]
    with pytest.raises(RuntimeError, match=r"weight_quantizer\.progress"):
        layer.load_state_dict(checkpoint)


@each_small_layer
def test_saved_copied_and_pickled_layers_give_the_same_output(binary, real, arguments, shape):
    layer = binary(**arguments, weight_quantizer=BiHalf(0.3), input_quantizer=SignActivation()).eval()
    layer.scale.mul_(2.9)  # so that the answer shows whether the scale came along
    inputs = torch.randn(shape)
    expected = layer(inputs)
    fresh = binary(**arguments, weight_quantizer=BiHalf(0.3), input_quantizer=SignActivation())
    with pytest.warns(UserWarning, match="not the initial one of BiHalf: it is loaded nevertheless"):
        fresh.load_state_dict(layer.state_dict())
    for other in (fresh, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(inputs), expected)
        assert other.weight is not layer.weight
        with torch.no_grad():
            other.weight.neg_()
        assert not torch.equal(other(inputs), expected)
    assert torch.equal(layer(inputs), expected)


@each_small_layer
def test_a_meta_layer_loads_a_real_checkpoint_by_assignment(binary, real, arguments, shape):
    checkpoint = real(**arguments).state_dict()
    expected = binary(**arguments)
    expected.load_state_dict(checkpoint)
    layer = binary(**arguments, device="meta")
    layer.load_state_dict(checkpoint, assign=True)
    inputs = torch.randn(shape)
    assert torch.equal(layer(inputs), expected(inputs))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("estimator", ["straight", "clipped"])
def test_a_layer_that_skips_the_call_of_its_quantizer_computes_the_same_to_the_bit(
    estimator: str, autocast: bool
) -> None:
    noise = torch.Generator().manual_seed(0)
    for quantizer in (BiHalf(0.3, estimator=estimator), Sign(estimator=estimator)):
        for make, shape in (
            (partial(BinaryLinear, 8, 6), (2, 3, 8)),
            (partial(BinaryConv1d, 8, 6, 3), (2, 8, 9)),
            (partial(BinaryConv2d, 8, 6, 3, padding=1), (2, 8, 6, 5)),
            (partial(BinaryConvTranspose2d, 8, 6, 3), (2, 8, 4, 5)),
        ):
            for activation in (None, SignActivation()):
                layer = make(weight_quantizer=quantizer, input_quantizer=activation)
                if len(shape) == 4:
                    layer.to(memory_format=torch.channels_last)
                twin, calls = copy.deepcopy(layer), []
                twin.weight_quantizer.register_forward_hook(lambda *_, calls=calls: calls.append(1))
                found = []
                for each in (layer, twin):
                    inputs = torch.randn(shape, generator=noise.manual_seed(1)).requires_grad_()
                    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                        outputs = each(inputs)
                    outputs.float().square().sum().backward()
                    found.append([outputs.detach(), inputs.grad, *(own.grad for own in each.parameters())])
                assert calls == [1] and (layer.scaled_symbols() is not None) == (estimator == "straight")
                assert all(torch.equal(mine, theirs) for mine, theirs in zip(*found, strict=True))


def test_symbols_ranked_ahead_replace_those_of_the_quantizer_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = BinaryConv2d(4, 6, 3, bias=False)
    images = torch.randn(2, 4, 5, 5)
    expected = layer(images)
    (gradient,) = torch.autograd.grad(expected.sum(), layer.weight)
    found = (layer.symbols() * layer.scale).detach()
    monkeypatch.setattr(ACTIVE_RANKERS, "stack", [lambda number: {3: found}[number]])
    layer.ranked_ahead = 3, torch.float32
    layer.weight_quantizer = Sign()  # it is not asked
    for forward in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
        torch.testing.assert_close(forward(images), expected)
        torch.testing.assert_close(torch.autograd.grad(forward(images).sum(), layer.weight)[0], gradient)
    assert copy.deepcopy(layer).ranked_ahead is None
    layer.eval()
    torch.testing.assert_close(layer.binary_weight(), layer.scale * torch.where(layer.weight >= 0, 1.0, -1.0))
