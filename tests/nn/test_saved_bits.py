"""A binary layer keeps ±1 inputs for the backward pass as bits, with the gradients of the plain layer to the bit."""

import copy
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from equalbits import functional as F
from equalbits.functional.estimators import _Surrogate
from equalbits.models import create_model
from equalbits.nn import (
    BinaryConv1d,
    BinaryConv2d,
    BinaryConvTranspose2d,
    BinaryLayer,
    BinaryLinear,
    RSign,
    SignActivation,
    recompute_convolutions_,
)


class PlainSign(nn.Module):
    """The clipped sign as torch would write it: the layer keeps a float per input, the estimator a boolean."""

    def forward(self, inputs: Tensor) -> Tensor:
        return _Surrogate.apply(inputs, F.sign_symbols(inputs), inputs.detach().abs() < 1)


def plain_twin(model: nn.Module) -> nn.Module:
    twin = copy.deepcopy(model)
    for layer in twin.modules():
        if isinstance(layer, BinaryLayer):
            layer.input_quantizer = PlainSign()
    return twin


def saved_bytes(call: Callable[[], object]) -> int:
    """Count the memory behind all tensors that a forward pass keeps for the backward pass."""
    held: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        call()
    return sum(tensor.untyped_storage().nbytes() for tensor in held.values())


def run(model: nn.Module, forward: Callable[[Tensor], Tensor], inputs: Tensor) -> list[Tensor]:
    """Return the outputs, and the gradients of the inputs and of every parameter."""
    leaf = inputs.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    outputs = forward(leaf)
    direction = torch.linspace(-1, 1, outputs.numel(), device=outputs.device).view(outputs.shape).to(outputs.dtype)
    wanted = [leaf, *model.parameters()]
    return [outputs.detach(), *torch.autograd.grad(outputs, wanted, direction)]


def assert_equal(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype and torch.equal(mine, other)


def stack(layers: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(BinaryConv2d(8, 8, 3, padding=1, input_quantizer=SignActivation()) for _ in range(layers)))


SIGN = {"input_quantizer": SignActivation()}
LAYERS = {
    "linear": (BinaryLinear(7, 5, **SIGN), (3, 7)),
    "linear, one sample": (BinaryLinear(7, 5, bias=False, **SIGN), (7,)),
    "linear, tokens": (BinaryLinear(16, 5, **SIGN), (2, 3, 16)),
    "conv1d": (BinaryConv1d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2, **SIGN), (2, 4, 11)),
    "conv2d": (BinaryConv2d(4, 6, 3, stride=2, padding=1, **SIGN), (2, 4, 9, 8)),
    "conv2d, 1x1": (BinaryConv2d(8, 6, 1, bias=False, **SIGN), (2, 8, 5, 5)),
    "conv2d, depthwise": (BinaryConv2d(4, 8, 3, dilation=2, groups=4, **SIGN), (2, 4, 9, 8)),
    "conv2d, one sample": (BinaryConv2d(4, 6, 3, **SIGN), (4, 9, 8)),
    "conv2d, same": (BinaryConv2d(4, 6, 3, padding="same", **SIGN), (2, 4, 9, 8)),
    "conv2d, circular": (BinaryConv2d(4, 6, 3, padding=1, padding_mode="circular", **SIGN), (2, 4, 9, 8)),
    "transposed": (
        BinaryConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2, **SIGN),
        (2, 4, 5, 5),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_values_and_gradients_equal_those_of_the_plain_layer(name: str) -> None:
    layer, shape = LAYERS[name]
    inputs = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    assert_equal(run(layer, layer, inputs), run(twin := plain_twin(layer), twin, inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_channels_last_and_autocast_change_neither_values_nor_gradients(dtype: torch.dtype) -> None:
    model = stack().to(memory_format=torch.channels_last)
    inputs = torch.randn(2, 8, 6, 5).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        ours, theirs = run(model, model, inputs), run(twin := plain_twin(model), twin, inputs)
    assert ours[0].dtype == dtype
    assert_equal(ours, theirs)
    assert [each.stride() for each in ours] == [each.stride() for each in theirs]


def test_a_stack_of_convolutions_keeps_a_fifth_of_the_bytes_at_most() -> None:
    model, inputs = stack(6), torch.randn(16, 8, 16, 16)
    twin, weights = plain_twin(model), sum(4 * layer.weight.numel() for layer in model)
    ours, theirs = (saved_bytes(lambda net=net: net(inputs.requires_grad_())) for net in (model, twin))
    assert ours <= 0.2 * theirs
    assert ours - weights <= 6 * inputs.numel() * 2 / 8 + 200  # two bits per input, beside the binary weights
    with torch.autocast("cpu", torch.bfloat16):
        assert saved_bytes(lambda: model(inputs)) <= 0.2 * saved_bytes(lambda: twin(inputs))


def test_a_frozen_layer_keeps_only_the_bits_of_the_clip() -> None:
    layer, inputs = BinaryLinear(64, 2, bias=False, **SIGN).requires_grad_(False), torch.randn(8, 64)
    assert saved_bytes(lambda: layer(inputs.requires_grad_())) == 8 * 64 / 8 + 2 * 64 * 4


@pytest.mark.parametrize("net", ["stack", "linear", "recomputed"])
def test_the_backward_pass_frees_all_that_a_layer_keeps(net: str) -> None:
    model, shape = stack(), (2, 8, 6, 5)
    if net == "linear":
        model, shape = nn.Sequential(BinaryLinear(8, 8, **SIGN), BinaryLinear(8, 8, **SIGN)), (4, 8)
    if net == "recomputed":
        model, shape = create_model("resnet18", num_classes=3, width=0.125, input_quantizer="sign"), (2, 3, 32, 32)
        assert recompute_convolutions_(model) == 8
    kept: list[weakref.ref[Tensor]] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(weakref.ref(x)) or x, lambda x: x):
        outputs = model(torch.randn(shape))
    own = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *model.buffers())}

    def alive() -> list[torch.Size]:
        tensors = [tensor for each in kept if (tensor := each()) is not None]
        return [tensor.shape for tensor in tensors if tensor.untyped_storage().data_ptr() not in own]

    assert len(alive()) > 3
    outputs.sum().backward()  # the outputs keep the graph alive
    assert not alive()


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpoints_give_the_same_gradients(reentrant: bool) -> None:
    model, inputs = stack(), torch.randn(2, 8, 6, 5)
    leaf = inputs.clone().requires_grad_()
    outputs = checkpoint(model, leaf, use_reentrant=reentrant)
    outputs.backward(torch.linspace(-1, 1, outputs.numel()).view(outputs.shape))
    ours = [outputs.detach(), leaf.grad, *(each.grad for each in model.parameters())]
    assert_equal(ours, run(twin := plain_twin(model), twin, inputs))


