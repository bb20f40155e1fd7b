"""Convolutions, plain and transposed, over images and along one axis; linear layers and products with a matrix."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from equalbits.deploy.graph import Arrays
from equalbits.deploy.ops.gather import pad
from equalbits.deploy.pack_weights import plane_arrays
from equalbits.deploy.traced_values import BatchView, Known, Value
from equalbits.deploy.tracer import Tracer, rule
from equalbits.runtime import Settings


@rule("convolution.default", batch="own")
def convolution(
    tracer: Tracer,
    value: Known,
    weight: Known,
    bias: Known,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Known:
    """Convolve over one or two axes, plainly or transposed."""
    weight, borders = tracer.constant(weight), [side for side in padding for _ in range(2)]
    window: Settings = {"stride": stride, "padding": borders, "dilation": dilation, "groups": groups}
    return _convolve_each(tracer, value, weight, bias, window, output_padding if transposed else None)


@rule("conv1d.default", "conv2d.default", "conv1d.padding", "conv2d.padding", batch="own")
def plain_convolution(
    tracer: Tracer,
    value: Known,
    weight: Known,
    bias: Known = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] | str = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Known:
    """Convolve over one or two axes; one number stands for all axes. ``"same"`` pads an odd total one more behind."""
    weight = tracer.constant(weight)
    axes = weight.dim() - 2
    steps, reaches = ([*sizes] * (axes // len(sizes)) for sizes in (stride, dilation))
    if isinstance(padding, str):
        pairs = zip(weight.shape[2:], reaches, strict=True)
        total = [reach * (size - 1) if padding == "same" else 0 for size, reach in pairs]
        borders = [part for both in total for part in (both // 2, both - both // 2)]
    else:
        borders = [side for side in [*padding] * (axes // len(padding)) for _ in range(2)]
    window = {"stride": steps, "padding": borders, "dilation": reaches, "groups": groups}
    return _convolve_each(tracer, value, weight, bias, window)


@rule("im2col.default")
def unfold(
    tracer: Tracer,
    value: Value,
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    """Copy the pixels of each window to channels: a convolution of each channel with filters of a single 1."""
    window: Settings = {"stride": stride, "padding": [side for side in padding for _ in range(2)], "dilation": dilation}
    made = _convolve(tracer, value, _single_ones(value.shape[0], kernel), None, {**window, "groups": value.shape[0]})
    return tracer.reshape(made, (made.shape[0], math.prod(made.shape[1:])))


@rule("col2im.default")
def fold(
    tracer: Tracer,
    value: Value,
    size: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    """Add windows to an image, the inverse of :func:`unfold`: the transposed convolution."""
    channels = value.shape[0] // math.prod(kernel)
    reach = [apart * (length - 1) + 1 - 2 * side for length, apart, side in zip(kernel, dilation, padding, strict=True)]
    across = [(length - used) // step + 1 for length, used, step in zip(size, reach, stride, strict=True)]
    left = [length - used - (n - 1) * step for length, used, n, step in zip(size, reach, across, stride, strict=True)]
    image = tracer.reshape(value, (value.shape[0], *across))
    ones = _single_ones(channels, kernel)
    made = convolution(tracer, image, ones, None, stride, padding, dilation, True, left, channels)
    return tracer.value(made)


def _single_ones(channels: int, kernel: Sequence[int]) -> Tensor:
    """Return a filter per channel and pixel of a window, 1 at this pixel and 0 elsewhere."""
    pixels = math.prod(kernel)
    return torch.eye(pixels).repeat(channels, 1).reshape(channels * pixels, 1, *kernel)


def _convolve_each(
    tracer: Tracer, value: Known, weight: Tensor, bias: Known, window: Settings, more: Sequence[int] | None = None
) -> Known:
    """Add a convolution of each image, or of each part of a batch that is folded with another axis.

    ``more`` is the output padding of a transposed convolution. A convolution along one axis is over images of one row.
    """
    folded, one_row = isinstance(value, BatchView), weight.dim() == 3
    image = value.value if isinstance(value, BatchView) else tracer.value(value)
    if one_row:
        image = _as_image(tracer, image, (*image.shape[:-1], 1, image.shape[-1]))
        weight, more = weight.unsqueeze(2), None if more is None else [0, *more]
        before = {"stride": [1], "padding": [0, 0], "dilation": [1]}
        window = {**window, **{name: [*first, *window[name]] for name, first in before.items()}}
    if more is None:
        made = (_convolve_parts if folded else _convolve)(tracer, image, weight, bias, window)
    elif folded:
        raise tracer.refuse("transposes a convolution of a batch folded with another axis: keep the batch in front")
    else:
        made = _convolve_transposed(tracer, image, weight, bias, window, more)
    if one_row:
        made = tracer.reshape(made, (*made.shape[:-2], made.shape[-1]))
    return BatchView(made, folded=True) if folded else made


def _convolve(tracer: Tracer, image: Value, weight: Tensor, bias: Known, window: Settings) -> Value:
    """Add a plain convolution over an image."""
    return _add_weighted(tracer, "conv", image, weight, bias, {"kernel": tuple(weight.shape[2:]), **window})


def _convolve_transposed(
    tracer: Tracer, image: Value, weight: Tensor, bias: Known, window: Settings, more: Sequence[int]
) -> Value:
    """Add a plain convolution with flipped filters over an image with zeros between its pixels."""
    apart, borders = _insert_zeros(tracer, image, window["stride"]), list[int]()
    sizes = (weight.shape[2:], window["dilation"], window["padding"][::2], window["stride"], more)
    for size, reach, side, step, behind in zip(*sizes, strict=True):
        whole = reach * (size - 1) - side
        borders += [whole, whole + behind - (step - 1)]  # the last pixel has its zeros behind it already
    cropped = pad(tracer, apart, [min(0, border) for border in (*borders[2:], *borders[:2])])
    plain = {**window, "stride": 1, "padding": [max(0, border) for border in borders]}
    return _convolve(tracer, cropped, _flip_filters(tracer, weight, window["groups"]), bias, plain)


def _convolve_parts(tracer: Tracer, value: Value, weight: Tensor, bias: Known, window: Settings) -> Value:
    """Convolve each part of (part, channel, row, column): they lie below each other, apart by their padding."""
    below, borders = tracer.move_axis(value, 1, 0), window["padding"]
    channels, parts, rows, columns = below.shape
    around, step = rows + sum(borders[:2]), window["stride"][0]
    reach, pitch = window["dilation"][0] * (weight.shape[2] - 1) + 1, math.ceil(around / step) * step
    apart = pad(tracer, below, [0, 0, borders[0], pitch - rows - borders[0]])
    image = tracer.reshape(apart, (channels, parts * pitch, columns))
    behind = max(0, reach - step)  # so that the last part has as many rows as the others
    made = _convolve(tracer, image, weight, bias, {**window, "padding": [0, behind, *borders[2:]]})
    made = tracer.reshape(made, (made.shape[0], parts, pitch // step, made.shape[2]))
    made = tracer.slice_axis(made, 2, slice(0, (around - reach) // step + 1))
    return tracer.move_axis(made, 1, 0)


def _insert_zeros(tracer: Tracer, value: Value, stride: Sequence[int]) -> Value:
    """Return an image whose pixels are ``stride`` apart, with zeros between them and behind the last."""
    if all(step == 1 for step in stride):
        return value
    (channels, rows, columns), (down, right) = value.shape, stride
    apart = tracer.reshape(value, (channels, rows, 1, columns, 1))
    apart = pad(tracer, apart, [0, right - 1, 0, 0, 0, down - 1])
    return tracer.reshape(apart, (channels, rows * down, columns * right))


def _flip_filters(tracer: Tracer, weight: Tensor, groups: int) -> Tensor:
    """Return a weight of (in, out/groups, …) as one of (out, in/groups, …), rows and columns flipped.

    The planes of a binary layer are ordered by filter already. The name and planes of a weight are kept.
    """
    inputs, part, *kernel = weight.shape
    grouped = weight.reshape(groups, inputs // groups, part, *kernel).transpose(1, 2)
    made = grouped.reshape(groups * part, inputs // groups, *kernel).flip(2, 3).contiguous()
    found = tracer.binary.get(weight.data_ptr())
    if found is not None and weight.is_contiguous() and made.flatten(1).shape == found.planes[0].symbols.shape:
        flipped = [np.flip(plane.symbols.reshape(made.shape), (2, 3)).reshape(len(made), -1) for plane in found.planes]
        planes = tuple(replace(plane, symbols=each) for plane, each in zip(found.planes, flipped, strict=True))
        tracer.binary[made.data_ptr()] = replace(found, planes=planes)
    tracer.names[made.data_ptr()] = tracer.names.get(weight.data_ptr(), "")
    tracer.made.append(made)
    return made


@rule("linear.default", batch="anywhere")
def linear(tracer: Tracer, value: Value, weight: Tensor, bias: Known = None) -> Value:
    """Multiply the last axis by weights; signs along the last of several axes by a 1×1 convolution over the others."""
    if len(value.shape) == 1 or not tracer.graph.is_moved_sign(value.number):
        return _add_weighted(tracer, "linear", value, weight, bias, {})
    *positions, features = value.shape
    if len(positions) == 2:
        image = _as_image(tracer, value, value.shape, axes=(2, 0, 1))
        made = _add_weighted(tracer, "conv", image, weight[:, :, None, None], bias, {"kernel": 1})
        return tracer.permute(made, (1, 2, 0))
    image = _as_image(tracer, value, (math.prod(positions), features, 1), axes=(1, 0, 2))
    made = _add_weighted(tracer, "conv", image, weight[:, :, None, None], bias, {"kernel": 1})
    made = tracer.permute(made, (1, 0, 2))
    return tracer.reshape(made, (*positions, made.shape[1]))


@rule("addmm.default", batch="anywhere")
def addmm(tracer: Tracer, bias: Known, value: Value, weight: Known, *, beta: float = 1, alpha: float = 1) -> Value:
    """Multiply by a constant matrix and add a bias, each times a factor."""
    matrix, added = tracer.constant(weight).T, tracer.constant(bias)
    matrix = (matrix if alpha == 1 else alpha * matrix).contiguous()
    return linear(tracer, value, matrix, None if beta == 0 else added if beta == 1 else beta * added)


def _add_weighted(tracer: Tracer, kind: str, value: Value, weight: Known, bias: Known, settings: Settings) -> Value:
    """Add a ``conv`` or ``linear``: one step per plane where the weight is a binary layer's, else real weights."""
    extra: Arrays = {} if bias is None else {"bias": tracer.weights(bias)}
    found = tracer.binary_weights(weight)
    if found is None:
        arrays = {"weight": tracer.weights(weight), **extra}
        return tracer.add(kind, value, layer=tracer.tensor_layer(weight), arrays=arrays, **settings)
    tracer.used.add(found.name)
    name = found.name or tracer.layer
    first, *others = map(plane_arrays, found.planes)
    made = tracer.add(kind, value, layer=name, arrays={**first, **extra}, **settings, p_pos=found.p_pos)
    for number, plane in enumerate(others, start=1):
        part = tracer.add(kind, value, layer=f"{name}.{number}", arrays=plane, **settings)
        made = tracer.add("add", made, part, layer=name)
    return made


def _as_image(tracer: Tracer, value: Value, shape: tuple[int, ...], *, axes: tuple[int, ...] = (0, 1, 2)) -> Value:
    """Reshape and permute a value for a convolution. A sign moves behind the reshape, where the engine fuses it."""
    step = tracer.maker(value)
    while step is not None and step.kind in ("flatten", "reshape"):
        step = tracer.maker(tracer.source(step))
    permuted = axes != (0, 1, 2)
    signed = step is not None and step.kind == "sign" and (permuted or step.shape != shape)
    image = tracer.reshape(tracer.source(step) if step is not None and signed else value, shape)
    image = tracer.permute(image, axes) if permuted else image
    return tracer.add("sign", image) if signed else image
