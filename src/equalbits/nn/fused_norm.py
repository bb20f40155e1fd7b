"""Batch norm, residual sum and PReLU or RPReLU between two binary convolutions, fused into one operation on a GPU."""

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from equalbits.functional import (
    BitLayout,
    ConvSettings,
    NormSettings,
    RPReLUParameters,
    RPReLUSettings,
    SignBits,
    convolve_and_norm,
    keeps_bits,
    norm_add_rprelu_sign,
    prelu_norm_add_sign,
    update_running_stats,
)
from equalbits.nn.input_quantizers.rsign import RSign
from equalbits.nn.input_quantizers.sign import SignActivation
from equalbits.nn.layers import BinaryConv2d
from equalbits.nn.output_layers import RPReLU
from equalbits.nn.quantizer import is_hooked

#: Outputs of binary convolutions with at least so many values per weight are computed again in the backward pass, in
#: eager and in compiled steps: such an output is large, and its convolution cheap. Compiled steps are not measured yet.
RECOMPUTE_FROM = {"eager": 20.0, "compiled": math.inf}

#: Whether norms behind a PReLU keep their input for the backward pass in 8 bits, where it is not computed again. Not
#: measured yet.
KEEP_IN_8_BITS = False


def can_fuse(inputs: Tensor, *norms: nn.Module) -> bool:
    """Return whether :func:`norm_and_add` can replace the modules: only in a training step on a GPU.

    The norms must be torch's batch norms with default options. Hooks on the modules are not called.
    """
    trains = keeps_bits(inputs) and (torch.compiler.is_compiling() or torch.is_grad_enabled())
    return trains and inputs.device.type == "cuda" and all(_is_default(norm) for norm in norms)


def calls_hooks(model: nn.Module) -> bool:
    """Return whether a step must call the modules of ``model`` themselves, since one of them has a hook."""
    remaining: list[nn.Module | None] = [model]
    while remaining:  # modules() takes several times as long
        module = remaining.pop()
        if module is not None:
            if is_hooked(module):
                return True
            remaining.extend(module._modules.values())
    return False


def recomputes(conv: nn.Module, inputs: Tensor) -> bool:
    """Return whether the backward pass computes the output of a convolution again (:data:`RECOMPUTE_FROM`)."""
    least = RECOMPUTE_FROM["compiled" if torch.compiler.is_compiling() else "eager"]
    if least == math.inf or not is_recomputable(conv):
        return False
    stride = cast("BinaryConv2d", conv).stride
    positions = inputs.shape[0] * inputs.shape[2] * inputs.shape[3] / (stride[0] * stride[1])
    connections = cast("BinaryConv2d", conv).weight[0].numel()
    return positions >= least * connections and can_recompute(inputs)


def recompute_convolutions_(model: nn.Module, on: bool = True) -> int:
    """Make blocks keep bits alone for the backward pass, and compute their convolutions again there; return how many.

    These are the blocks with an attribute ``recomputes_convolutions``: those of the binary ResNets with PReLU, which
    save most of the memory of training for one more convolution per layer, and those with RPReLU, which also keep the
    shortcuts. Forward hooks inside them are not called.
    """
    blocks = [block for block in model.modules() if hasattr(type(block), "recomputes_convolutions")]
    for block in blocks:
        block.recomputes_convolutions = on  # type: ignore[assignment]
    return len(blocks)


def can_recompute(inputs: Tensor, *norms: nn.Module) -> bool:
    """Return whether :func:`conv_norm_and_add` can replace modules with these norms: in a training step."""
    return torch.is_grad_enabled() and keeps_bits(inputs) and all(_is_default(norm) for norm in norms)


def starts_with_clipped_sign(conv: nn.Module | None) -> bool:
    """Return whether a convolution quantizes its input by the clipped sign."""
    quantizer = conv.input_quantizer if type(conv) is BinaryConv2d else None
    return type(quantizer) is SignActivation and quantizer.estimator == "clipped"


def shift_before_sign(conv: nn.Module | None) -> Tensor | None:
    """Return the shifts of a convolution that quantizes its input by RSign, one per channel, else None."""
    quantizer = conv.input_quantizer if type(conv) is BinaryConv2d else None
    shift = quantizer.shift if type(quantizer) is RSign else None
    return shift if shift is not None and len(shift) == cast("BinaryConv2d", conv).in_channels else None


def is_recomputable(conv: nn.Module) -> bool:
    """Return whether :func:`conv_norm_and_add` can compute a convolution: signs, zero padding, no bias."""
    if not starts_with_clipped_sign(conv) and shift_before_sign(conv) is None:
        return False
    binary = cast("BinaryConv2d", conv)
    plain = binary.bias is None and binary.padding_mode == "zeros" and not isinstance(binary.padding, str)
    return plain and not cast("nn.Module", binary.input_quantizer)._forward_hooks


#: Activation before a norm, or after the sum behind it.
Activation = nn.PReLU | RPReLU | RPReLUParameters


def activation_after(norm: nn.Module, activation: nn.Module) -> RPReLUParameters | None:
    """Return the parameters of an RPReLU or PReLU after a norm, else None."""
    if type(activation) is RPReLU:
        return RPReLUParameters(activation.before, activation.slope, activation.after)
    fits = type(activation) is nn.PReLU and type(norm) is nn.BatchNorm2d and len(activation.weight) == norm.num_features
    return RPReLUParameters(None, cast("nn.PReLU", activation).weight, None) if fits else None