def test_saved_bits_may_be_moved_to_the_host() -> None:
    model, inputs = stack(), torch.randn(2, 8, 6, 5)
    with torch.autograd.graph.save_on_cpu():
        ours = run(model, model, inputs)
    assert_equal(ours, run(twin := plain_twin(model), twin, inputs))


def test_a_gradient_of_gradients_equals_that_of_the_plain_layer() -> None:
    for layer in (BinaryLinear(8, 8, **SIGN), BinaryConv2d(8, 8, 3, **SIGN)):
        model = nn.Sequential(layer, nn.Tanh(), copy.deepcopy(layer)).double()
        leaf = torch.randn((4, 8) if isinstance(layer, BinaryLinear) else (2, 8, 6, 5), dtype=torch.float64)
        found = []
        for net in (model, plain_twin(model)):
            inputs = leaf.clone().requires_grad_()
            wanted = [inputs, *net.parameters()]
            gradients = torch.autograd.grad(net(inputs).square().sum(), wanted, create_graph=True)
            penalty = sum(each.square().sum() for each in gradients)
            found.append(torch.autograd.grad(penalty, wanted, allow_unused=True, materialize_grads=True))
        for mine, other in zip(*found, strict=True):
            torch.testing.assert_close(mine, other)
        assert found[0][0].abs().sum() > 0  # through the weight's gradient to the input


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_compiled_layer_keeps_bits(device: str) -> None:
    torch._dynamo.reset()
    model, inputs = stack(1).to(device), torch.randn(16, 8, 16, 16, device=device, requires_grad=True)
    compiled, twin = torch.compile(model, backend="aot_eager", fullgraph=True), plain_twin(model)
    assert saved_bytes(lambda: compiled(inputs)) <= 0.2 * saved_bytes(lambda: twin(inputs))
    ours, theirs = run(model, compiled, inputs), run(twin, twin, inputs)
    if device == "cuda":  # cuDNN may choose another algorithm; a wrong bit changes gradients by up to 0.3
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-2)
    else:
        assert_equal(ours, theirs)


def test_only_a_quantizer_that_returns_signs_is_kept_as_bits() -> None:
    class Halved(SignActivation):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) / 2

    def gradient(quantizer: nn.Module) -> Tensor:
        layer = BinaryLinear(2, 1, bias=False, input_quantizer=quantizer)
        layer(torch.tensor([[-0.5, 3.0]])).sum().backward()
        return layer.weight.grad / layer.scale

    assert gradient(SignActivation()).tolist() == [[-1.0, 1.0]]
    assert gradient(RSign()).tolist() == [[-1.0, 1.0]]
    assert gradient(Halved()).tolist() == [[-0.5, 0.5]]
    layer = BinaryLinear(2, 1, bias=False, **SIGN)
    layer.input_quantizer.register_forward_hook(lambda module, given, signs: signs * 3)
    layer(torch.tensor([[-0.5, 3.0]])).sum().backward()
    assert (layer.weight.grad / layer.scale).tolist() == [[-3.0, 3.0]]
