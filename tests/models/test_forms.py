"""Blocks of the deep networks equal their formulas."""

import copy
import functools
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from equalbits.functional import BitLayout, SignBits
from equalbits.models import LayerFactory, create_model
from equalbits.models import residual_blocks as blocks
from equalbits.models.residual_blocks import HardtanhBlock, PadShortcut, PReLUBlock, RealInputBlock, RPReLUBlock
from equalbits.models.shufflenet import ShuffleUnit
from equalbits.nn import BiHalf, BinaryConv2d, RPReLU, RSign, SignActivation, fused_norm, recompute_convolutions_

ONE_BIT = LayerFactory(BiHalf(), SignActivation())
SHIFTED = LayerFactory(BiHalf(), RSign())
#: Makers of the blocks that can be fused.
FUSED = {
    "one-prelu": functools.partial(PReLUBlock, ONE_BIT, prelus=1),
    "two-prelus": functools.partial(PReLUBlock, ONE_BIT, prelus=2),
    "rprelu": functools.partial(RPReLUBlock, SHIFTED),
    "rprelu-after-the-plain-sign": functools.partial(RPReLUBlock, ONE_BIT),
}
REAL_INPUTS = LayerFactory(BiHalf())


def sign(values: Tensor) -> Tensor:
    return torch.where(values >= 0, 1.0, -1.0)


def norm(values: Tensor) -> Tensor:
    """A fresh batch norm in training."""
    return nnf.batch_norm(values, None, None, training=True)


def conv(layer: nn.Module, values: Tensor, **settings: int) -> Tensor:
    assert isinstance(layer, nn.Conv2d)
    return nnf.conv2d(values, layer.binary_weight(), layer.bias, **settings)  # type: ignore[operator]


@pytest.fixture
def maps() -> Tensor:
    return torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(0))


def test_the_prelu_block_adds_a_shortcut_around_each_convolution(maps: Tensor) -> None:
    shortcut = nn.Sequential(nn.Conv2d(8, 16, 1, stride=2), nn.BatchNorm2d(16))
    block = PReLUBlock(ONE_BIT, 8, 16, 2, shortcut, prelus=1)
    half = norm(nnf.prelu(conv(block.conv1, sign(maps), stride=2, padding=1), torch.tensor(0.25))) + shortcut(maps)
    whole = norm(nnf.prelu(conv(block.conv2, sign(half), padding=1), torch.tensor(0.25))) + half
    torch.testing.assert_close(block(maps), whole)


def test_reactnets_block_shifts_before_and_after_its_prelu(maps: Tensor) -> None:
    block = RPReLUBlock(ONE_BIT, 8, 8, 1, nn.Identity())
    for act in (block.act1, block.act2):
        nn.init.constant_(act.before, 0.5)
        nn.init.constant_(act.after, -0.25)

    def rprelu(values: Tensor) -> Tensor:
        return nnf.prelu(values + 0.5, torch.tensor(0.25)) - 0.25

    half = rprelu(norm(conv(block.conv1, sign(maps), padding=1)) + maps)
    torch.testing.assert_close(block(maps), rprelu(norm(conv(block.conv2, sign(half), padding=1)) + half))


@pytest.mark.parametrize("name", ["resnet18", "resnet20", "vgg_small"])
def test_rprelu_is_an_option_of_nets_with_binary_inputs(name: str) -> None:
    for inputs in ("rsign", None):
        net = create_model(name, width=0.1, input_quantizer=inputs, rprelu=True)
        net(torch.randn(2, 3, 32, 32)).sum().backward()
        assert any(isinstance(part, RPReLU) for part in net.modules()) == (inputs is not None)
        assert all(parameter.grad is not None for parameter in net.parameters())


def test_one_prelu_is_shared_by_both_halves_by_default(maps: Tensor) -> None:
    for shared, count in ((True, 1), (False, 2)):
        block = PReLUBlock(ONE_BIT, 8, 8, 1, nn.Identity(), prelus=1 if shared else 2)
        assert sum(isinstance(part, nn.PReLU) for part in block.modules()) == count
        block(maps).sum().backward()
        assert all(parameter.grad is not None for parameter in block.prelu.parameters())
    sizes = [
        sum(p.numel() for p in create_model("resnet18", width=0.1, input_quantizer="sign", shared_prelu=s).parameters())
        for s in (True, False)
    ]
    assert sizes[1] - sizes[0] == 2 * (6 + 13 + 26 + 51)


