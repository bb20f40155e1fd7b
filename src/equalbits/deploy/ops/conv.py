"""Rules for convolutions, linear layers and pooling."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from equalbits.deploy import simplify
from equalbits.deploy.graph import Arrays, Value
from equalbits.deploy.ops.gather import pad, take
from equalbits.deploy.ops.shape import transpose
from equalbits.deploy.tracer import Places, Rule, Walk
from equalbits.deploy.weights import plane_arrays
from equalbits.runtime.ops.pool import adaptive_windows


def weighted(walk: Walk, kind: str, value: Value, weight: Any, bias: Any, **settings: Any) -> Value:
    """A convolution or linear layer: bits where the weight is a binary layer's, a plane at a time; else real."""
    extra: Arrays = {} if bias is None else {"bias": walk.vector(bias)}
    found = walk.bits_of(weight)
    if found is None:
        layer = walk.tensor_layer(weight) if isinstance(weight, Tensor) else walk.layer
        return walk.steps.add(kind, value, layer=layer, arrays={"weight": walk.vector(weight), **extra}, **settings)
    walk.used.add(found.name)
    name = found.name or walk.layer
    first, *others = map(plane_arrays, found.planes)
    made = walk.steps.add(kind, value, layer=name, arrays={**first, **extra}, **settings, p_pos=found.p_pos)
    for number, plane in enumerate(others, start=1):
        part = walk.steps.add(kind, value, layer=f"{name}.{number}", arrays=plane, **settings)
        made = walk.steps.add("add", made, part, layer=name)
    return made


