"""Rules for transposed convolutions: plain ones, their filters turned round, over an image with zeros put in."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from equalbits.deploy import simplify
from equalbits.deploy.graph import Value
from equalbits.deploy.ops.conv import weighted
from equalbits.deploy.ops.gather import pad
from equalbits.deploy.tracer import Rule, Walk


def conv_transpose2d(
    walk: Walk,
    value: Any,
    weight: Any,
    bias: Any = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    beyond: Sequence[int] = (0, 0),
    groups: int = 1,
    dilation: Sequence[int] = (1, 1),
) -> Value:
    """Each pixel writes a window; so each pixel of the answer reads one, of pixels that stand ``stride`` apart."""
    apart, kernel = _spread(walk, walk.value(value), stride), tuple(weight.shape[2:])
    borders = []
    for size, reach, side, step, more in zip(kernel, dilation, padding, stride, beyond, strict=True):
        whole = reach * (size - 1) - side
        borders += [whole, whole + more - (step - 1)]  # the last pixel has its zeros behind it already
    made = pad(walk, apart, [min(0, border) for border in (*borders[2:], *borders[:2])])
    settings = {"kernel": kernel, "padding": [max(0, border) for border in borders], "dilation": list(dilation)}
    return weighted(walk, "conv", made, _turned(walk, weight, groups), bias, **settings, groups=groups)


def conv_transpose1d(
    walk: Walk,
    value: Any,
    weight: Any,
    bias: Any = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    beyond: Sequence[int] = (0,),
    groups: int = 1,
    dilation: Sequence[int] = (1,),
) -> Value:
    """The same along one axis: one row of an image."""
    value = walk.value(value)
    image = simplify.reshape(walk.steps, value, (value.shape[0], 1, value.shape[1]), layer=walk.layer)
    sizes = ((1, *stride), (0, *padding), (0, *beyond), groups, (1, *dilation))
    made = conv_transpose2d(walk, image, weight.unsqueeze(2), bias, *sizes)
    return walk.steps.reshape(made, (made.shape[0], made.shape[2]), layer=walk.layer)


def _spread(walk: Walk, value: Value, stride: Sequence[int]) -> Value:
    """An image whose pixels stand ``stride`` apart, zeros between them and behind the last."""
    if all(step == 1 for step in stride):
        return value
    (channels, rows, columns), (down, right) = value.shape, stride
    apart = simplify.reshape(walk.steps, value, (channels, rows, 1, columns, 1), layer=walk.layer)
    apart = pad(walk, apart, [0, right - 1, 0, 0, 0, down - 1])
    return simplify.reshape(walk.steps, apart, (channels, rows * down, columns * right), layer=walk.layer)


def _turned(walk: Walk, weight: Any, groups: int) -> Any:
    """A weight of (in, out/groups, …) as one of (out, in/groups, …), each filter from its end to its start.

    A binary layer's planes are by filter already, in that order. What the walk knows of a weight it then knows of this.
    """
    if not isinstance(weight, Tensor):
        return weight
    inputs, part, *kernel = weight.shape
    grouped = weight.reshape(groups, inputs // groups, part, *kernel).transpose(1, 2)
    made = grouped.reshape(groups * part, inputs // groups, *kernel).flip(2, 3).contiguous()
    found = walk.binary.get(weight.data_ptr())
    if found is not None and weight.is_contiguous() and made.flatten(1).shape == found.planes[0].symbols.shape:
        turned = [np.flip(plane.symbols.reshape(made.shape), (2, 3)).reshape(len(made), -1) for plane in found.planes]
        planes = tuple(replace(plane, symbols=each) for plane, each in zip(found.planes, turned, strict=True))
        walk.binary[made.data_ptr()] = replace(found, planes=planes)
    walk.names[made.data_ptr()] = walk.names.get(weight.data_ptr(), "")
    walk.made.append(made)
    return made


RULES: dict[str, Rule] = {
    "conv_transpose2d.input": conv_transpose2d,
    "conv_transpose1d.default": conv_transpose1d,
}