def test_the_hardtanh_block_clips_after_each_sum(maps: Tensor) -> None:
    block = HardtanhBlock(ONE_BIT, 8, 16, 2, PadShortcut(8, 16))
    padded = torch.zeros(2, 16, 3, 3)
    padded[:, 4:12] = maps[:, :, ::2, ::2]
    half = (norm(conv(block.conv1, sign(maps), stride=2, padding=1)) + padded).clamp(-1, 1)
    whole = (norm(conv(block.conv2, sign(half), padding=1)) + half).clamp(-1, 1)
    torch.testing.assert_close(block(maps), whole)


def test_the_block_for_real_inputs_has_one_shortcut_around_both_convolutions(maps: Tensor) -> None:
    block = RealInputBlock(REAL_INPUTS, 8, 8, 1, nn.Identity())
    half = norm(conv(block.conv1, maps, padding=1)).relu()
    torch.testing.assert_close(block(maps), (norm(conv(block.conv2, half, padding=1)) + maps).relu())


def test_a_shuffle_unit_adds_or_concatenates_its_input(maps: Tensor) -> None:
    maps = torch.cat([maps, maps, maps], dim=1)  # 24 channels
    for stride, outputs in ((1, 24), (2, 48)):
        unit = ShuffleUnit(REAL_INPUTS, 24, outputs, stride=stride, groups=3)
        inner = outputs // 4
        reduced = norm(conv(unit.reduce, maps, groups=3)).relu()
        shuffled = reduced[:, torch.arange(inner).view(3, -1).T.flatten()]
        deep = norm(conv(unit.depthwise, shuffled, stride=stride, padding=1, groups=inner))
        wide = norm(conv(unit.expand, deep, groups=3))
        pooled = nnf.avg_pool2d(maps, 3, stride=2, padding=1)
        expected = maps + wide if stride == 1 else torch.cat([pooled, wide], dim=1)
        torch.testing.assert_close(unit(maps), expected.relu())


def parts_of(name: str, part: str, **settings: object) -> list[str]:
    with torch.device("meta"):
        model = create_model(name, **settings)  # type: ignore[arg-type]
    return [child._get_name() for child in model.get_submodule(part).children()]


def test_each_stem_is_in_the_order_of_its_network() -> None:
    assert parts_of("resnet20", "stem") == ["Conv2d", "BatchNorm2d"]
    assert parts_of("resnet20", "stem", input_quantizer="sign") == ["Conv2d", "BatchNorm2d", "Hardtanh"]
    assert parts_of("resnet18", "stem") == ["Conv2d", "BatchNorm2d", "ReLU"]
    assert parts_of("resnet18", "stem", input_quantizer="sign") == ["Conv2d", "PReLU", "BatchNorm2d"]
    assert parts_of("resnet18", "stem", input_quantizer="sign", norm_first=True) == ["Conv2d", "BatchNorm2d", "PReLU"]
    large = parts_of("imagenet_resnet18", "stem", input_quantizer="sign")
    assert large == ["Conv2d", "PReLU", "BatchNorm2d", "MaxPool2d"]


def test_a_large_networks_shortcut_averages_before_binary_inputs_and_strides_before_real_ones() -> None:
    averaging = parts_of("imagenet_resnet18", "stage2.0.shortcut", input_quantizer="sign")
    assert averaging == ["Conv2d", "BatchNorm2d", "AvgPool2d"]
    assert parts_of("imagenet_resnet18", "stage2.0.shortcut") == ["Conv2d", "BatchNorm2d"]
    assert parts_of("resnet18", "stage2.0.shortcut", input_quantizer="sign") == ["Conv2d", "BatchNorm2d"]


def test_resnet20_has_a_norm_before_its_classifier_and_a_relu_only_with_real_inputs() -> None:
    assert parts_of("resnet20", "")[-3:] == ["BatchNorm1d", "ReLU", "Linear"]
    assert parts_of("resnet20", "", input_quantizer="sign")[-3:] == ["Flatten", "BatchNorm1d", "Linear"]


def test_vgg_has_dropout_after_hidden_linear_layers_but_never_before_a_sign() -> None:
    tail = ["BinaryLinear", "ReLU", "Dropout", "BinaryLinear", "ReLU", "Dropout", "Linear"]
    assert parts_of("vgg16", "")[-7:] == tail
    signed = ["BinaryLinear", "Hardtanh", "BinaryLinear", "Hardtanh", "Dropout", "Linear"]
    assert parts_of("vgg16", "", input_quantizer="sign")[-6:] == signed


def test_inception_maps_have_the_sizes_of_the_architecture() -> None:
    with torch.device("meta"):
        model = create_model("inception_v3", num_classes=100)
        images, sizes = torch.empty(2, 3, 32, 32), {}
        for name, part in model.named_children():
            images = part(images)
            sizes[name] = tuple(images.shape[1:])
    assert sizes["stem"] == (192, 30, 30)
    assert [sizes[name] for name in ("a1", "a2", "a3")] == [(256, 30, 30), (288, 30, 30), (288, 30, 30)]
    assert [sizes[name] for name in ("b", "c1", "c4", "d")] == [(768, 14, 14)] * 3 + [(1280, 6, 6)]
    assert [sizes[name] for name in ("e1", "e2", "head")] == [(2048, 6, 6), (2048, 6, 6), (100,)]


