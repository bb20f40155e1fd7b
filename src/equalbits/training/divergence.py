"""Divergence: stop when the loss or the weights are NaN or infinite, and say where it began."""

import math
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

_LOWER = "lower optimizer.lr or set clip_norm=1"


class NonFiniteError(ValueError):
    """The loss or a weight is NaN or infinite: training diverged."""


def check_finite(
    loss_sum: float, model: nn.Module, images: Tensor | None = None, *, step: int, checkpoint: Path | None, of: str = ""
) -> None:
    """Raise if the loss is NaN or infinite, with the step, the layer and the last good checkpoint.

    ``images`` are those of the skipped step, if known. ``of`` says whose loss it is, if not the step's.
    """
    if math.isfinite(loss_sum):
        return
    if images is not None and not _finite(images):
        cause, way_out = "the images themselves are not finite", "correct them, or data.statistics"
    else:
        cause = (images is not None and _first_bad_output(model, images)) or _bad_weights(model)
        way_out = _LOWER
    raise NonFiniteError(
        f"the loss{of} is {loss_sum} at step {step:,}; {cause}; {_last_checkpoint(checkpoint)}; {way_out}"
    )


def check_weights(model: nn.Module, *, step: int, checkpoint: Path | None) -> None:
    """Raise if a weight is NaN or infinite, as after a step with a finite loss and a non-finite gradient."""
    if not _all_finite(model.parameters()):
        raise NonFiniteError(
            f"non-finite weights at step {step:,}; {_bad_weights(model)}; {_last_checkpoint(checkpoint)}; {_LOWER}"
        )


def check_scored(loss_sum: float, model: nn.Module) -> None:
    """Raise if a scored net has diverged, which its logits do not show behind a sign.

    Buffers may hold infinities, as attention masks do, but no NaN.
    """
    if not _all_finite(model.parameters()):
        raise NonFiniteError(f"cannot score a diverged model: {_bad_weights(model)}; use another checkpoint")
    for name, buffer in model.named_buffers():
        if bool(torch.isnan(buffer).any()):
            raise NonFiniteError(f"cannot score a diverged model: buffer {name!r} holds NaN; use another checkpoint")
    if not math.isfinite(loss_sum):
        raise NonFiniteError(f"the loss is {loss_sum} on the test images; {_bad_weights(model)}")


def _last_checkpoint(path: Path | None) -> str:
    saved = path is not None and path.exists()
    return f"the last good checkpoint is {path}" if saved else "nothing was saved before it"


def _first_bad_output(model: nn.Module, images: Tensor) -> str | None:
    """Name the first module, in execution order, whose output is not finite."""
    names = {module: name for name, module in model.named_modules()}
    found: list[nn.Module] = []

    def record(module: nn.Module, inputs: object, output: object) -> None:
        if module in names and isinstance(output, Tensor) and not _finite(output):
            found.append(module)

    with torch.no_grad(), nn.modules.module.register_module_forward_hook(record):
        model(images)
    return f"first non-finite output in layer {names[found[0]]!r}, a {type(found[0]).__name__}" if found else None


def _bad_weights(model: nn.Module) -> str:
    """Name the first layer with non-finite weights; once all are non-finite, none is to blame."""
    bad = [name for name, parameter in model.named_parameters() if not _finite(parameter)]
    if len(bad) == len(list(model.parameters())):
        on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
        return "by now no weight is finite" + ("" if on_cpu else ", so find the layer with --device cpu")
    if bad:
        return f"first non-finite weights in layer {bad[0].rpartition('.')[0] or bad[0]!r}"
    return "all weights are still finite, so check the images, the labels and the loss"


def _all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether all are finite, with one device synchronization."""
    found = [torch.isfinite(tensor.detach()).all() for tensor in tensors]
    return not found or bool(torch.stack([flag.to(found[0].device) for flag in found]).all())


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor.detach()).all())
