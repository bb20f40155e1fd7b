"""Residual networks: IR-Net's ResNet-20, and ResNet-18 and ResNet-34 for small images and for ImageNet.

The first, last and shortcut layers are real; every 3×3 convolution inside a block is binary. Networks with binary
inputs have other blocks (:mod:`equalbits.models.residual_blocks`) and another stem.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import nn

from equalbits.models.image_classifier import ImageClassifier, ImageShape, ImageSize, scale_channels
from equalbits.models.layer_factory import LayerFactory
from equalbits.models.pooling import AveragedShortcut, StemPool
from equalbits.models.registry import register_model
from equalbits.models.residual_blocks import (
    ConvNorm,
    FusedClassifier,
    HardtanhBlock,
    PadShortcut,
    PReLUBlock,
    RealInputBlock,
    RPReLUBlock,
)
from equalbits.nn import RPReLU

_CHANNELS = (64, 128, 256, 512)  # of each stage
_DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}

#: Creates a block from its input channels, output channels, stride and shortcut.
MakeBlock = Callable[[int, int, int, nn.Module], nn.Module]
#: Creates a shortcut that halves the map, from its input and output channels.
MakeShortcut = Callable[[int, int], nn.Module]


@register_model("resnet20")
def resnet20(
    layers: LayerFactory,
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: ImageSize = 32,
    width: float = 1.0,
    rprelu: bool = False,
) -> ImageClassifier:
    """Create IR-Net's ResNet-20: shortcuts without weights, and a batch norm before the classifier.

    IR-Net initializes it with ``init="kaiming"``. ``rprelu`` replaces Hardtanh after binary convolutions by ReActNet's
    activation.
    """
    channels = [scale_channels(count, width) for count in (16, 32, 64)]
    stem: dict[str, nn.Module] = {
        "conv": layers.real_conv2d(in_channels, channels[0], 3, padding=1, bias=False),
        "norm": nn.BatchNorm2d(channels[0]),
    }
    head: dict[str, nn.Module] = {"head_norm": nn.BatchNorm1d(channels[-1])}
    if layers.binary_inputs:
        stem |= {"act": RPReLU(channels[0])} if rprelu else {"hardtanh": nn.Hardtanh()}
    else:
        head["head_relu"] = nn.ReLU()
    binary_block = RPReLUBlock if rprelu else HardtanhBlock
    block = partial(binary_block if layers.binary_inputs else RealInputBlock, layers)
    head["head"] = layers.real_linear(channels[-1], num_classes)
    stages = _stages(block, PadShortcut, channels, (3, 3, 3))
    return _network(stem, stages, head, ImageShape(in_channels, image_size))


def resnet(
    depth: int,
    layers: LayerFactory,
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: ImageSize = 32,
    width: float = 1.0,
    shared_prelu: bool = True,
    norm_first: bool = False,
    rprelu: bool = False,
) -> ImageClassifier:
    """Create ResNet-18 or 34 for small images: a 3×3 stem, no pool, shortcuts of a real 1×1 convolution and a norm.

    Three options apply to binary inputs: ``shared_prelu`` (see :class:`PReLUBlock`); ``norm_first``, which puts the
    stem's norm before its PReLU, as in the released CIFAR-10 network but not in the CIFAR-100 ones; and ``rprelu``,
    which replaces the blocks by ReActNet's (:class:`RPReLUBlock`).
    """
    channels = [scale_channels(count, width) for count in _CHANNELS]
    conv = layers.real_conv2d(in_channels, channels[0], 3, padding=1, bias=False)
    stem = _stem(layers, conv, norm_first=norm_first or rprelu)
    block = _block(layers, shared_prelu=shared_prelu, rprelu=rprelu)
    stages = _stages(block, partial(_strided_shortcut, layers), channels, _DEPTHS[depth])
    head = {"head": layers.real_linear(channels[-1], num_classes)}
    return _network(stem, stages, head, ImageShape(in_channels, image_size))


def imagenet_resnet(
    depth: int,
    layers: LayerFactory,
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: ImageSize = 224,
    width: float = 1.0,
    shared_prelu: bool = True,
) -> ImageClassifier:
    """Create ResNet-18 or 34 for large images: a 7×7 stem of stride 2 and a max pool, then as :func:`resnet`.

    With binary inputs the shortcuts downsample by an average pool, which uses every pixel; image sides must then be
    multiples of 32.
    """
    images = ImageShape(in_channels, image_size, multiple_of=32 if layers.binary_inputs else 1)
    channels = [scale_channels(count, width) for count in _CHANNELS]
    conv = layers.real_conv2d(in_channels, channels[0], 7, stride=2, padding=3, bias=False)
    stem = {**_stem(layers, conv), "pool": StemPool()}
    shortcut = partial(_averaging_shortcut if layers.binary_inputs else _strided_shortcut, layers)
    stages = _stages(_block(layers, shared_prelu=shared_prelu), shortcut, channels, _DEPTHS[depth])
    head = {"head": layers.real_linear(channels[-1], num_classes)}
    return _network(stem, stages, head, images)


def _network(
    stem: Mapping[str, nn.Module], stages: Mapping[str, nn.Module], head: Mapping[str, nn.Module], images: ImageShape
) -> ImageClassifier:
    kind = ConvNorm if list(stem) == ["conv", "prelu", "norm"] else nn.Sequential
    average = {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    return FusedClassifier({"stem": kind(OrderedDict(stem)), **stages, **average, **head}, images)


def _stages(
    block: MakeBlock, shortcut: MakeShortcut, channels: Sequence[int], depths: Sequence[int]
) -> dict[str, nn.Module]:
    """Create one stage of ``depths`` blocks per entry of ``channels``; each stage but the first halves the map."""
    stages: dict[str, nn.Module] = {}
    inputs = channels[0]
    for number, (outputs, depth) in enumerate(zip(channels, depths, strict=True), start=1):
        stride, path = (1, nn.Identity()) if number == 1 else (2, shortcut(inputs, outputs))
        blocks = [block(inputs, outputs, stride, path)]
        blocks += [block(outputs, outputs, 1, nn.Identity()) for _ in range(depth - 1)]
        stages[f"stage{number}"] = nn.Sequential(*blocks)
        inputs = outputs
    return stages


def _stem(layers: LayerFactory, conv: nn.Conv2d, *, norm_first: bool = False) -> dict[str, nn.Module]:
    norm = nn.BatchNorm2d(conv.out_channels)
    if not layers.binary_inputs:
        return {"conv": conv, "norm": norm, "relu": nn.ReLU()}
    prelu = nn.PReLU(conv.out_channels)
    return {"conv": conv, "norm": norm, "prelu": prelu} if norm_first else {"conv": conv, "prelu": prelu, "norm": norm}


def _block(layers: LayerFactory, *, shared_prelu: bool, rprelu: bool = False) -> MakeBlock:
    if layers.binary_inputs and rprelu:
        return partial(RPReLUBlock, layers)
    if layers.binary_inputs:
        return partial(PReLUBlock, layers, prelus=1 if shared_prelu else 2)
    return partial(RealInputBlock, layers)


def _strided_shortcut(layers: LayerFactory, inputs: int, outputs: int) -> nn.Module:
    conv = layers.real_conv2d(inputs, outputs, 1, stride=2, bias=False)
    return ConvNorm(OrderedDict(conv=conv, norm=nn.BatchNorm2d(outputs)))


def _averaging_shortcut(layers: LayerFactory, inputs: int, outputs: int) -> nn.Module:
    conv = layers.real_conv2d(inputs, outputs, 1, bias=False)
    return AveragedShortcut(OrderedDict(conv=conv, norm=nn.BatchNorm2d(outputs), pool=nn.AvgPool2d(2)))


for _depth in _DEPTHS:
    register_model(f"resnet{_depth}")(partial(resnet, _depth))
    register_model(f"imagenet_resnet{_depth}")(partial(imagenet_resnet, _depth))