def randomize_shifts_(model: nn.Module) -> None:
    """Draw the parameters that start at 0."""
    for part in model.modules():
        for parameter in part.parameters(recurse=False) if isinstance(part, RPReLU | RSign) else ():
            nn.init.uniform_(parameter, -0.5, 0.5)


@pytest.mark.parametrize("kind", FUSED)
def test_fused_blocks_have_the_same_output_and_gradients(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    torch.manual_seed(0)
    make = functools.partial(FUSED[kind], 8, 8, 1, nn.Identity())
    stem = {"conv": nn.Conv2d(8, 8, 1), "prelu": nn.PReLU(8), "norm": nn.BatchNorm2d(8)}
    rows = {
        "stem": blocks.ConvNorm(OrderedDict(stem)),
        "stage": nn.Sequential(make(), make(), make()),
        "relu": nn.ReLU(),
        "last": blocks.ConvNorm(OrderedDict(conv=nn.Conv2d(8, 8, 1), norm=nn.BatchNorm2d(8))),
    }
    plain = blocks.FusedClassifier(rows).double()
    randomize_shifts_(plain)
    fused, images = copy.deepcopy(plain), torch.randn(4, 8, 5, 5, dtype=torch.float64)
    weights = torch.arange(800, dtype=torch.float64).view(4, 8, 5, 5).sin()
    (plain(images) * weights).sum().backward()
    monkeypatch.setattr(blocks, "can_fuse", lambda *_: True)  # says so itself on a GPU only
    (fused(images) * weights).sum().backward()
    for (name, mine), theirs in zip(plain.named_parameters(), fused.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, msg=name)
    for (name, mine), theirs in zip(plain.named_buffers(), fused.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, msg=name)
    torch.testing.assert_close(plain(images), fused(images))


@pytest.mark.parametrize(
    ("name", "width", "norms"), [("resnet18", 0.125, 16 + 3 + 1), ("resnet20", 0.5, 18 + 1), ("vgg_small", 0.125, 5)]
)
def test_nets_with_rprelu_have_the_same_output_and_gradients_fused(
    name: str, width: float, norms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    settings = {"width": width, "num_classes": 3, "image_size": 16, "input_quantizer": "rsign", "rprelu": True}
    plain = create_model(name, **settings).double()
    randomize_shifts_(plain)
    twin, images, found = copy.deepcopy(plain), torch.randn(4, 3, 16, 16, dtype=torch.float64), []
    for net in (plain, twin):
        calls: list[Tensor] = []
        with monkeypatch.context() as patch:
            for each in ("norm_and_add", "conv_norm_and_add"):
                run = getattr(blocks, each)
                count = lambda *given, calls=calls, run=run, **options: calls.append(given) or run(*given, **options)  # noqa: E731
                patch.setattr(blocks, each, count)
            outputs = net(images)
        found.append((outputs, torch.autograd.grad(outputs.square().sum(), list(net.parameters())), [*net.buffers()]))
        assert len(calls) == (norms if net is twin else 0)
        monkeypatch.setattr(blocks, "can_fuse", lambda *_: True)  # says so itself on a GPU only
    torch.testing.assert_close(*found)


def test_a_fused_block_keeps_the_outputs_of_its_convolutions_and_two_bits_of_their_inputs() -> None:
    block, kept = PReLUBlock(ONE_BIT, 16, 16, 1, nn.Identity(), prelus=1), []
    inputs = torch.randn(4, 16, 5, 5).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        block.forward_fused(block.forward_fused(blocks.Activations(inputs), block.conv1), block.conv1)
    weights = 4 * [(torch.float32, block.conv1.weight.numel())]
    bits = (2 * 4 + 1) * [(torch.uint8, inputs.numel() // 8)]  # the last signs are read by no convolution here
    assert large(kept) == sorted(map(str, 4 * [(torch.float32, inputs.numel())] + weights + bits))


def test_a_fused_block_with_rprelu_keeps_sums_and_shortcuts_and_one_bit_of_the_inputs() -> None:
    block, kept = RPReLUBlock(SHIFTED, 16, 16, 1, nn.Identity()), []
    inputs = torch.randn(4, 16, 5, 5).requires_grad_()
    bits = SignBits(torch.zeros(100, 2, dtype=torch.uint8), BitLayout(tuple(inputs.shape), channels_last=True))
    first = blocks.Activations(inputs, (torch.ones_like(inputs), bits))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        block.forward_fused(block.forward_fused(first, block.conv1), block.conv1)
    weights = 4 * [(torch.float32, block.conv1.weight.numel())]
    sums_and_shortcuts, packed = 8 * [(torch.float32, inputs.numel())], 4 * [(torch.uint8, inputs.numel() // 8)]
    assert large(kept) == sorted(map(str, sums_and_shortcuts + weights + packed))


def large(kept: list[Tensor]) -> list[str]:
    """Return dtype and number of values of the large tensors, each once."""
    sizes = {tensor.data_ptr(): (tensor.dtype, tensor.numel()) for tensor in kept if tensor.numel() >= 200}
    return sorted(map(str, sizes.values()))


def small_resnet(rprelu: bool = False) -> nn.Module:
    torch.manual_seed(0)
    inputs = "rsign" if rprelu else "sign"
    net = create_model("resnet18", width=0.125, num_classes=3, input_quantizer=inputs, rprelu=rprelu)
    randomize_shifts_(net)
    return net


@pytest.mark.parametrize(("rprelu", "most"), [(False, 0.45), (True, 0.7)])
def test_a_net_that_recomputes_its_convolutions_keeps_bits_and_has_the_same_gradients(
    rprelu: bool, most: float
) -> None:
    plain, small = small_resnet(rprelu).double(), small_resnet(rprelu).double()
    assert recompute_convolutions_(small) == 8
    images = torch.randn(8, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    kept: dict[nn.Module, dict[int, int]] = {plain: {}, small: {}}
    for net in (plain, small):
        keep = lambda x, found=kept[net]: found.update({x.untyped_storage().data_ptr(): x.nbytes}) or x  # noqa: E731
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            outputs = net(images)
        outputs.square().sum().backward()
    for (name, mine), theirs in zip(plain.named_parameters(), small.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, msg=name)
    torch.testing.assert_close(dict(plain.named_buffers()), dict(small.named_buffers()))
    assert sum(kept[small].values()) < most * sum(kept[plain].values())
    with torch.no_grad():
        torch.testing.assert_close(small.eval()(images), plain.eval()(images))


@pytest.mark.parametrize("kind", ["two-prelus", "rprelu"])
def test_recomputed_sums_are_those_of_the_forward_pass_to_the_bit(kind: str) -> None:
    once, again = (FUSED[kind](8, 8, 1, nn.Identity()) for _ in range(2))
    again.load_state_dict(once.state_dict())
    again.recomputes_convolutions = True
    found = []
    for block in (once, again):
        inputs = torch.linspace(-2, 2, 800).view(4, 8, 5, 5).sin().mul(2).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            reals, signs, _ = block.forward_fused(blocks.Activations(inputs), block.conv1)
        wanted = [inputs, *block.parameters()]
        found.append([reals, signs[0], signs[1].packed, *torch.autograd.grad((reals + signs[0] * reals).sum(), wanted)])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*found, strict=True))


@pytest.mark.parametrize("rprelu", [False, True])
def test_a_modified_block_is_not_fused(rprelu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Louder(BinaryConv2d):
        def forward(self, input: Tensor) -> Tensor:
            return 3 * super().forward(input)

    net = small_resnet(rprelu).double()
    net.stage1[0].conv2 = Louder(8, 8, 3, padding=1, bias=False, input_quantizer=SignActivation()).double()
    if rprelu:
        net.stage2[1].act1 = nn.ReLU()
    else:
        net.stage2[1].prelu[0] = nn.ReLU()
    twin, images = copy.deepcopy(net), torch.randn(4, 3, 32, 32, dtype=torch.float64)
    expected = net(images)
    monkeypatch.setattr(blocks, "can_fuse", lambda *_: True)  # says so itself on a GPU only
    torch.testing.assert_close(twin(images), expected)
    torch.testing.assert_close(dict(twin.named_buffers()), dict(net.named_buffers()))


def test_a_batch_norm_called_twice_counts_two_batches() -> None:
    norm, twin = nn.BatchNorm2d(2), nn.BatchNorm2d(2)
    other = nn.BatchNorm2d(2, momentum=0.3)
    batches = [torch.randn(4, 2, 3, 3) for _ in range(2)]
    notes = []
    for images in batches:
        norm(images)
        notes.append(fused_norm.norm_and_add(twin, images)[2])
    notes.append(fused_norm.norm_and_add(other, images)[2])
    fused_norm.update_running_statistics(notes)
    torch.testing.assert_close(twin.state_dict(), norm.state_dict())
    assert other.num_batches_tracked == 1
    torch.testing.assert_close(other.running_mean, 0.3 * images.mean(dim=(0, 2, 3)))
