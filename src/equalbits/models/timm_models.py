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
    return partial(_create, timm_creator(name))


def timm_creator(name: str) -> Callable[..., nn.Module]:
    """Return timm's function that creates its network of this name; raise where there is none."""
    try:
        import timm
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision of another torch
        raise ValueError(f"{name} needs timm ({error}): {install_hint('timm')}") from None
    short = name.removeprefix(PREFIX)
    if short not in timm.list_models():
        raise ValueError(f"timm has no model {short!r}: timm.list_models() lists them")
    return partial(timm.create_model, short)


def _create(
    create: Callable[..., nn.Module],
    layers: LayerFactory,
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: int = 224,
) -> nn.Module:
    """Create a network of timm with new weights, and make its inner layers binary."""
    if layers.init != "torch":
        raise ValueError(
            f"model.init={layers.init}: networks of timm have their own initialization: add --set model.init=torch"
        )
    try:
        model = create(num_classes=num_classes, in_chans=in_channels, img_size=image_size)
    except TypeError:  # convolutional networks take any size
        model = create(num_classes=num_classes, in_chans=in_channels)
    if layers.weight_quantizer is None:
        if layers.input_quantizer is not None:
            raise ValueError("binary inputs need binary weights; set model.weight_quantizer")
        return model
    binarize_(model, layers.weight_quantizer, input_quantizer=layers.input_quantizer)
    if layers.input_quantizer is not None:
        adapt_for_binary_inputs_(model)
    return model
