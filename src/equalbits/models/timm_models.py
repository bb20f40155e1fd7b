"""Networks of timm by name, as ``timm:resnet18``: real ones whose inner layers are made binary."""

from collections.abc import Callable
from functools import partial

from torch import nn

from equalbits._extras import install_hint
from equalbits.models.layer_factory import LayerFactory
from equalbits.nn import adapt_for_binary_inputs_, binarize_

PREFIX = "timm:"


def timm_builder(name: str) -> Callable[..., nn.Module]:
    """Return the function that creates the network ``timm:NAME``; raise where timm has none of this name."""
    try:
        from timm import list_models
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision of another torch
        raise ValueError(f"{name} needs timm ({error}): {install_hint('timm')}") from None
    if name.removeprefix(PREFIX) not in list_models():
        raise ValueError(f"timm has no model {name.removeprefix(PREFIX)!r}: timm.list_models() lists them")
    return partial(_create, name=name.removeprefix(PREFIX))


def _create(
    layers: LayerFactory, num_classes: int, *, name: str = "", in_channels: int = 3, image_size: int = 224
) -> nn.Module:
    """Create a network of timm with new weights, and make its inner layers binary."""
    from timm import create_model

    if layers.init != "torch":
        raise ValueError(
            f"model.init={layers.init}: networks of timm have their own initialization: add --set model.init=torch"
        )
    try:
        model: nn.Module = create_model(name, num_classes=num_classes, in_chans=in_channels, img_size=image_size)
    except TypeError:  # convolutional networks take any size
        model = create_model(name, num_classes=num_classes, in_chans=in_channels)
    if layers.weight_quantizer is None:
        if layers.input_quantizer is not None:
            raise ValueError(f"timm:{name}: binary inputs need binary weights; set model.weight_quantizer")
        return model
    binarize_(model, layers.weight_quantizer, input_quantizer=layers.input_quantizer)
    if layers.input_quantizer is not None:
        adapt_for_binary_inputs_(model)
    return model
