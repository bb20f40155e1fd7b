"""The moments of training at which a method may act: before an epoch, in the loss, after a step.

A quantizer says what it does then in :meth:`~equalbits.nn.WeightQuantizer.at_epoch_`,
:meth:`~equalbits.nn.WeightQuantizer.penalty` and :meth:`~equalbits.nn.WeightQuantizer.after_step_`; most do nothing.
:func:`equalbits.train` calls these functions by itself; a loop of one's own calls them where their names say.
"""

import torch
from torch import Tensor, nn

from equalbits.nn.binary_layer import BinaryLayer
from equalbits.nn.parametrized import assign_latents_
from equalbits.nn.quantizer import WeightQuantizer


def layers_with_hook(model: nn.Module, moment: str) -> list[BinaryLayer]:
    """The binary layers whose quantizer does something at this moment, named as the quantizer's method is."""
    idle = getattr(WeightQuantizer, moment)
    layers = [layer for layer in model.modules() if isinstance(layer, BinaryLayer)]
    return [layer for layer in layers if getattr(type(layer.weight_quantizer), moment) is not idle]


@torch.no_grad()
def at_epoch_(model: nn.Module) -> None:
    """Let every quantizer do what it does before an epoch, as RBNN turns its rotations to the latents."""
    for layer in layers_with_hook(model, "at_epoch_"):
        layer.weight_quantizer.at_epoch_(layer.latents())


@torch.no_grad()
def after_step_(model: nn.Module) -> None:
    """Let every quantizer do what it does after a step of the optimizer, as BinaryConnect clips its latents.

    >>> from equalbits.nn import BinaryConnect, BinaryLinear
    >>> layer = BinaryLinear(2, 1, weight_quantizer=BinaryConnect())
    >>> _ = layer.weight.data.copy_(torch.tensor([[3.0, -0.5]]))
    >>> after_step_(layer)
    >>> layer.weight.tolist()
    [[1.0, -0.5]]
    """
    for layer in layers_with_hook(model, "after_step_"):
        weight = layer.weight.detach()
        filters = layer.to_filters(weight)
        layer.weight_quantizer.after_step_(filters)
        if filters is not weight:  # a layer that keeps its axes in another order may have given a copy
            weight.copy_(layer.from_filters(filters))
        assign_latents_(layer, weight)


def penalty(layers: list[BinaryLayer]) -> Tensor:
    """What the quantizers of these layers add to the loss; ask :func:`layers_with_hook` for those that add anything."""
    return torch.stack([layer.weight_quantizer.penalty(layer.to_filters(layer.weight)) for layer in layers]).sum()
