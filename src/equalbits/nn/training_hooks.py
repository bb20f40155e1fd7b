"""Training hooks of quantizers: before an epoch, in the loss, after a step.

A quantizer defines them by overriding :meth:`~equalbits.nn.WeightQuantizer.at_epoch_`,
:meth:`~equalbits.nn.WeightQuantizer.penalty` and :meth:`~equalbits.nn.WeightQuantizer.after_step_`; most have none.
:func:`equalbits.train` calls the functions below; a custom loop calls them itself.
"""

import torch
from torch import Tensor, nn

from equalbits.nn.binary_layer import BinaryLayer
from equalbits.nn.parametrized import assign_latents_
from equalbits.nn.quantizer import WeightQuantizer


def layers_with_hook(model: nn.Module, hook: str) -> list[BinaryLayer]:
    """Return the binary layers whose quantizer overrides the method ``hook``."""
    default = getattr(WeightQuantizer, hook)
    layers = [layer for layer in model.modules() if isinstance(layer, BinaryLayer)]
    return [layer for layer in layers if getattr(type(layer.weight_quantizer), hook) is not default]


@torch.no_grad()
def at_epoch_(model: nn.Module) -> None:
    """Run every quantizer's hook before an epoch: RBNN fits its rotations to the latents."""
    for layer in layers_with_hook(model, "at_epoch_"):
        layer.weight_quantizer.at_epoch_(layer.latents())


@torch.no_grad()
def after_step_(model: nn.Module) -> None:
    """Run every quantizer's hook after an optimizer step: BinaryConnect clips its latents.

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
        if filters is not weight:  # to_filters may return a copy
            weight.copy_(layer.from_filters(filters))
        assign_latents_(layer, weight)


def penalty(layers: list[BinaryLayer]) -> Tensor:
    """Return the sum of the quantizers' loss terms; get the layers from ``layers_with_hook(model, "penalty")``."""
    return torch.stack([layer.weight_quantizer.penalty(layer.to_filters(layer.weight)) for layer in layers]).sum()