def conv2d(
    walk: Walk,
    value: Any,
    weight: Any,
    bias: Any = None,
    stride: Sequence[int] = (1, 1),
    padding: Any = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
) -> Value:
    """A convolution over rows and columns; ``padding`` may be ``"same"`` or ``"valid"``."""
    value, kernel, dilation = walk.value(value), tuple(weight.shape[2:]), _pair(dilation)
    if isinstance(padding, str):
        total = [reach * (size - 1) if padding == "same" else 0 for size, reach in zip(kernel, dilation, strict=True)]
        borders = [part for both in total for part in (both // 2, both - both // 2)]
    else:
        borders = [side for side in _pair(padding) for _ in range(2)]
    settings = {"kernel": kernel, "stride": _pair(stride), "padding": borders, "dilation": dilation, "groups": groups}
    return weighted(walk, "conv", value, weight, bias, **settings)


def conv1d(
    walk: Walk,
    value: Any,
    weight: Any,
    bias: Any = None,
    stride: Sequence[int] = (1,),
    padding: Any = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Value:
    """A convolution along one axis: one row of an image."""
    value = walk.value(value)
    image = _image_of(walk, value, (value.shape[0], 1, *value.shape[1:]))
    flat = weight.unsqueeze(2)  # (filter, channel, 1, connection): the same bytes
    sides = padding if isinstance(padding, str) else (0, padding[0])
    made = conv2d(walk, image, flat, bias, (1, stride[0]), sides, (1, dilation[0]), groups)
    return walk.steps.reshape(made, (made.shape[0], made.shape[2]), layer=walk.layer)


def linear(walk: Walk, value: Any, weight: Any, bias: Any = None) -> Value:
    """Every feature to every output; where features stand along a last axis, a 1×1 convolution over the others."""
    value = walk.value(value)
    if len(value.shape) == 1:
        return weighted(walk, "linear", value, weight, bias)
    *places, features = value.shape
    image = _image_of(walk, value, (math.prod(places), features, 1), axes=(1, 0, 2))
    made = weighted(walk, "conv", image, weight[:, :, None, None], bias, kernel=1)
    made = walk.steps.add("permute", made, layer=walk.layer, axes=(1, 0, 2))
    return walk.steps.reshape(made, (*places, made.shape[1]), layer=walk.layer)


def _image_of(walk: Walk, value: Value, shape: tuple[int, ...], *, axes: tuple[int, ...] = (0, 1, 2)) -> Value:
    """A value as an image for a convolution. A sign is taken behind the moves, where the convolution sees it."""
    steps, layer = walk.steps, walk.layer
    step = steps.maker(value)
    while step is not None and step.kind in ("flatten", "reshape"):
        step = steps.maker(steps.source(step))
    turned = axes != (0, 1, 2)
    signed = step is not None and step.kind == "sign" and (turned or step.shape != shape)
    value = steps.source(step) if step is not None and signed else value
    image = simplify.reshape(steps, value, shape, layer=layer)
    image = steps.add("permute", image, layer=layer, axes=axes) if turned else image
    return steps.add("sign", image, layer=layer) if signed else image


def matmul(walk: Walk, value: Any, weight: Any) -> Value:
    """A product with a constant matrix from either side."""
    if isinstance(value, Tensor) and value.dim() == 2 and isinstance(weight, Value) and len(weight.shape) == 2:
        return transpose(walk, linear(walk, transpose(walk, weight), value))
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        raise walk.refuse(
            "multiplies two values that come of the image: a packed network multiplies by constants alone"
        )
    return linear(walk, value, weight.T.contiguous())


def addmm(walk: Walk, bias: Any, value: Any, weight: Any) -> Value:
    """A product with a constant matrix, and a bias."""
    return linear(walk, value, weight.T.contiguous(), bias)


def max_pool2d(
    walk: Walk, value: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Value:
    """The largest of each window; rounding up adds places outside, which never win."""
    if _pair(dilation) != (1, 1):
        raise walk.refuse(f"pools with dilation {dilation}: a packed network pools without")
    settings, _ = _window(walk, walk.value(value), kernel, stride, padding)
    return walk.steps.add("max_pool", walk.value(value), layer=walk.layer, **settings)


def avg_pool2d(
    walk: Walk,
    value: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil: bool = False,
    count_padding: bool = True,
    divisor: int | None = None,
) -> Value:
    """The mean of each window; torch does not count what lies beyond the padding, where it rounds up."""
    image = walk.value(value)
    settings, beyond = _window(walk, image, kernel, stride, padding)
    high, wide = settings["kernel"]
    if divisor is not None:
        made = walk.steps.add("avg_pool", image, layer=walk.layer, **settings)
        return walk.affine(made, high * wide / divisor)
    if beyond and count_padding and _pair(padding) != (0, 0):
        rows, columns = _pair(padding)
        image = pad(walk, image, [columns, columns, rows, rows])
        settings, _ = _window(walk, image, kernel, stride, 0)
    return walk.steps.add("avg_pool", image, layer=walk.layer, **settings, count_padding=count_padding and not beyond)


def adaptive_avg_pool2d(walk: Walk, value: Any, size: Any) -> Value:
    """The mean over a grid of windows."""
    assert walk.shape is not None
    return walk.steps.add("adaptive_avg_pool", walk.value(value), layer=walk.layer, size=walk.shape[2:])


def adaptive_max_pool2d(walk: Walk, value: Any, size: Any) -> tuple[Value, Places]:
    """The largest over a grid of windows, each filled up by its last entry to the longest; and no places of them."""
    made, kernel = walk.value(value), []
    for axis, parts in enumerate(_pair(size), start=2):
        windows = adaptive_windows(made.shape[axis - 1], parts)
        longest = max(stop - start for start, stop in windows)
        places = [min(start + place, stop - 1) for start, stop in windows for place in range(longest)]
        made = take(walk, made, axis, places)
        kernel.append(longest)
    return walk.steps.add("max_pool", made, layer=walk.layer, kernel=kernel, stride=kernel), Places()


def one_row(pool: Rule) -> Rule:
    """A pooling along one axis: an image of one row."""

    def rule(walk: Walk, value: Any, *sizes: Any) -> Any:
        source = walk.value(value)
        *channels, length = source.shape
        image = simplify.reshape(walk.steps, source, (*(channels or [1]), 1, length), layer=walk.layer)
        if walk.shape is not None:
            walk.shape = (walk.batch, image.shape[0], 1, walk.shape[-1])
        across = (1, 1, 0, 1)  # of a window, its stride, padding and dilation; flags come behind these
        both = [_across(size, across[place]) if isinstance(size, list) else size for place, size in enumerate(sizes)]
        made = pool(walk, image, *both)
        first = made[0] if isinstance(made, tuple) else made
        row = walk.steps.reshape(first, (*channels, first.shape[2]), layer=walk.layer)
        return (row, Places()) if isinstance(made, tuple) else row

    return rule


def _window(walk: Walk, value: Value, kernel: Any, stride: Any, padding: Any) -> tuple[dict[str, Any], bool]:
    """A pooling's settings, with what rounding up adds below and on the right; and whether it adds anything."""
    assert walk.shape is not None
    sizes, steps, sides = _pair(kernel), _pair(stride or kernel), _pair(padding)
    borders, beyond = [], False
    for axis in (0, 1):
        reach = (walk.shape[2 + axis] - 1) * steps[axis] + sizes[axis]
        missing = max(0, reach - value.shape[1 + axis] - 2 * sides[axis])
        borders += [sides[axis], sides[axis] + missing]
        beyond |= missing > 0
    return {"kernel": sizes, "stride": steps, "padding": borders}, beyond


def _across(size: list[int], rows: int) -> tuple[int, ...]:
    """A size along a row as one of rows and columns; an empty one says nothing."""
    return (rows, *size) if size else ()


def _pair(sizes: Any) -> tuple[int, int]:
    whole = [sizes] if isinstance(sizes, int) else list(sizes)
    return whole[0], whole[-1]


RULES: dict[str, Rule] = {
    "conv2d.default": conv2d,
    "conv2d.padding": conv2d,
    "conv1d.default": conv1d,
    "conv1d.padding": conv1d,
    "linear.default": linear,
    "matmul.default": matmul,
    "mm.default": matmul,
    "addmm.default": addmm,
    "max_pool2d.default": max_pool2d,
    "avg_pool2d.default": avg_pool2d,
    "adaptive_avg_pool2d.default": adaptive_avg_pool2d,
    "adaptive_max_pool2d.default": adaptive_max_pool2d,
    "max_pool1d.default": one_row(max_pool2d),
    "avg_pool1d.default": one_row(avg_pool2d),
    "adaptive_avg_pool1d.default": one_row(adaptive_avg_pool2d),
    "adaptive_max_pool1d.default": one_row(adaptive_max_pool2d),
}
