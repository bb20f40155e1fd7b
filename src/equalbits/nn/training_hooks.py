"""Training hooks of quantizers: the progress of training, before an epoch, in the loss, after a step.

A quantizer follows the progress by a buffer named ``progress``. It defines the other hooks by overriding
:meth:`~equalbits.nn.WeightQuantizer.at_epoch_`, :meth:`~equalbits.nn.WeightQuantizer.penalty` and
:meth:`~equalbits.nn.WeightQuantizer.after_step_`; most have none. :func:`equalbits.train` calls the functions below; a
custom loop calls them itself.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from equalbits.nn.binary_layer import BinaryLayer, check_module, layers_by_name
from equalbits.nn.quantizer import Quantizer, WeightQuantizer


def set_progress(model: nn.Module, progress: float) -> None:
    """Set the share of training that is done, from 0 to 1, in every quantizer with a buffer named ``progress``.

    That includes custom quantizers held by a layer.

    >>> from equalbits.nn import IRNet
    >>> quantizer = IRNet()
    >>> set_progress(quantizer, 0.25)
    >>> quantizer.progress
    tensor(0.2500)
    """
    check_module(model)
    if issubclass(type(progress), str) or not 0 <= progress <= 1:
        raise ValueError(f"progress={progress!r} is not a share of training: it must lie in [0, 1]")
    quantizers: set[nn.Module] = set()  # other modules may have a buffer of that name, too
    for module in model.modules():
        if isinstance(module, Quantizer):
            quantizers.add(module)
        for held in (module._modules.get("weight_quantizer"), module._modules.get("input_quantizer")):
            quantizers.update(held.modules() if held is not None else ())
    for quantizer in quantizers:
        buffer = quantizer._buffers.get("progress")
        if buffer is not None:
            buffer.fill_(progress)


def layers_with_hook(model: nn.Module, hook: str) -> list[BinaryLayer]:
    """Return the binary layers whose quantizer overrides the method ``hook``."""
    default = getattr(WeightQuantizer, hook)
    layers = layers_by_name(model).values()
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
        if parametrize.is_parametrized(layer, "weight"):  # else the change of the computed weight would be lost
            layer.weight = weight
        elif not layer._parameters.keys().isdisjoint(("weight_orig", "weight_v")):  # older norms, pruning
            raise ValueError(
                "latents that torch.nn.utils computes from weight_orig or weight_v cannot be changed after a step: "
                "make that permanent with its remove function, or use torch.nn.utils.parametrizations"
            )


def penalty(layers: list[BinaryLayer]) -> Tensor:
    """Return the sum of the quantizers' loss terms; get the layers from ``layers_with_hook(model, "penalty")``."""
    return torch.stack([layer.weight_quantizer.penalty(layer.to_filters(layer.weight)) for layer in layers]).sum()
