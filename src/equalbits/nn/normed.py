"""What stands between two binary convolutions, by the modules that hold its parameters: one operation on a GPU."""

import torch
from torch import Tensor, nn

from equalbits.functional.normed_sum import normed_sum
from equalbits.nn.layers import BinaryConv2d
from equalbits.nn.quantizers import SignActivation


def may_fuse(inputs: Tensor, *norms: nn.Module) -> bool:
    """Whether :func:`norm_and_add` may stand for modules: in a compiled training step on a GPU, where no hook looks.

    The norms must be torch's own with their usual settings.
    """
    compiled = torch.compiler.is_compiling() and inputs.device.type == "cuda"
    return compiled and all(_is_usual(norm) for norm in norms)


def clipped_sign(conv: nn.Module) -> bool:
    """Whether a convolution begins with the clipped sign, which :func:`norm_and_add` can find for it."""
    quantizer = conv.input_quantizer if isinstance(conv, BinaryConv2d) else None
    return type(quantizer) is SignActivation and quantizer.estimator == "clipped"


def norm_and_add(
    norm: nn.BatchNorm2d, inputs: Tensor, *, slope: Tensor | None, residual: Tensor | None, signs: bool = False
) -> tuple[Tensor, Tensor | None]:
    """``norm(prelu(inputs)) + residual``, and its signs if wanted (:func:`equalbits.functional.normed_sum`)."""
    summed, found, mean, variance = normed_sum(
        inputs, slope, norm.weight, norm.bias, residual, eps=norm.eps, signs=signs
    )
    _note(norm, mean, variance, inputs.numel() // inputs.shape[1])
    return summed, found


def _is_usual(norm: nn.Module) -> bool:
    usual = type(norm) is nn.BatchNorm2d and norm.training and norm.affine and norm.track_running_stats
    return usual and norm.momentum is not None


class _Notes:
    """Running statistics that wait to be moved all at once."""

    waiting: list[tuple[Tensor, Tensor, float]] | None = None


def gather_statistics() -> None:
    """Have the norms' running statistics wait until :func:`move_statistics`: a launch for all instead of two each."""
    _Notes.waiting = []


def move_statistics() -> None:
    """Move what has waited since :func:`gather_statistics`, as torch's batch norm does."""
    waiting, _Notes.waiting = _Notes.waiting, None
    for momentum in dict.fromkeys(momentum for _, _, momentum in waiting or ()):
        running = [mine for mine, _, its in waiting or () if its == momentum]
        latest = [theirs for _, theirs, its in waiting or () if its == momentum]
        torch._foreach_mul_(running, 1 - momentum)
        torch._foreach_add_(running, latest, alpha=momentum)


def _note(norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor, count: int) -> None:
    """Move the running statistics as torch's batch norm does, now or later."""
    assert norm.momentum is not None and norm.running_mean is not None and norm.running_var is not None
    unbiased = variance.detach() * (count / (count - 1))
    with torch.no_grad():
        for running, latest in ((norm.running_mean, mean.detach()), (norm.running_var, unbiased)):
            if _Notes.waiting is None:
                running.lerp_(latest.to(running.dtype), norm.momentum)
            else:
                _Notes.waiting.append((running, latest, norm.momentum))
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
