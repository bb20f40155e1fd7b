"""Binary layers under compile, export, autocast, channels_last and functional calls."""

import copy
import pickle

import pytest
import torch
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
    list_quantizers,
    quantizer_by_name,
)

QUANTIZERS = [BiHalf(0.3), Sign(), IRNet()]
each_quantizer = pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda quantizer: type(quantizer).__name__)
each_mode = pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])


def small_net(quantizer: nn.Module) -> nn.Sequential:
    """Every kind of layer, with a binary input here and there."""
    torch.manual_seed(5)
    chosen = {"weight_quantizer": quantizer}
    return nn.Sequential(
        BinaryConv2d(3, 4, 3, padding=1, **chosen),
        nn.GroupNorm(2, 4),
        BinaryConv2d(4, 4, 3, stride=2, groups=2, input_quantizer=SignActivation(), **chosen),
        BinaryConvTranspose2d(4, 4, 2, groups=2, input_quantizer=SignActivation("decaying"), **chosen),
        nn.Flatten(2),
        BinaryConv1d(4, 2, 3, **chosen),
        nn.Flatten(),
        BinaryLinear(28, 5, **chosen),
    ).double()  # so that no rounding tips an input over the step of its sign


def run(model: nn.Module, call: object, inputs: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    answer = call(inputs)
    answer.square().sum().backward()
    return answer.detach(), {name: value.grad.clone() for name, value in model.named_parameters()}


def assert_close(ours: tuple, expected: tuple) -> None:
    torch.testing.assert_close(ours[0], expected[0])
    for name, gradient in expected[1].items():
        torch.testing.assert_close(ours[1][name], gradient, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(
    ("quantizer", "training"),
    [(BiHalf(0.3), True), (BiHalf(0.3), False), (IRNet(), False)],
    ids=["BiHalf-training", "BiHalf-eval", "IRNet-eval"],
)
def test_a_model_compiled_to_one_graph_gives_the_same_output_before_and_after_a_step(quantizer, training):
    torch._dynamo.reset()
    torch.manual_seed(5)
    model = nn.Sequential(
        BinaryConv2d(3, 4, 3, weight_quantizer=quantizer),
        BinaryConvTranspose2d(4, 4, 2, groups=2, weight_quantizer=quantizer, input_quantizer=SignActivation()),
    )
    model.double().train(training)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        inputs = torch.randn(2, 3, 8, 8, dtype=torch.float64)
        plain = copy.deepcopy(model)
        assert_close(run(model, compiled, inputs), run(plain, plain, inputs))
        optimizer.step()
    model[0].weight.data.neg_()
    plain = copy.deepcopy(model)
    assert_close(run(model, compiled, inputs), run(plain, plain, inputs))


def test_the_inductor_compiles_a_binary_layer_whose_symbols_stay_exact():
    torch._dynamo.reset()
    model = nn.Sequential(BinaryLinear(9, 6, weight_quantizer=BiHalf(0.3), input_quantizer=SignActivation()))
    compiled, plain, inputs = torch.compile(model, fullgraph=True), copy.deepcopy(model), torch.randn(4, 9)
    assert_close(run(model, compiled, inputs), run(plain, plain, inputs))


def test_a_copy_of_a_compiled_layer_uses_its_own_latents():
    layer, inputs = BinaryLinear(8, 4), torch.randn(3, 8)
    layer.compile(backend="eager")
    answer = layer(inputs)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        with torch.no_grad():
            other.weight.neg_()
            other.bias.zero_()
        assert torch.equal(other(inputs), nn.functional.linear(inputs, other.scale * other.symbols()))
        assert not torch.equal(other(inputs), answer)


@each_mode
@each_quantizer
def test_an_exported_model_gives_the_same_output_and_follows_its_latents(quantizer, training):
    model, inputs = small_net(quantizer).train(training), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    exported = torch.export.export(copy.deepcopy(model), (inputs,)).module()
    torch.testing.assert_close(exported(inputs), copy.deepcopy(model)(inputs))
    changed = {name: -value if name.endswith("weight") else value for name, value in model.state_dict().items()}
    exported.load_state_dict(changed)
    model.load_state_dict(changed)
    torch.testing.assert_close(exported(inputs), model(inputs))


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("method", ["bihalf", "pruned-bihalf", "pruned-bihalf:by=score", "pruned-sign", "mpt"])
def test_a_traced_layer_gives_the_same_output_and_follows_its_latents(method):
    layer, inputs = BinaryLinear(9, 6, weight_quantizer=quantizer_by_name(method)).eval(), torch.randn(2, 9)
    traced = torch.jit.trace(layer, inputs)
    with torch.no_grad():
        layer.weight.neg_()
    torch.testing.assert_close(traced(inputs), layer(inputs))


@each_mode
@each_quantizer
def test_under_autocast_the_ranks_are_those_of_float32(quantizer, training):
    model, inputs = small_net(quantizer).float().train(training), torch.randn(2, 3, 8, 8)
    layers = [module for module in model.modules() if isinstance(module, BinaryLayer)]
    for layer in layers:  # steps far below what bfloat16 can tell apart
        layer.weight.data = 1 + torch.randperm(layer.weight.numel()).view(layer.weight.shape) * 1e-6
    expected = [layer.binary_weight().detach().clone() for layer in layers]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        answer = model(inputs)
        inside = [layer.binary_weight().detach() for layer in layers]
    assert answer.dtype == torch.bfloat16
    answer.float().sum().backward()
    for layer, then, now in zip(layers, expected, inside, strict=True):
        assert torch.equal(then, now)
        assert layer.weight.grad.dtype == torch.float32
        if isinstance(quantizer, BiHalf):
            positives = (layer.to_filters(now) > 0).flatten(1).sum(dim=1)
            assert set(positives.tolist()) == {F.positive_count(layer.symbols()[0].numel(), 0.3)}


@each_mode
@each_quantizer
def test_channels_last_changes_no_output_and_no_symbol(quantizer, training):
    model, inputs = small_net(quantizer).train(training), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)
    assert_close(run(last, last, inputs.contiguous(memory_format=torch.channels_last)), run(model, model, inputs))
    for ours, theirs in zip(last, model, strict=True):
        if isinstance(ours, BinaryLayer):
            assert torch.equal(ours.symbols(), theirs.symbols())


def test_ties_are_broken_alike_in_channels_last():
    layer = BinaryConv2d(4, 3, 3)
    layer.weight.data = torch.randint(0, 2, layer.weight.shape).float()
    expected = layer.symbols()
    assert torch.equal(layer.to(memory_format=torch.channels_last).symbols(), expected)


@each_mode
@each_quantizer
@pytest.mark.parametrize("kind", [BinaryConv2d, BinaryConvTranspose2d])
def test_the_binary_weight_and_its_gradient_have_the_memory_format_of_the_latents(kind, quantizer, training):
    layer = kind(4, 6, 3, groups=2, weight_quantizer=quantizer).to(memory_format=torch.channels_last).train(training)
    assert not layer.weight.is_contiguous()
    for _ in range(2):  # found, then known
        weight = layer.binary_weight()
        assert weight.stride() == layer.weight.stride()
        layer.weight.grad = None
        layer(torch.randn(1, 4, 5, 5).contiguous(memory_format=torch.channels_last)).sum().backward()
        assert layer.weight.grad.stride() == layer.weight.stride()


@each_mode
@each_quantizer
def test_a_functional_call_differentiates_given_latents(quantizer, training):
    model, inputs = small_net(quantizer).train(training), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    expected = run(copied := copy.deepcopy(model), copied, inputs)[1]

    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, parameters, (inputs,)).square().sum()

    latents = {name: value.detach() for name, value in model.named_parameters()}
    gradients = torch.func.grad(loss)(latents)
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient)
    negated = {name: -value for name, value in latents.items()}
    assert not torch.equal(loss(negated), loss(latents)), "the latents given count, not the layer's own"