class BatchStatistics(NamedTuple):
    """Mean and variance of one batch, for the running statistics of ``norm``."""

    norm: nn.BatchNorm2d
    mean: Tensor
    variance: Tensor
    size: int  # values per channel


def norm_and_add(
    norm: nn.BatchNorm2d,
    inputs: Tensor,
    *,
    activation: Activation | None = None,
    residual: Tensor | None = None,
    following: nn.Module | None = None,
) -> tuple[Tensor, tuple[Tensor, SignBits] | None, BatchStatistics]:
    """Return the outputs, the batch statistics, and the signs that a ``following`` convolution starts with, if known.

    The outputs are ``norm(prelu(inputs)) + residual`` (:func:`equalbits.functional.prelu_norm_add_sign`), or with
    RPReLU or its parameters ``rprelu(norm(inputs) + residual)`` (:func:`equalbits.functional.norm_add_rprelu_sign`).
    The first computes the clipped sign, the second RSign, as ±1 and as bits. Call :func:`update_running_statistics`
    with the statistics of all norms afterwards.
    """
    settings = _settings(norm, activation, residual, following)
    if isinstance(settings, RPReLUSettings):
        affine, parameters, residual, shift, eps = settings  # compiled code of torch 2.6 cannot slice a named tuple
        found = norm_add_rprelu_sign(inputs, affine, parameters, residual, shift, eps=eps)
    else:
        slope, weight, bias, residual, eps, signs = settings
        found = prelu_norm_add_sign(
            inputs, slope, weight, bias, residual, eps=eps, signs=signs, in_8_bits=KEEP_IN_8_BITS
        )
    return _with_statistics(norm, *found)


def _settings(
    norm: nn.BatchNorm2d, activation: Activation | None, residual: Tensor | None, following: nn.Module | None
) -> NormSettings | RPReLUSettings:
    if isinstance(activation, (RPReLU, RPReLUParameters)):
        parameters = RPReLUParameters(activation.before, activation.slope, activation.after)
        return RPReLUSettings((norm.weight, norm.bias), parameters, residual, shift_before_sign(following), norm.eps)
    slope, signs = None if activation is None else activation.weight, starts_with_clipped_sign(following)
    return NormSettings(slope, norm.weight, norm.bias, residual, norm.eps, signs)


def _with_statistics(
    norm: nn.BatchNorm2d, outputs: Tensor, signs: Tensor | None, bits: Tensor | None, mean: Tensor, variance: Tensor
) -> tuple[Tensor, tuple[Tensor, SignBits] | None, BatchStatistics]:
    if mean.requires_grad:
        mean, variance = mean.detach(), variance.detach()
    statistics = BatchStatistics(norm, mean, variance, outputs.numel() // outputs.shape[1])
    if signs is None or bits is None:
        return outputs, None, statistics
    return outputs, (signs, SignBits(bits, BitLayout(tuple(signs.shape), channels_last=True))), statistics


def conv_norm_and_add(
    modules: tuple[BinaryConv2d, nn.BatchNorm2d],
    inputs: tuple[Tensor, SignBits | None],
    *,
    activation: Activation | None,
    residual: Tensor | None,
    following: nn.Module | None,
    recompute: bool = True,
) -> tuple[Tensor, tuple[Tensor, SignBits] | None, BatchStatistics]:
    """Return :func:`norm_and_add` of a convolution of ±1 inputs and, if known, their bits.

    With ``recompute`` the backward pass keeps only bits; without it, in plain execution, the output as well.
    The function is :func:`equalbits.functional.convolve_and_norm`.
    """
    conv, norm = modules
    stride, padding = conv.stride, [int(size) for size in conv.padding]
    settings = ConvSettings(stride, padding, conv.dilation, False, conv.output_padding, conv.groups)
    of_norm = _settings(norm, activation, residual, following)
    weight = conv.scaled_symbols(autocast=True) or conv.binary_weight()
    return _with_statistics(norm, *convolve_and_norm(*inputs, weight, settings, of_norm, recompute=recompute))


def update_running_statistics(batches: Sequence[BatchStatistics]) -> None:
    """Update the running statistics and count the batch, as torch's batch norm does."""
    remaining = list(batches)
    with torch.no_grad():
        while remaining:  # one iteration, unless a norm occurs twice or momenta differ
            group: list[BatchStatistics] = []
            later: list[BatchStatistics] = []
            for batch in remaining:
                (group if _can_join(batch, group) else later).append(batch)
            remaining = later
            running = [cast("Tensor", own) for each in group for own in (each.norm.running_mean, each.norm.running_var)]
            latest = [tensor for each in group for tensor in (each.mean, each.variance)]
            factors = [factor for each in group for factor in (1.0, each.size / (each.size - 1))]
            counts = [cast("Tensor", each.norm.num_batches_tracked) for each in group]
            update_running_stats(running, counts, latest, factors, cast("float", group[0].norm.momentum))


def _can_join(batch: BatchStatistics, group: Sequence[BatchStatistics]) -> bool:
    """Return whether a group has the same momentum and does not contain the norm yet."""
    is_new = all(batch.norm is not other.norm for other in group)
    return is_new and (not group or batch.norm.momentum == group[0].norm.momentum)


def _is_default(norm: nn.Module) -> bool:
    default = type(norm) is nn.BatchNorm2d and norm.training and norm.affine and norm.track_running_stats
    return default and norm.momentum is not None and norm.num_batches_tracked is not None
