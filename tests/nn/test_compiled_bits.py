"""Compiled code unpacks the bits of a layer's input only once the gradient of its output is known."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd

from equalbits.functional.fused_prelu import PRELU
from equalbits.functional.fused_rprelu import RPRELU
from equalbits.functional.packed_bits import BitLayout, _masked_op
from equalbits.functional.products_of_signs import ConvSettings, _convolution_op, _weight_of_linear_op
from equalbits.models import create_model, residual_blocks
from equalbits.models.residual_blocks import Activations, PReLUBlock, RPReLUBlock
from equalbits.nn import BiHalf, BinaryConv2d, BinaryLinear, RSign, SignActivation, calls_hooks, fused_norm


def saved_bytes(call: Callable[[], object]) -> int:
    """Count the memory behind all tensors that a forward pass keeps for the backward pass."""
    held: dict[int, Tensor] = {}
    keep = lambda x: held.setdefault(x.untyped_storage().data_ptr(), x) is None or x  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        call()
    return sum(tensor.untyped_storage().nbytes() for tensor in held.values())


class Layers:
    """Creates the layers of a block as a recipe with binary weights and inputs does."""

    def __init__(self, quantizer: nn.Module) -> None:
        self.quantizer = quantizer

    def conv2d(self, inputs: int, outputs: int, size: int, stride: int, padding: int, *, bias: bool) -> nn.Module:
        quantizers = {"weight_quantizer": BiHalf(), "input_quantizer": self.quantizer}
        return BinaryConv2d(inputs, outputs, size, stride, padding, bias=bias, **quantizers)


class SmallBlocks(nn.Module):
    """Two fused blocks that compute their convolutions again."""

    recompute = True

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self.block() for _ in range(2))
        for block in self.blocks:
            block.recomputes_convolutions = self.recompute

    def block(self) -> nn.Module:
        return PReLUBlock(Layers(SignActivation()), 16, 16, 1, nn.Identity(), prelus=1)

    def forward(self, images: Tensor) -> Tensor:
        first = self.blocks[0].forward_fused(Activations(images), self.blocks[1].conv1)
        return self.blocks[1].forward_fused(first, None).reals


class KeptSums(SmallBlocks):
    """Two fused blocks that keep the outputs of their convolutions, and read their inputs as bits."""

    recompute = False


class SmallShifted(SmallBlocks):
    """As :class:`SmallBlocks`, with RPReLU and RSign."""

    def block(self) -> nn.Module:
        block = RPReLUBlock(Layers(RSign()), 16, 16, 1, nn.Identity())
        for shift in (block.act1.before, block.act2.after, block.conv2.input_quantizer.shift):
            nn.init.uniform_(shift, -0.5, 0.5)
        return block


class KeptShifted(SmallShifted):
    """As :class:`KeptSums`, with RPReLU and RSign."""

    recompute = False


class Plain(nn.Sequential):
    def __init__(self) -> None:
        sign = SignActivation()
        convs = (BinaryConv2d(16, 16, 3, padding=1, input_quantizer=sign, bias=bias) for bias in (True, False))
        super().__init__(*convs, nn.Flatten(2), BinaryLinear(30, 7, input_quantizer=sign))


@pytest.mark.parametrize(
    ("kind", "least"),
    [(Plain, math.inf), (SmallBlocks, math.inf), (KeptSums, 0.5), (SmallShifted, math.inf), (KeptShifted, math.inf)],
    ids=str,
)
def test_gradients_equal_those_of_plain_execution_and_no_bit_is_unpacked_ahead(
    kind: type[nn.Module], least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(fused_norm, "RECOMPUTE_FROM", {"eager": least, "compiled": least})
    torch.manual_seed(0)
    model = kind().to(memory_format=torch.channels_last)
    images = torch.randn(4, 16, 6, 5).contiguous(memory_format=torch.channels_last)
    graphs: list[torch.fx.GraphModule] = []
    keep = aot_autograd(fw_compiler=lambda graph, _: graphs.append(graph) or make_boxed_func(graph))
    found = []
    for run in (model, torch.compile(model, backend=keep, fullgraph=True)):
        leaf = images.clone(memory_format=torch.preserve_format).requires_grad_()
        outputs = run(leaf)
        seed = torch.linspace(-1, 1, outputs.numel()).view(outputs.shape)
        found.append([outputs.detach(), *torch.autograd.grad(outputs, [leaf, *model.parameters()], seed)])
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine, theirs) and mine.stride() == theirs.stride()
    code = "".join(graph.code for graph in graphs)
    assert len(graphs) == 2 and "_backward.default(" in code and "unpack_bits" not in code


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_operators_pass_opcheck(strided: bool, stride: int) -> None:
    layout = torch.channels_last if strided else torch.contiguous_format
    noise = torch.Generator().manual_seed(stride)
    draw = lambda *shape: torch.randn(shape, generator=noise).contiguous(memory_format=layout)  # noqa: E731
    signs, weight = draw(2, 16, 6, 5), draw(8, 16, 3, 3)
    settings = ConvSettings((stride, stride), (1, 1))
    packing = BitLayout.of(signs)
    packed, outputs = packing.pack(signs > 0), torch.conv2d(signs.sign(), weight, None, stride, 1)
    gradient = torch.randn(outputs.shape, generator=noise).contiguous(memory_format=layout)
    for wanted in ((True, True, True), (True, False, False), (False, True, False)):
        torch.library.opcheck(_convolution_op, (gradient, packed, weight, *packing, *settings, *wanted))
    torch.library.opcheck(_masked_op, (signs, packed, *packing))
    rows = torch.randn(60, 8)
    torch.library.opcheck(
        _weight_of_linear_op, (rows, packed.view(-1)[:120].view(60, 2), torch.randn(8, 16), (60, 16), False)
    )
    near, stats = torch.ones(outputs.numel() // 8, 1, dtype=torch.uint8), torch.rand(5, 8)
    for g_s, slope in ((gradient, torch.rand(8)), (None, None)):
        given = (gradient, g_s, packed, weight, slope, torch.rand(8), near, stats)
        torch.library.opcheck(PRELU.recomputed_op, (*given, *packing, *settings))
    vectors = torch.rand(5, 8).unbind()
    for g_s, residual, shift in ((gradient, gradient, torch.rand(8)), (None, None, None)):
        given = (gradient, g_s, packed, weight, residual, *vectors, shift, torch.rand(3, 8))
        torch.library.opcheck(RPRELU.recomputed_op, (*given, *packing, *settings))


def test_a_second_gradient_still_reaches_the_signs() -> None:
    layer = BinaryConv2d(8, 8, 3, padding=1, input_quantizer=SignActivation()).double()
    inputs = torch.randn(2, 8, 5, 5, dtype=torch.float64, requires_grad=True)
    first = torch.autograd.grad(layer(inputs).square().sum(), [inputs, layer.weight], create_graph=True)
    again = copy.deepcopy(layer)
    again.input_quantizer.returns_signs = False  # torch's own convolution
    theirs = torch.autograd.grad(again(inputs).square().sum(), [inputs, again.weight], create_graph=True)
    for mine, other in zip(first, theirs, strict=True):
        torch.testing.assert_close(mine, other)
    second = [torch.autograd.grad(sum(g.square().sum() for g in each), inputs)[0] for each in (first, theirs)]
    torch.testing.assert_close(*second)
    assert second[0].abs().sum() > 0


@pytest.mark.parametrize("inputs", ["sign", "rsign"])
def test_a_resnet_that_recomputes_convolutions_computes_the_same_to_the_bit(
    inputs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residual_blocks, "can_fuse", lambda *_: True)  # says so itself on a GPU only
    images = torch.randn(4, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    found, kept = [], [0, 0]
    for turn, least in enumerate((math.inf, 1.0)):
        monkeypatch.setattr(fused_norm, "RECOMPUTE_FROM", {"eager": least})
        torch.manual_seed(0)
        settings = {"num_classes": 3, "image_size": 16, "input_quantizer": inputs, "rprelu": inputs == "rsign"}
        net = create_model("resnet18", width=0.25, **settings)
        net.to(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16):
            outputs = net(images)
        kept[turn] = saved_bytes(lambda net=net: net(images))
        gradients = torch.autograd.grad(outputs.float().square().sum(), list(net.parameters()))
        found.append([outputs, *gradients, *net.buffers()])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*found, strict=True))
    assert kept[1] < kept[0]


@pytest.mark.parametrize("name", ["resnet20", "vgg_small"])
def test_compiled_nets_with_rprelu_compute_the_same_to_the_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residual_blocks, "can_fuse", lambda *_: True)  # says so itself on a GPU only
    torch.manual_seed(0)
    settings = {"num_classes": 3, "image_size": 8, "input_quantizer": "rsign", "rprelu": True}
    net = create_model(name, width=0.5, **settings).to(memory_format=torch.channels_last)
    images, found = torch.randn(4, 3, 8, 8).contiguous(memory_format=torch.channels_last), []
    for run in (net, torch.compile(net, backend="aot_eager", fullgraph=True)):
        with torch.autocast("cpu", torch.bfloat16):
            outputs = run(images)
        found.append([outputs, *torch.autograd.grad(outputs.float().square().sum(), list(net.parameters()))])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*found, strict=True))


@pytest.mark.parametrize("rprelu", [False, True])
@pytest.mark.parametrize("name", ["resnet18", "vgg_small"])
def test_a_net_with_a_hook_inside_is_not_fused(name: str, rprelu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residual_blocks, "can_fuse", lambda _, *norms: all(map(fused_norm._is_default, norms)))
    net = create_model(name, width=0.125, num_classes=3, image_size=8, input_quantizer="rsign", rprelu=rprelu)
    called: list[nn.Module] = []
    images, inside = torch.randn(4, 3, 8, 8), net.stage2[0].norm1 if name == "resnet18" else net.norm2
    for run in (net, torch.compile(lambda x: net(x), backend="aot_eager", fullgraph=True)):
        hook = inside.register_forward_hook(lambda module, inputs, outputs: called.append(module))
        assert calls_hooks(net)
        run(images)
        hook.remove()
        torch._dynamo.reset()
        assert not calls_hooks(net)
        run(images)
        assert called == [inside]
        called.clear()
