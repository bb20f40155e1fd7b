"""Composite operations of nearly every binary net, in terms of core ones.

Without them torch would decompose the program: a second trace, which takes four times as long as all the rest.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from equalbits.deploy.graph import Value
from equalbits.deploy.ops.conv_linear import convolution
from equalbits.deploy.ops.elementwise import batch_norm, norm_of_input, sub
from equalbits.deploy.ops.pool import adaptive_avg_pool2d, max_pool2d
from equalbits.deploy.ops.shape import reshape
from equalbits.deploy.traced_values import Known
from equalbits.deploy.tracer import Tracer, rule

rule("flatten.using_ints", "reshape.default", "view_as.default")(reshape)
rule("adaptive_avg_pool2d.default")(adaptive_avg_pool2d)


@rule("conv1d.default", "conv2d.default")
def plain_convolution(
    tracer: Tracer,
    value: Known,
    weight: Tensor,
    bias: Known = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Known:
    """Convolve over one or two axes; one number stands for all axes."""
    axes = weight.dim() - 2
    steps, borders, reaches = ([*sizes] * (axes // len(sizes)) for sizes in (stride, padding, dilation))
    return convolution(tracer, value, weight, bias, steps, borders, reaches, False, [0] * axes, groups)


@rule("batch_norm.default")
def any_batch_norm(
    tracer: Tracer,
    value: Known,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
    *_: bool,
) -> Value:
    """Normalize by running statistics; refuse to compute them from the input."""
    if training:
        return norm_of_input(tracer)
    return batch_norm(tracer, value, weight, bias, mean, var, momentum, eps)[0]


@rule("max_pool2d.default")
def max_pool2d_without_indices(
    tracer: Tracer,
    value: Known,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Value:
    """Take the maximum of each window."""
    return max_pool2d(tracer, value, kernel, stride, padding, dilation, ceil_mode)[0]


@rule("rsub.Scalar")
def subtract_from(tracer: Tracer, value: Known, constant: float) -> Value:
    """Subtract a value from a constant."""
    return sub(tracer, constant, value)


@rule("ones.default")
def ones(tracer: Tracer, size: Sequence[int], **_: object) -> Tensor:
    """Return a constant, such as the +1 of a sign."""
    return torch.ones(size, dtype=tracer.dtype)
