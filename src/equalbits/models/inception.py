"""Inception-v3 (Szegedy et al. 2016) for small images, in the version of the paper's CIFAR-100 experiments.

Its blocks run several branches of convolutions in parallel and concatenate their channels. Every convolution but the
first is binary; the classifier is real. The paper has no version with binary inputs; this one uses Hardtanh instead of
ReLU.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from equalbits.models.image_classifier import ImageClassifier, ImageShape, ImageSize
from equalbits.models.layer_factory import LayerFactory
from equalbits.models.registry import register_model

Kernel = int | tuple[int, int]
ConvSpec = tuple[int, Kernel] | tuple[int, Kernel, int]  # channels, kernel, stride (default 1)


@register_model("inception_v3")
def inception_v3(
    layers: LayerFactory,
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: ImageSize = 32,
    dropout: float = 0.5,
) -> ImageClassifier:
    """Create Inception-v3: 94 convolutions, eleven blocks, a stem of stride 1, no auxiliary classifier."""
    make = _Blocks(layers)
    stem = [make.unit(in_channels, 32, 3, real=True), make.unit(32, 32, 3), make.unit(32, 64, 3)]
    stem += [make.unit(64, 80, 1), make.unit(80, 192, 3, padded=False)]
    parts: dict[str, nn.Module] = {"stem": nn.Sequential(*stem)}
    parts |= {"a1": make.a(192, 32), "a2": make.a(256, 64), "a3": make.a(288, 64), "b": make.b(288)}
    parts |= {f"c{number}": make.c(768, channels) for number, channels in enumerate((128, 160, 160, 192), start=1)}
    parts |= {"d": make.d(768), "e1": make.e(1280), "e2": make.e(2048)}
    parts |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "dropout": nn.Dropout(dropout)}
    parts["head"] = layers.real_linear(2048, num_classes)
    # Three parts have no padding: sides below 9 would leave no pixel.
    return ImageClassifier(parts, ImageShape(in_channels, image_size, smallest=9))


class Branches(nn.Module):
    """Parallel branches with one input; their channels are concatenated."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, inputs: Tensor) -> Tensor:
        """Concatenate the channels of all branches, in order."""
        return torch.cat([branch(inputs) for branch in self.branches], dim=1)


class _Blocks:
    """Creates the blocks A to E of the architecture with one layer factory."""

    def __init__(self, layers: LayerFactory) -> None:
        self.layers = layers

    def unit(
        self, inputs: int, outputs: int, kernel: Kernel, *, stride: int = 1, padded: bool = True, real: bool = False
    ) -> nn.Module:
        """Create convolution, norm and activation."""
        high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (high // 2, wide // 2) if padded else 0
        make = self.layers.real_conv2d if real else self.layers.conv2d
        conv = make(inputs, outputs, kernel, stride=stride, padding=padding, bias=False)
        parts = {"conv": conv, "norm": nn.BatchNorm2d(outputs), "act": self.layers.activation()}
        return nn.Sequential(OrderedDict(parts))

    def sequence(self, inputs: int, *convs: ConvSpec) -> nn.Sequential:
        """Create units in sequence; a unit with a stride has no padding."""
        units = []
        for outputs, kernel, *stride in convs:
            units.append(self.unit(inputs, outputs, kernel, stride=stride[0] if stride else 1, padded=not stride))
            inputs = outputs
        return nn.Sequential(*units)

    def pooled(self, inputs: int, outputs: int, kernel: int) -> nn.Module:
        """Create a 3×3 average pool and a unit."""
        return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), self.unit(inputs, outputs, kernel))

    def a(self, inputs: int, pooled: int) -> nn.Module:
        """Create branches of 1×1, 5×5 and two 3×3 convolutions."""
        return Branches(
            self.sequence(inputs, (64, 1)),
            self.sequence(inputs, (48, 1), (64, 5)),
            self.sequence(inputs, (64, 1), (96, 3), (96, 3)),
            self.pooled(inputs, pooled, 3),
        )

    def b(self, inputs: int) -> nn.Module:
        """Create a block that halves the map."""
        return Branches(
            self.sequence(inputs, (384, 3, 2)),
            self.sequence(inputs, (64, 1), (96, 3), (96, 3, 2)),
            nn.MaxPool2d(3, stride=2),
        )

    def c(self, inputs: int, inner: int) -> nn.Module:
        """Create branches with 7×7 convolutions factorized into 7×1 and 1×7."""
        return Branches(
            self.sequence(inputs, (192, 1)),
            self.sequence(inputs, (inner, 1), (inner, (7, 1)), (192, (1, 7))),
            self.sequence(inputs, (inner, 1), (inner, (7, 1)), (inner, (1, 7)), (inner, (7, 1)), (192, (1, 7))),
            self.pooled(inputs, 192, 1),
        )

    def d(self, inputs: int) -> nn.Module:
        """Create a block that halves the map again."""
        return Branches(
            self.sequence(inputs, (192, 1), (320, 3, 2)),
            self.sequence(inputs, (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2)),
            nn.AvgPool2d(3, stride=2),
        )

    def e(self, inputs: int) -> nn.Module:
        """Create branches with 3×3 convolutions split into parallel 1×3 and 3×1."""
        return Branches(
            self.sequence(inputs, (320, 1)),
            nn.Sequential(self.sequence(inputs, (384, 1)), self._split(384)),
            nn.Sequential(self.sequence(inputs, (448, 1), (384, 3)), self._split(384)),
            self.pooled(inputs, 192, 1),
        )

    def _split(self, channels: int) -> nn.Module:
        return Branches(self.unit(channels, channels, (1, 3)), self.unit(channels, channels, (3, 1)))
