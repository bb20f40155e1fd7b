"""State of quantizers: the training progress, the tensors fitted to a layer, and their reset."""

from collections.abc import Iterator
from typing import TypeVar

from torch import Tensor, nn

from equalbits.nn.quantizer import Quantizer, WeightQuantizer

T = TypeVar("T", bound=Tensor)


def set_progress(model: nn.Module, progress: float) -> None:
    """Set the share of training that is done, from 0 to 1, in every quantizer with a buffer named ``progress``.

    That includes custom quantizers held by a layer.

    >>> from equalbits.nn import IRNet
    >>> quantizer = IRNet()
    >>> set_progress(quantizer, 0.25)
    >>> quantizer.progress
    tensor(0.2500)
    """
    if not 0 <= progress <= 1:
        raise ValueError(f"progress={progress} is not a share of training: it must lie in [0, 1]")
    for module in dict.fromkeys(_quantizers(model)):
        buffer = module._buffers.get("progress")
        if buffer is not None:
            buffer.fill_(progress)


def _quantizers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield our quantizers anywhere, and all parts of those held by a layer; other modules may use the name too."""
    for module in model.modules():
        if isinstance(module, Quantizer):
            yield module
        for held in (module._modules.get("weight_quantizer"), module._modules.get("input_quantizer")):
            if held is not None:
                yield from held.modules()


def start_(quantizer: nn.Module) -> None:
    """Reset all state that does not depend on the latents.

    The progress becomes 0, and parts with ``reset_parameters`` are reset.
    """
    for part in quantizer.modules():
        progress = part._buffers.get("progress")
        if progress is not None:
            progress.zero_()
        reset = getattr(part, "reset_parameters", None)
        if callable(reset):
            reset()


def fit_(quantizer: WeightQuantizer, latents: Tensor) -> None:
    """Fit the quantizer to the latents, reusing the tensors it has: an optimizer or a CUDA graph may hold them."""
    held = [
        (part, name, tensor)
        for part in quantizer.modules()
        for name, tensor in (*part._parameters.items(), *part._buffers.items())
        if tensor is not None
    ]
    quantizer.fit_(latents)
    for part, name, tensor in held:
        made = getattr(part, name)
        if made is not tensor and made.shape == tensor.shape:
            tensor.detach().copy_(made.detach())
            setattr(part, name, tensor)


def fitted(tensor: T | None) -> T:
    """Return a parameter or buffer made by ``fit_``; raise if there is none yet."""
    if tensor is None:
        raise ValueError("the quantizer has no parameters yet: a layer makes them, or call fit_(latents) first")
    return tensor


def scale_filters(values: Tensor, gains: nn.Parameter | None) -> Tensor:
    """Multiply each filter of ``values`` by its learned gain."""
    return values * fitted(gains).view(-1, *(1,) * (values.dim() - 1))
