"""VGG-16 with batch norm (Simonyan & Zisserman 2015), as in the paper's CIFAR-100 experiments, and VGG-small."""

from torch import nn

from equalbits.models.image_classifier import ImageClassifier, ImageShape, ImageSize, scale_channels
from equalbits.models.layer_factory import LayerFactory
from equalbits.models.registry import register_model
from equalbits.models.residual_blocks import FusedClassifier
from equalbits.nn import RPReLU

_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))  # a max pool after each stage
_HIDDEN = 4096
_SMALL = (128, 128, 256, 256, 512, 512)  # a max pool after every second one


@register_model("vgg16")
def vgg16(
    layers: LayerFactory,
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: ImageSize = 32,
    width: float = 1.0,
    dropout: float = 0.5,
) -> ImageClassifier:
    """Create VGG-16: 13 convolutions and 3 linear layers; the first convolution and the last linear layer are real.

    The hidden linear layers (1×1 convolutions on a 1×1 map in the original) have no batch norm, so the scale matters
    there. Pooling rounds odd sides up, so that small images such as 28×28 are possible.

    The paper has no version with binary inputs. This one uses Hardtanh instead of ReLU, and no dropout before a sign,
    which would turn a dropped value into +1.
    """
    images = ImageShape(in_channels, image_size, fixed=True)
    sides = images.sides
    parts: dict[str, nn.Module] = {}
    features = in_channels
    for stage, channels in enumerate(_STAGES, start=1):
        for number, count in enumerate(channels, start=1):
            inputs, features = features, scale_channels(count, width)
            first = not parts
            make = layers.real_conv2d if first else layers.conv2d
            parts[f"conv{stage}_{number}"] = make(inputs, features, 3, padding=1, bias=first)
            parts[f"norm{stage}_{number}"] = nn.BatchNorm2d(features)
            parts[f"act{stage}_{number}"] = layers.activation()
        parts[f"pool{stage}"] = nn.MaxPool2d(2, ceil_mode=any(side % 2 for side in sides))
        sides = ((sides[0] + 1) // 2, (sides[1] + 1) // 2)
    parts |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    for number in (1, 2):
        inputs, features = features, scale_channels(_HIDDEN, width)
        parts[f"fc{number}"] = layers.linear(inputs, features, bias=False)
        parts[f"fc{number}_act"] = layers.activation()
        if number == 2 or not layers.binary_inputs:
            parts[f"fc{number}_dropout"] = nn.Dropout(dropout)
    return ImageClassifier({**parts, "head": layers.real_linear(features, num_classes)}, images)


@register_model("vgg_small")
def vgg_small(
    layers: LayerFactory,
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: ImageSize = 32,
    width: float = 1.0,
    rprelu: bool = False,
) -> ImageClassifier:
    """Create VGG-small, as BNN papers have it for CIFAR-10: six convolutions and one linear layer.

    The first convolution and the linear layer are real. After a convolution come pool, norm and activation: ReLU, or
    Hardtanh for binary inputs, which ``rprelu`` replaces by ReActNet's activation.
    """
    images = ImageShape(in_channels, image_size, fixed=True)
    rows, columns = images.sides
    parts: dict[str, nn.Module] = {}
    features = in_channels
    for number, count in enumerate(_SMALL, start=1):
        inputs, features = features, scale_channels(count, width)
        make = layers.real_conv2d if number == 1 else layers.conv2d
        parts[f"conv{number}"] = make(inputs, features, 3, padding=1, bias=False)
        if number % 2 == 0:
            parts[f"pool{number}"] = nn.MaxPool2d(2, ceil_mode=bool(rows % 2 or columns % 2))
            rows, columns = (rows + 1) // 2, (columns + 1) // 2
        parts[f"norm{number}"] = nn.BatchNorm2d(features)
        parts[f"act{number}"] = RPReLU(features) if rprelu and layers.binary_inputs else layers.activation()
    parts["flatten"] = nn.Flatten()
    return FusedClassifier({**parts, "head": layers.real_linear(features * rows * columns, num_classes)}, images)
