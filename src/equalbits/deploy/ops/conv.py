"""Convolutions, plain and transposed, over images and along one axis."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from equalbits.deploy import simplify
from equalbits.deploy.graph import Value
from equalbits.deploy.ops.gather import pad
from equalbits.deploy.ops.linear import add_weighted, as_image
from equalbits.deploy.tracer import Known, Tracer, rule


@dataclass(frozen=True)
class _Geometry:
    """Sizes of a convolution over rows and columns."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    output_padding: Sequence[int]
    groups: int

    def of_one_row(self) -> "_Geometry":
        """Return the sizes of a convolution along one axis, over an image of one row."""
        return _Geometry(
            (1, *self.stride), (0, *self.padding), (1, *self.dilation), (0, *self.output_padding), self.groups
        )


@rule("convolution.default")
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
) -> Value:
    """Convolve over one or two axes; one axis is an image of one row."""
    image, geometry = tracer.value(value), _Geometry(stride, padding, dilation, output_padding, groups)
    if not isinstance(weight, Tensor):
        raise tracer.refuse("has weights computed from the image: a packed network has only constant weights")
    one_row = weight.dim() == 3
    if one_row:
        shape = (image.shape[0], 1, *image.shape[1:])
        plain = simplify.reshape(tracer.graph, image, shape, layer=tracer.layer) if transposed else None
        image = plain or as_image(tracer, image, shape)
        weight, geometry = weight.unsqueeze(2), geometry.of_one_row()
    made = (_transposed if transposed else _plain)(tracer, image, weight, bias, geometry)
    return tracer.graph.reshape(made, (made.shape[0], made.shape[2]), layer=tracer.layer) if one_row else made


def _plain(tracer: Tracer, value: Value, weight: Tensor, bias: Known, geometry: _Geometry) -> Value:
    window = {
        "kernel": tuple(weight.shape[2:]),
        "stride": geometry.stride,
        "padding": [side for side in geometry.padding for _ in range(2)],
        "dilation": geometry.dilation,
        "groups": geometry.groups,
    }
    return add_weighted(tracer, "conv", value, weight, bias, window)


@rule("conv2d.padding", "conv1d.padding")
def convolution_with_named_padding(
    tracer: Tracer,
    value: Known,
    weight: Tensor,
    bias: Known = None,
    stride: Sequence[int] = (1,),
    padding: str = "valid",
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Value:
    """Convolve with ``padding`` ``"same"`` or ``"valid"``; an odd total pads one more behind."""
    image, rank = tracer.value(value), weight.dim() - 2
    steps, reaches = ([*sizes] * rank if len(sizes) == 1 else [*sizes] for sizes in (stride, dilation))
    if rank == 1:
        image = as_image(tracer, image, (image.shape[0], 1, *image.shape[1:]))
        weight, steps, reaches = weight.unsqueeze(2), [1, *steps], [1, *reaches]
    kernel = tuple(weight.shape[2:])
    total = [reach * (size - 1) if padding == "same" else 0 for size, reach in zip(kernel, reaches, strict=True)]
    borders = [part for both in total for part in (both // 2, both - both // 2)]
    window = {"kernel": kernel, "stride": steps, "padding": borders, "dilation": reaches, "groups": groups}
    made = add_weighted(tracer, "conv", image, weight, bias, window)
    return tracer.graph.reshape(made, (made.shape[0], made.shape[2]), layer=tracer.layer) if rank == 1 else made


def _transposed(tracer: Tracer, value: Value, weight: Tensor, bias: Known, geometry: _Geometry) -> Value:
    """Add a plain convolution with flipped filters over an image with zeros between its pixels."""
    apart, kernel, borders = _insert_zeros(tracer, value, geometry.stride), tuple(weight.shape[2:]), []
    sizes = (kernel, geometry.dilation, geometry.padding, geometry.stride, geometry.output_padding)
    for size, reach, side, step, more in zip(*sizes, strict=True):
        whole = reach * (size - 1) - side
        borders += [whole, whole + more - (step - 1)]  # the last pixel has its zeros behind it already
    cropped = pad(tracer, apart, [min(0, border) for border in (*borders[2:], *borders[:2])])
    window = {
        "kernel": kernel,
        "padding": [max(0, border) for border in borders],
        "dilation": geometry.dilation,
        "groups": geometry.groups,
    }
    return add_weighted(tracer, "conv", cropped, _flip_filters(tracer, weight, geometry.groups), bias, window)


def _insert_zeros(tracer: Tracer, value: Value, stride: Sequence[int]) -> Value:
    """Return an image whose pixels are ``stride`` apart, with zeros between them and behind the last."""
    if all(step == 1 for step in stride):
        return value
    (channels, rows, columns), (down, right) = value.shape, stride
    apart = simplify.reshape(tracer.graph, value, (channels, rows, 1, columns, 1), layer=tracer.layer)
    apart = pad(tracer, apart, [0, right - 1, 0, 0, 0, down - 1])
    return simplify.reshape(tracer.graph, apart, (channels, rows * down, columns * right), layer=tracer.layer)


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
