"""The weight cache stays empty wherever a change could go unnoticed, and is right with gradients and transforms."""

import copy
import pickle
import threading

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, stack_module_state, vmap
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

from equalbits.nn import (
    BiHalf,
    BinaryConv2d,
    BinaryLinear,
    IRNet,
    Sign,
    WeightQuantizer,
    list_quantizers,
    quantizer_by_name,
)

INPUTS = torch.linspace(-1, 1, 24).reshape(3, 8)


def make_layer(quantizer: WeightQuantizer | None = None) -> BinaryLinear:
    torch.manual_seed(0)
    return BinaryLinear(8, 4, weight_quantizer=quantizer).eval()


class Threshold(WeightQuantizer):
    """+1 from a threshold on, which is stored in one of several ways."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        if kind in ("buffer", "empty buffer"):
            self.register_buffer("at", torch.zeros(()) if kind == "buffer" else None)
        elif kind == "parameter":
            self.at = nn.Parameter(torch.zeros(()))
        elif kind == "submodule":
            self.inner = Threshold("number")
        else:
            self.at = {"number": 0.0, "list": [0.0], "tensor": torch.zeros(())}[kind]

    def threshold(self) -> float | Tensor:
        if self.kind == "submodule":
            return self.inner.at
        if self.at is None:
            return 0.0
        return self.at[0] if self.kind == "list" else self.at

    @torch.no_grad()
    def move(self, value: float) -> None:
        if self.kind == "number":
            self.at = value
        elif self.kind == "submodule":
            self.inner.at = value
        elif self.kind == "list":
            self.at[0] = value
        elif self.kind == "empty buffer":
            self.at = torch.tensor(value)
        else:
            self.at.fill_(value)

    def symbols(self, latents: Tensor) -> Tensor:
        return torch.where(latents.detach() >= self.threshold(), 1.0, -1.0)


@pytest.mark.parametrize("kind", ["number", "list", "tensor", "buffer", "empty buffer", "parameter", "submodule"])
def test_a_setting_of_a_custom_quantizer_is_noticed_wherever_it_is_stored(kind):
    layer = make_layer(Threshold(kind))
    before = layer(INPUTS)
    assert torch.equal(layer(INPUTS), before)
    assert (layer.cached_weight is None) == (kind in ("list", "tensor"))
    layer.weight_quantizer.move(0.1)
    assert not torch.equal(layer(INPUTS), before)
    assert torch.equal(layer(INPUTS), copy.deepcopy(layer)(INPUTS))


def test_a_hook_on_the_quantizer_runs_at_every_pass():
    layer, calls = make_layer(), []
    layer(INPUTS)
    layer.weight_quantizer.register_forward_hook(lambda *_: calls.append(1))
    for _ in range(3):
        layer(INPUTS)
    assert len(calls) == 3


@torch.inference_mode()
def test_writes_to_inference_tensors_are_noticed_though_they_have_no_version_counter():
    layer = make_layer()
    before = layer(INPUTS)
    assert layer.weight.is_inference()
    assert layer.cached_weight is None
    layer.weight.neg_()
    assert not torch.equal(layer(INPUTS), before)


def test_tensors_in_shared_memory_are_not_cached():
    layer = make_layer()
    before = layer(INPUTS)
    layer.weight.share_memory_()  # another process may write to it from now on
    layer(INPUTS)
    assert layer.cached_weight is None
    layer.weight.data.neg_()
    assert not torch.equal(layer(INPUTS), before)


def test_nothing_is_cached_in_a_process_group():
    layer = make_layer()
    layer(INPUTS)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        before = layer(INPUTS)
        layer.weight.data.neg_()  # as a broadcast writes
        assert not torch.equal(layer(INPUTS), before)
    finally:
        dist.destroy_process_group()


def test_a_fake_tensor_never_enters_the_cache():
    layer = make_layer()
    with FakeTensorMode(allow_non_fake_inputs=True):
        layer(torch.randn(3, 8))
    assert layer.cached_weight is None
    assert torch.equal(layer(INPUTS), copy.deepcopy(layer)(INPUTS))


def test_copies_quantize_their_own_latents():
    layer = make_layer()
    before = layer(INPUTS)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        with torch.no_grad():
            other.weight.neg_()
        assert not torch.equal(other(INPUTS), before)
        assert torch.equal(layer(INPUTS), before)


def test_threads_share_a_layer_and_see_the_last_write():
    layer, failures = make_layer(), []
    expected = {}
    for sign in (1.0, -1.0):
        with torch.no_grad():
            layer.weight.mul_(sign)
        expected[sign] = copy.deepcopy(layer)(INPUTS).detach()

    def evaluate() -> None:
        for _ in range(200):
            with torch.no_grad():
                output = layer(INPUTS)
            if not any(torch.equal(output, each) for each in expected.values()):
                failures.append(output)

    for _ in range(5):
        threads = [threading.Thread(target=evaluate) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with torch.no_grad():
            layer.weight.neg_()
        assert torch.equal(layer(INPUTS), copy.deepcopy(layer)(INPUTS))
    assert not failures


@pytest.mark.parametrize("name", [*list_quantizers(), "pruned-bihalf:by=score", "irnet-through"])
def test_both_modes_have_one_output_and_one_gradient(name):
    torch.manual_seed(1)
    layer = BinaryConv2d(3, 4, 3, weight_quantizer=quantizer_by_name(name))
    inputs, seen = torch.randn(2, 3, 6, 6), []
    for training in (True, False, False):
        layer.train(training)
        layer.zero_grad()
        output = layer(inputs)
        output.square().sum().backward()
        seen.append((output.detach(), [parameter.grad for parameter in layer.parameters()]))
    for output, gradients in seen[1:]:
        assert torch.equal(output, seen[0][0])
        for gradient, expected in zip(gradients, seen[0][1], strict=True):
            assert (gradient is None) == (expected is None)
            assert gradient is None or torch.equal(gradient, expected)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_gradients_flow_after_a_pass_without_them(context):
    layer = make_layer()
    with context():
        layer(INPUTS)
    layer(INPUTS).square().sum().backward()
    assert layer.weight.grad.abs().sum() > 0


def test_a_learned_scale_gets_its_gradient():
    layer = make_layer()
    layer.scale = nn.Parameter(layer.scale.clone())
    layer(INPUTS)
    layer(INPUTS).sum().backward()
    expected = (INPUTS @ layer.symbols().T).sum()
    torch.testing.assert_close(layer.scale.grad, expected)


def test_tensors_without_gradient_get_none():
    layer, inputs = make_layer(), INPUTS.clone().requires_grad_()
    layer.weight.requires_grad_(False)
    for training in (True, False):
        layer.train(training)
        layer(inputs).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is not None
    assert inputs.grad is not None
    layer.requires_grad_(False)
    assert not layer(INPUTS).requires_grad


def test_a_second_derivative_is_that_of_training():
    found = []
    for training in (True, False, False):
        layer = make_layer(IRNet()).double().train(training)
        (gradient,) = torch.autograd.grad(layer(INPUTS.double()).square().sum(), layer.weight, create_graph=True)
        found.append(torch.autograd.grad(gradient.square().sum(), layer.weight)[0])
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def test_a_checkpointed_pass_saves_as_many_tensors_when_it_is_repeated():
    layer = make_layer(IRNet())
    inputs = INPUTS.clone().requires_grad_()
    checkpoint(layer, inputs, use_reentrant=False).square().sum().backward()
    found, layer.weight.grad = layer.weight.grad, None
    layer(inputs).square().sum().backward()
    assert torch.equal(found, layer.weight.grad)


def test_a_change_between_forward_and_backward_raises():
    layer = make_layer(BiHalf())
    loss = layer(INPUTS).sum()
    layer.weight_quantizer.p_pos = 0.25
    with pytest.raises(RuntimeError, match="quantizer was changed between forward and backward"):
        loss.backward()
    loss = layer(INPUTS).sum()
    with torch.no_grad():
        layer.weight.neg_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("name", ["bihalf", "xnor-plus-plus", "irnet"])
def test_a_functional_call_uses_the_tensors_it_is_given_in_both_directions(name):
    layer = make_layer(quantizer_by_name(name))
    layer(INPUTS)
    state = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
    given = {key: nn.Parameter(-value.detach()) for key, value in state.items() if key != "scale"}
    output = functional_call(layer, given, (INPUTS,))
    other = copy.deepcopy(layer)
    other.load_state_dict({key: value.detach() for key, value in given.items()}, strict=False)
    assert torch.equal(output, other(INPUTS))
    output.square().sum().backward()
    other.train()(INPUTS).square().sum().backward()
    for key, parameter in other.named_parameters():
        assert torch.equal(given[key].grad, parameter.grad)
        assert dict(layer.named_parameters())[key].grad is None
    assert torch.equal(layer(INPUTS), copy.deepcopy(layer)(INPUTS))


def test_an_ensemble_under_vmap_equals_its_members():
    layers = [make_layer(), make_layer()]
    with torch.no_grad():
        layers[1].weight.neg_()
    expected = torch.stack([layer(INPUTS) for layer in layers])
    parameters, buffers = stack_module_state(layers)
    outputs = vmap(lambda p, b: functional_call(layers[0], (p, b), (INPUTS,)))(parameters, buffers)
    torch.testing.assert_close(outputs, expected)


def test_torch_func_grad_equals_backward_after_a_cached_pass():
    layer = make_layer(Sign(estimator="clipped"))
    layer(INPUTS).square().sum().backward()
    parameters = {name: parameter.detach() for name, parameter in layer.named_parameters()}
    gradients = torch.func.grad(lambda given: functional_call(layer, given, (INPUTS,)).square().sum())(parameters)
    torch.testing.assert_close(gradients["weight"], layer.weight.grad)


def test_a_compiled_layer_follows_its_latents_and_those_of_the_eager_one():
    torch._dynamo.reset()
    layer = make_layer()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    for _ in range(2):
        assert torch.equal(compiled(INPUTS), layer(INPUTS))
        with torch.no_grad():
            layer.weight.neg_()
