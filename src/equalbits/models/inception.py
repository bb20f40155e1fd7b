"""Inception-v3 (Szegedy et al. 2016) for small images, as the paper's CIFAR-100 experiments have it.

Its blocks run several branches of convolutions side by side and join their channels. Every convolution but the first
is binary; the classifier is real. The paper has no form with binary inputs; ours takes Hardtanh for ReLU.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from equalbits.models.image_classifier import ImageClassifier, ImageSize, ImageSpec
from equalbits.models.layer_factory import LayerFactory
from equalbits.models.registry import register_model

Kernel = int | tuple[int, int]
Step = tuple[int, Kernel] | tuple[int, Kernel, int]  # channels, kernel, and the stride where it is not 1


@register_model("inception_v3")
def inception_v3(
    layers: LayerFactory,
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: ImageSize = 32,
    dropout: float = 0.5,
) -> ImageClassifier:
    """94 convolutions in eleven blocks; no auxiliary classifier. A stride of 1 in the stem suits small images."""
    make = _Blocks(layers)
    stem = [make.unit(in_channels, 32, 3, real=True), make.unit(32, 32, 3), make.unit(32, 64, 3)]
    stem += [make.unit(64, 80, 1), make.unit(80, 192, 3, padded=False)]
    parts: dict[str, nn.Module] = {"stem": nn.Sequential(*stem)}
    parts |= {"a1": make.a(192, 32), "a2": make.a(256, 64), "a3": make.a(288, 64), "b": make.b(288)}
    parts |= {f"c{number}": make.c(768, channels) for number, channels in enumerate((128, 160, 160, 192), start=1)}
    parts |= {"d": make.d(768), "e1": make.e(1280), "e2": make.e(2048)}
    parts |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "dropout": nn.Dropout(dropout)}
    parts["head"] = layers.real_linear(2048, num_classes)
    # 9 is the smallest side that the three parts without padding leave a pixel of.
    return ImageClassifier(parts, ImageSpec(in_channels, image_size, smallest=9))


class Branches(nn.Module):
    """Parts side by side on one input; their channels are joined."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, inputs: Tensor) -> Tensor:
        """The channels of all branches, in order."""
        return torch.cat([branch(inputs) for branch in self.branches], dim=1)


class _Blocks:
    """The blocks A to E of the architecture, made of one kind of layers."""

    def __init__(self, layers: LayerFactory) -> None:
        self.layers = layers

    def unit(
        self, inputs: int, outputs: int, kernel: Kernel, *, stride: int = 1, padded: bool = True, real: bool = False
    ) -> nn.Module:
        """Convolution, norm, ReLU."""
        high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (high // 2, wide // 2) if padded else 0
        make = self.layers.real_conv2d if real else self.layers.conv2d
        conv = make(inputs, outputs, kernel, stride=stride, padding=padding, bias=False)
        parts = {"conv": conv, "norm": nn.BatchNorm2d(outputs), "act": self.layers.activation()}
        return nn.Sequential(OrderedDict(parts))

    def row(self, inputs: int, *steps: Step) -> nn.Sequential:
        """Units one after the other; one with a stride has no padding."""
        units = []
        for outputs, kernel, *stride in steps:
            units.append(self.unit(inputs, outputs, kernel, stride=stride[0] if stride else 1, padded=not stride))
            inputs = outputs
        return nn.Sequential(*units)

    def pooled(self, inputs: int, outputs: int, kernel: int) -> nn.Module:
        """An average over 3×3, then a unit."""
        return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), self.unit(inputs, outputs, kernel))

    def a(self, inputs: int, pooled: int) -> nn.Module:
        """Branches of 1×1, 5×5 and two 3×3."""
        return Branches(
            self.row(inputs, (64, 1)),
            self.row(inputs, (48, 1), (64, 5)),
            self.row(inputs, (64, 1), (96, 3), (96, 3)),
            self.pooled(inputs, pooled, 3),
        )

    def b(self, inputs: int) -> nn.Module:
        """Halves the map."""
        return Branches(
            self.row(inputs, (384, 3, 2)),
            self.row(inputs, (64, 1), (96, 3), (96, 3, 2)),
            nn.MaxPool2d(3, stride=2),
        )

    def c(self, inputs: int, inner: int) -> nn.Module:
        """7×7 taken apart into 7×1 and 1×7."""
        return Branches(
            self.row(inputs, (192, 1)),
            self.row(inputs, (inner, 1), (inner, (7, 1)), (192, (1, 7))),
            self.row(inputs, (inner, 1), (inner, (7, 1)), (inner, (1, 7)), (inner, (7, 1)), (192, (1, 7))),
            self.pooled(inputs, 192, 1),
        )

    def d(self, inputs: int) -> nn.Module:
        """Halves the map again."""
        return Branches(
            self.row(inputs, (192, 1), (320, 3, 2)),
            self.row(inputs, (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2)),
            nn.AvgPool2d(3, stride=2),
        )

    def e(self, inputs: int) -> nn.Module:
        """3×3 spread over 1×3 and 3×1 side by side."""
        return Branches(
            self.row(inputs, (320, 1)),
            nn.Sequential(self.row(inputs, (384, 1)), self._spread(384)),
            nn.Sequential(self.row(inputs, (448, 1), (384, 3)), self._spread(384)),
            self.pooled(inputs, 192, 1),
        )

    def _spread(self, channels: int) -> nn.Module:
        return Branches(self.unit(channels, channels, (1, 3)), self.unit(channels, channels, (3, 1)))
