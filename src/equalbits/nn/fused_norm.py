"""What stands between two binary convolutions, by the modules that hold its parameters: one operation on a GPU."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equalbits.functional import prelu_norm_add_sign, update_running_stats
from equalbits.nn.inputs.sign import SignActivation
from equalbits.nn.layers import BinaryConv2d


def can_fuse(inputs: Tensor, *norms: nn.Module) -> bool:
    """Whether :func:`norm_and_add` may stand for modules: in a compiled training step on a GPU.

    The norms must be torch's own with their usual settings. Hooks on the modules are passed by.
    """
    compiled = torch.compiler.is_compiling() and inputs.device.type == "cuda"
    return compiled and all(_is_usual(norm) for norm in norms)


def starts_with_clipped_sign(conv: nn.Module) -> bool:
    """Whether a convolution is ours and begins with the clipped sign, which :func:`norm_and_add` can find for it."""
    quantizer = conv.input_quantizer if type(conv) is BinaryConv2d else None
    return type(quantizer) is SignActivation and quantizer.estimator == "clipped"


class BatchStatistics(NamedTuple):
    """What a norm saw of a batch, for its running statistics."""

    norm: nn.BatchNorm2d
    mean: Tensor
    variance: Tensor
    values: int  # that each channel had


def norm_and_add(
    norm: nn.BatchNorm2d, inputs: Tensor, *, slope: Tensor | None, residual: Tensor | None, signs: bool = False
) -> tuple[Tensor, Tensor | None, BatchStatistics]:
    """``norm(prelu(inputs)) + residual``, its signs if wanted (:func:`~equalbits.functional.prelu_norm_add_sign`).

    The running statistics change only when :func:`update_running_statistics` gets the notes of all norms.
    """
    summed, found, mean, variance = prelu_norm_add_sign(
        inputs, slope, norm.weight, norm.bias, residual, eps=norm.eps, signs=signs
    )
    return summed, found, BatchStatistics(norm, mean.detach(), variance.detach(), inputs.numel() // inputs.shape[1])


def update_running_statistics(notes: Sequence[BatchStatistics]) -> None:
    """Move the running statistics and count the batch, as torch's batch norm does."""
    left = list(notes)
    with torch.no_grad():
        while left:  # once, unless a norm was asked more than once or momenta differ
            now: list[BatchStatistics] = []
            later: list[BatchStatistics] = []
            for note in left:
                (now if _goes_with(note, now) else later).append(note)
            left = later
            running = [tensor for note in now for tensor in (note.norm.running_mean, note.norm.running_var)]
            latest = [tensor for note in now for tensor in (note.mean, note.variance)]
            factors = [factor for note in now for factor in (1.0, note.values / (note.values - 1))]
            counts = [note.norm.num_batches_tracked for note in now]
            update_running_stats(running, counts, latest, factors, now[0].norm.momentum)


def _goes_with(note: BatchStatistics, before: Sequence[BatchStatistics]) -> bool:
    """Whether its norm is another than theirs, of their momentum."""
    alone = all(note.norm is not other.norm for other in before)
    return alone and (not before or note.norm.momentum == before[0].norm.momentum)


def _is_usual(norm: nn.Module) -> bool:
    usual = type(norm) is nn.BatchNorm2d and norm.training and norm.affine and norm.track_running_stats
    return usual and norm.momentum is not None and norm.num_batches_tracked is not None
