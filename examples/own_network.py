"""Register your own network under a name, for every command that takes a recipe.

    python examples/own_network.py train fashion-conv2 --set model.name=tiny --out runs/tiny
    python examples/own_network.py compare fashion-conv2 --set model.name=tiny --methods sign,bihalf

Run every command that builds the network through this file: evaluate, inspect and pack, too. A packed file does not
need it.
"""

import sys

from torch import nn

import equalbits as eb
from equalbits.cli import main
from equalbits.models import LayerFactory


@eb.register_model("tiny")
def tiny(
    layers: LayerFactory, num_classes: int, *, in_channels: int = 3, image_size: int = 32, width: int = 16
) -> nn.Module:
    """Create four layers, of which the recipe's method makes two binary."""
    return nn.Sequential(
        layers.real_conv2d(in_channels, width, 3, padding=1),
        nn.BatchNorm2d(width),
        layers.conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.BatchNorm2d(2 * width),
        layers.conv2d(2 * width, 2 * width, 3, stride=2, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        layers.real_linear(2 * width, num_classes),
    )


if __name__ == "__main__":
    sys.exit(main())