def test_fake_tensors_pass_through_in_eval_mode():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        layer = BinaryLinear(6, 3).eval()
        assert layer(torch.randn(2, 6)).shape == (2, 3)
        assert layer(torch.randn(2, 6)).shape == (2, 3)


def test_a_meta_model_computes_shapes():
    layer = BinaryConv2d(3, 4, 3, device="meta").eval()
    assert layer(torch.randn(2, 3, 8, 8, device="meta")).shape == (2, 4, 6, 6)


@each_mode
@each_quantizer
def test_several_models_run_as_one_under_vmap(quantizer, training):
    nets = [small_net(quantizer).train(training) for _ in range(3)]
    for shift, net in enumerate(nets):  # each with latents of its own
        for parameter in net.parameters():
            parameter.data = parameter.data.roll(shift)
    stacked, buffers = torch.func.stack_module_state(nets)
    without_memory, inputs = copy.deepcopy(nets[0]).to("meta"), torch.randn(2, 3, 8, 8, dtype=torch.float64)

    def loss(latents: dict[str, torch.Tensor], kept: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(without_memory, (latents, kept), (inputs,)).square().sum()

    gradients = torch.func.vmap(torch.func.grad(loss))(stacked, buffers)
    for place, net in enumerate(nets):
        for name, gradient in run(net, net, inputs)[1].items():
            torch.testing.assert_close(gradients[name][place], gradient)


@pytest.mark.parametrize("name", [*list_quantizers(), "pruned-bihalf:sparsity=0.8,ramp=0.5", "abc-net:bases=3"])
def test_a_layer_stays_on_its_device_under_any_default_device(name):
    layer, inputs = BinaryLinear(12, 4, weight_quantizer=quantizer_by_name(name)), torch.randn(3, 12)
    with torch.device("meta"):
        for training in (True, False):
            layer.train(training)
            layer(inputs).sum().backward()
            assert (layer.binary_weight().device.type, layer.symbols().device.type) == ("cpu", "cpu")
