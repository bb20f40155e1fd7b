"""ShuffleNet (Zhang et al. 2018) with three groups, in the version of the paper's CIFAR-100 experiments.

Every convolution inside a unit is binary, with real biases. Its filters can be as small as 9 connections (depthwise).
The stem and the classifier are real. The paper has no version with binary inputs; this one uses Hardtanh instead of
ReLU.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from equalbits.models.image_classifier import ImageClassifier, ImageShape, ImageSize
from equalbits.models.layer_factory import LayerFactory
from equalbits.models.registry import register_model

_GROUPS = 3
_STEM = 24
_STAGES = ((240, 4), (480, 8), (960, 4))  # channels, units


@register_model("shufflenet")
def shufflenet(
    layers: LayerFactory, num_classes: int, *, in_channels: int = 3, image_size: ImageSize = 32
) -> ImageClassifier:
    """Create stages of 4, 8 and 4 units; each stage halves the map. The first 1×1 of units in stage 1 has no groups."""
    stem: dict[str, nn.Module] = {
        "conv": layers.real_conv2d(in_channels, _STEM, 3, padding=1),
        "norm": nn.BatchNorm2d(_STEM),
        "act": layers.activation(),
    }
    parts: dict[str, nn.Module] = {"stem": nn.Sequential(OrderedDict(stem))}
    inputs = _STEM
    for number, (outputs, depth) in enumerate(_STAGES, start=1):
        groups = 1 if number == 1 else _GROUPS
        units = [ShuffleUnit(layers, inputs, outputs, stride=2, groups=groups)]
        units += [ShuffleUnit(layers, outputs, outputs, stride=1, groups=groups) for _ in range(depth - 1)]
        parts[f"stage{number}"] = nn.Sequential(*units)
        inputs = outputs
    parts |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    parts["head"] = layers.real_linear(inputs, num_classes)
    return ImageClassifier(parts, ImageShape(in_channels, image_size))


class ShuffleUnit(nn.Module):
    """1×1 to a quarter of the channels, shuffle, depthwise 3×3, 1×1; then added to the input, or concatenated."""

    def __init__(self, layers: LayerFactory, inputs: int, outputs: int, *, stride: int, groups: int) -> None:
        super().__init__()
        inner = outputs // 4
        added = outputs if stride == 1 else outputs - inputs  # with a stride the pooled input is concatenated
        self.reduce = layers.conv2d(inputs, inner, 1, groups=groups)
        self.norm1 = nn.BatchNorm2d(inner)
        self.shuffle = nn.ChannelShuffle(_GROUPS)
        self.depthwise = layers.conv2d(inner, inner, 3, stride=stride, padding=1, groups=inner)
        self.norm2 = nn.BatchNorm2d(inner)
        self.expand = layers.conv2d(inner, added, 1, groups=_GROUPS)
        self.norm3 = nn.BatchNorm2d(added)
        self.act = layers.activation()
        self.pool = nn.AvgPool2d(3, stride=2, padding=1) if stride == 2 else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the unit."""
        inner = self.shuffle(self.act(self.norm1(self.reduce(inputs))))
        inner = self.norm3(self.expand(self.norm2(self.depthwise(inner))))
        joined = inputs + inner if self.pool is None else torch.cat([self.pool(inputs), inner], dim=1)
        outputs: Tensor = self.act(joined)
        return outputs
