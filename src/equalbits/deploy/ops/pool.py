"""Pooling over images. Pooling along one axis is decomposed into pooling of an image of one row."""

import math
from collections.abc import Sequence
from typing import Any

from equalbits.deploy.ops.gather import pad, take
from equalbits.deploy.traced_values import Indices, Value
from equalbits.deploy.tracer import Tracer, rule
from equalbits.runtime import Settings, adaptive_windows


@rule("max_pool2d_with_indices.default", batch="pool")
def max_pool2d(
    tracer: Tracer,
    value: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Value, Indices]:
    """Take the maximum of each window; ``ceil_mode`` adds padding, which never wins."""
    if _pair(dilation) != (1, 1):
        raise tracer.refuse(f"pools with dilation {list(dilation)}: a packed network has no dilated pooling")
    image = _as_image(tracer, value)
    window, _ = _window(tracer, image, kernel, stride, padding)
    return tracer.reshape(tracer.add("max_pool", image, **window), tracer.output_shape()), Indices()


@rule("max_pool2d.default", batch="pool")
def max_pool2d_without_indices(tracer: Tracer, value: Value, *window: Any) -> Value:
    """Take the maximum of each window."""
    return max_pool2d(tracer, value, *window)[0]


@rule("avg_pool2d.default", batch="pool")
def avg_pool2d(
    tracer: Tracer,
    value: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    """Take the mean of each window; torch never counts what ``ceil_mode`` adds beyond the padding."""
    image = _as_image(tracer, value)
    window, beyond = _window(tracer, image, kernel, stride, padding)
    if divisor_override is not None:
        made = tracer.add("avg_pool", image, **window)
        made = tracer.affine(made, math.prod(window["kernel"]) / divisor_override)
        return tracer.reshape(made, tracer.output_shape())
    if beyond and count_include_pad and _pair(padding) != (0, 0):
        rows, columns = _pair(padding)
        image = pad(tracer, image, [columns, columns, rows, rows])
        window, _ = _window(tracer, image, kernel, stride, (0,))
    made = tracer.add("avg_pool", image, **window, count_padding=count_include_pad and not beyond)
    return tracer.reshape(made, tracer.output_shape())


@rule("adaptive_avg_pool2d.default", "_adaptive_avg_pool2d.default", batch="pool")
def adaptive_avg_pool2d(tracer: Tracer, value: Value, size: Sequence[int]) -> Value:
    """Take the mean over a grid of windows."""
    made = tracer.add("adaptive_avg_pool", _as_image(tracer, value), size=tracer.output_shape()[-2:])
    return tracer.reshape(made, tracer.output_shape())


@rule("adaptive_max_pool2d.default")
def adaptive_max_pool2d(tracer: Tracer, value: Value, size: Sequence[int]) -> tuple[Value, Indices]:
    """Take the maximum over a grid of windows, each filled up to the longest with its last entry."""
    made, kernel = _as_image(tracer, value), []
    for axis, parts in enumerate(_pair(size), start=2):
        windows = adaptive_windows(made.shape[axis - 1], parts)
        longest = max(stop - start for start, stop in windows)
        made = take(tracer, made, axis, [min(start + i, stop - 1) for start, stop in windows for i in range(longest)])
        kernel.append(longest)
    made = tracer.add("max_pool", made, kernel=kernel, stride=kernel)
    return tracer.reshape(made, tracer.output_shape()), Indices()


def _as_image(tracer: Tracer, value: Value) -> Value:
    """Return a value with a channel axis, which torch's pooling of a list of features leaves out."""
    return tracer.reshape(value, (1,) * (3 - len(value.shape)) + value.shape, merge=False)


def _window(
    tracer: Tracer, value: Value, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> tuple[Settings, bool]:
    """Return the settings of a pooling with the padding that ``ceil_mode`` adds, and whether it adds any."""
    output = tracer.output_shape()
    sizes, steps, sides = _pair(kernel), _pair(stride or kernel), _pair(padding)
    borders, beyond = [], False
    for axis in (0, 1):
        reach = (output[axis - 2] - 1) * steps[axis] + sizes[axis]
        missing = max(0, reach - value.shape[1 + axis] - 2 * sides[axis])
        borders += [sides[axis], sides[axis] + missing]
        beyond |= missing > 0
    return {"kernel": sizes, "stride": steps, "padding": borders}, beyond


def _pair(sizes: Sequence[int]) -> tuple[int, int]:
    return sizes[0], sizes[-1]
