"""Conv2, Conv4, Conv6 and Conv8: the paper's shallow networks, every layer binary.

Pairs of 3×3 convolutions, a max pool after each pair, three linear layers. There is no bias and no batch norm: only the
scale ``√(2/D)`` keeps activations near unit variance. The networks come from the lottery-ticket literature (Frankle &
Carbin 2019; Ramanujan et al. 2020), where the linear layers are 1×1 convolutions of the same size.
"""

import math
from functools import partial

from torch import nn

from equalbits.models.image_classifier import ImageClassifier, ImageShape, ImageSize, scale_channels
from equalbits.models.layer_factory import LayerFactory
from equalbits.models.registry import register_model

_CHANNELS = (64, 128, 256, 512)  # of each pair of convolutions
_HIDDEN = 256


def convnet(
    pairs: int,
    layers: LayerFactory,
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: ImageSize = 32,
    width: float = 1.0,
    batch_norm: bool = False,
) -> ImageClassifier:
    """Create a network with ``pairs`` pairs of convolutions: one for Conv2, four for Conv8.

    ``batch_norm`` adds a batch norm after each layer but the last: the control for shares of +1 other than one half,
    which shift every mean. With binary inputs the order is convolution, pool, batch norm (always present, not affine),
    and the sign of the next layer replaces the ReLU.
    """
    images = ImageShape(in_channels, image_size, fixed=True, smallest=2**pairs)
    affine = not layers.binary_inputs
    norms = batch_norm or layers.binary_inputs
    parts: dict[str, nn.Module] = {}
    features = in_channels
    for number in range(1, 2 * pairs + 1):
        inputs, features = features, scale_channels(_CHANNELS[(number - 1) // 2], width)
        parts[f"conv{number}"] = layers.conv2d(inputs, features, 3, padding=1, bias=False, real_input=number == 1)
        norm = nn.BatchNorm2d(features, affine=affine) if norms else None
        parts |= _after_layer(f"conv{number}", norm, relu=not layers.binary_inputs, pool=number % 2 == 0)
    parts["flatten"] = nn.Flatten()
    features *= math.prod(side >> pairs for side in images.sides)
    for number in (1, 2):
        inputs, features = features, scale_channels(_HIDDEN, width)
        parts[f"fc{number}"] = layers.linear(inputs, features, bias=False)
        norm_1d = nn.BatchNorm1d(features, affine=affine) if norms else None
        parts |= _after_layer(f"fc{number}", norm_1d, relu=not layers.binary_inputs)
    parts["fc3"] = layers.linear(features, num_classes, bias=False)
    return ImageClassifier(parts, images)


def _after_layer(name: str, norm: nn.Module | None, *, relu: bool, pool: bool = False) -> dict[str, nn.Module]:
    """Return the modules after a layer: norm, pool, ReLU; pool, norm if the next sign replaces the ReLU.

    ReLU and max pool commute in value and in gradient. After the pool, the ReLU has a quarter of the work.
    """
    normed = {f"{name}_norm": norm} if norm is not None else {}
    pooled = {f"{name}_pool": nn.MaxPool2d(2)} if pool else {}
    return {**normed, **pooled, f"{name}_relu": nn.ReLU()} if relu else {**pooled, **normed}


for _pairs in (1, 2, 3, 4):
    register_model(f"conv{2 * _pairs}")(partial(convnet, _pairs))
