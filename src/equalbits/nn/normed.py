"""What stands between two binary convolutions, by the modules that hold its parameters: one operation on a GPU."""

import torch
from torch import Tensor, nn

from equalbits.functional.normed_sum import move_statistics, normed_sum
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


def _note(norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor, count: int) -> None:
    """Move the running statistics as torch's batch norm does."""
    assert norm.momentum is not None and norm.running_mean is not None and norm.running_var is not None
    with torch.no_grad():
        running = norm.running_mean, norm.running_var
        move_statistics(*running, mean.detach(), variance.detach(), norm.momentum, count / (count - 1))
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
