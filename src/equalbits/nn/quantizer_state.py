"""Starting what a quantizer remembers: when a layer takes it in, and again when the layer starts anew."""

from torch import Tensor, nn

from equalbits.nn.quantizer import WeightQuantizer


def start_(quantizer: nn.Module) -> None:
    """Put all that does not hang on the latents where a new quantizer has it.

    No training is done yet, and a part with ``reset_parameters``, torch's word for it, starts its own.
    """
    for part in quantizer.modules():
        progress = part._buffers.get("progress")
        if progress is not None:
            progress.zero_()
        reset = getattr(part, "reset_parameters", None)
        if callable(reset):
            reset()


def fit_(quantizer: WeightQuantizer, latents: Tensor) -> None:
    """Have it make what it remembers of the latents, in the tensors it has: an optimizer or a graph may hold them."""
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
