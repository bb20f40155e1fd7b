"""Registry of networks by name: :func:`create_model`, :func:`list_models`, :func:`register_model`."""

from collections.abc import Callable
from fnmatch import filter as matching
from typing import Any, TypeVar

from torch import nn

from equalbits._text import unknown_name
from equalbits.models.layer_factory import LayerFactory
from equalbits.models.timm_models import PREFIX, timm_builder
from equalbits.nn import WeightQuantizer, input_quantizer_by_name, quantizer_by_name, settings_of

#: Creates a network from a layer factory and the number of classes; its keyword arguments are the options.
Builder = TypeVar("Builder", bound=Callable[..., nn.Module])

_BUILDERS: dict[str, Callable[..., nn.Module]] = {}


def create_model(
    name: str,
    *,
    num_classes: int = 10,
    weight_quantizer: WeightQuantizer | str | None = "bihalf",
    input_quantizer: nn.Module | str | None = None,
    init: str = "torch",
    **options: Any,
) -> nn.Module:
    """Create the network ``name``, one of :func:`list_models`, or one of timm as in ``timm:resnet18``.

    ``weight_quantizer`` is a quantizer, a name like ``"bihalf:p_pos=0.25"``, or None for real weights.
    ``input_quantizer`` likewise quantizes the inputs of the binary layers, and selects the blocks for binary inputs;
    None keeps inputs real. ``init="kaiming"`` initializes every convolution and linear layer as Kaiming normal instead
    of torch's default. Every network has the options ``in_channels`` and ``image_size``; :func:`model_options` lists
    the others.

    >>> model = create_model("conv2", num_classes=10, weight_quantizer="bihalf", in_channels=1, image_size=28)
    >>> model.conv1
    BinaryConv2d(
      1, 64, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False
      (weight_quantizer): BiHalf(p_pos=0.5)
    )
    >>> create_model("conv3")
    Traceback (most recent call last):
    ValueError: model 'conv3' is not known: did you mean 'conv2'? There are: 'conv2', 'conv4', ...
    """
    known = model_options(name)
    for option in options:
        if option not in known:
            raise unknown_name(f"model {name!r}: option", option, known)
    if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 1:
        raise ValueError(f"num_classes={num_classes!r}: it must be an integer of at least 1")
    weights = quantizer_by_name(weight_quantizer) if isinstance(weight_quantizer, str) else weight_quantizer
    inputs = input_quantizer_by_name(input_quantizer) if isinstance(input_quantizer, str) else input_quantizer
    if not isinstance(weights, WeightQuantizer | None):
        raise ValueError(f"weight_quantizer={weights!r}: pass a quantizer like BiHalf(), a name like 'bihalf', or None")
    if not isinstance(inputs, nn.Module | None):
        raise ValueError(f"input_quantizer={inputs!r}: pass one like SignActivation(), a name like 'sign', or None")
    return model_builder(name)(LayerFactory(weights, inputs, init), num_classes, **options)


def list_models(pattern: str = "*") -> list[str]:
    """Return the sorted names that match ``pattern``.

    >>> list_models("conv*")
    ['conv2', 'conv4', 'conv6', 'conv8']
    """
    return sorted(matching(_BUILDERS, pattern))


def model_options(name: str) -> dict[str, Any]:
    """Return the options of a network with their defaults.

    >>> model_options("conv2")
    {'in_channels': 3, 'image_size': 32, 'width': 1.0, 'batch_norm': False}
    """
    return dict(list(settings_of(model_builder(name)).items())[2:])  # without layers and num_classes


def model_builder(name: str) -> Callable[..., nn.Module]:
    """Return the function that creates the network ``name``."""
    if isinstance(name, str) and name.startswith(PREFIX):
        return timm_builder(name)
    if name not in _BUILDERS:
        raise unknown_name("model", name, _BUILDERS)
    return _BUILDERS[name]


def register_model(name: str) -> Callable[[Builder], Builder]:
    """Register a custom network under a new name, as a decorator of the function that creates it.

    The function takes a :class:`~equalbits.models.LayerFactory`, the number of classes, and options with defaults::

        @register_model("tiny")
        def tiny(layers, num_classes, *, in_channels=3, image_size=32):
            return nn.Sequential(layers.real_conv2d(in_channels, 8, 3), nn.ReLU(), layers.conv2d(8, 8, 3), ...)
    """
    if not isinstance(name, str):
        raise ValueError(f"{name!r} is not a name: write @register_model('my-net') above the function")
    if name in _BUILDERS:
        raise ValueError(f"model {name!r} is taken: choose another name")

    def add(builder: Builder) -> Builder:
        _BUILDERS[name] = builder
        return builder

    return add
