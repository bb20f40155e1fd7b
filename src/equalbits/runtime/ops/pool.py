"""Pooling: maximum, mean, and the mean over a grid of windows."""

import math
from typing import TYPE_CHECKING

import numpy as np

from equalbits.runtime.op_specs import (
    Floats,
    OpSpec,
    Setting,
    Settings,
    Shape,
    Shapes,
    Tensors,
    flag,
    image_shape,
    pair,
)
from equalbits.runtime.ops.windows import (
    WINDOW,
    native_window,
    onnx_window,
    openvino_window,
    pad_image,
    sliding_windows,
    window_positions,
)

if TYPE_CHECKING:
    from equalbits.runtime.export_graphs import OnnxGraph, OpenvinoGraph, OpenvinoNode
    from equalbits.runtime.lower import Lowering
    from equalbits.runtime.network import Operation

#: Maximum number of elements of a window, and of windows of an adaptive pooling.
MAX_WINDOW = 1 << 20

_STEPS = {"max_pool": "MAX_POOL", "avg_pool": "AVG_POOL", "adaptive_avg_pool": "ADAPTIVE"}


def _pool_shape(inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
    image_shape(inputs[0])
    (height, width), (top, bottom, left, right) = settings["kernel"], settings["padding"]
    if max(top, bottom) >= height or max(left, right) >= width:
        raise ValueError(f"pads {settings['padding']} around a window of {settings['kernel']}: pad by less than that")
    if height * width > MAX_WINDOW:
        raise ValueError(f"pools windows of {settings['kernel']}: a window may have {MAX_WINDOW} numbers at most")
    return (inputs[0][0], *window_positions(inputs[0], settings))


def _adaptive_shape(inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
    channels, *_ = image_shape(inputs[0])
    if math.prod(settings["size"]) > MAX_WINDOW:
        raise ValueError(f"pools to {settings['size']}: there may be {MAX_WINDOW} windows at most")
    return (channels, *settings["size"])


def _run_max(value: Floats, *, tensors: Tensors, settings: Settings) -> Floats:
    """Take the maximum of each window; padding never wins."""
    result: Floats = sliding_windows(pad_image(value, settings["padding"], -np.inf), settings).max(axis=(4, 5))
    return result


def _run_avg(value: Floats, *, tensors: Tensors, settings: Settings) -> Floats:
    """Divide the sum of each window by its size, or by the number of its elements inside the image."""
    (height, width), padding = settings["kernel"], settings["padding"]
    total = _sum_in_order(sliding_windows(pad_image(value, padding, 0.0), settings))
    if settings["count_padding"]:
        return total / np.float32(height * width)
    inside = pad_image(np.ones((1, 1, *value.shape[2:]), np.float32), padding, 0.0)
    return total / _sum_in_order(sliding_windows(inside, settings))


def _run_adaptive(value: Floats, *, tensors: Tensors, settings: Settings) -> Floats:
    rows, columns = settings["size"]
    result = np.empty((*value.shape[:2], rows, columns), np.float32)
    for row, (top, bottom) in enumerate(adaptive_windows(value.shape[2], rows)):
        for column, (left, right) in enumerate(adaptive_windows(value.shape[3], columns)):
            total = _sum_in_order(value[:, :, None, None, top:bottom, left:right])[:, :, 0, 0]
            result[:, :, row, column] = total / np.float32((bottom - top) * (right - left))
    return result


def adaptive_windows(size: int, parts: int) -> list[tuple[int, int]]:
    """Return start and end of each window of an adaptive pooling along an axis, as torch places them.

    >>> adaptive_windows(5, 2)
    [(0, 3), (2, 5)]
    """
    return [(i * size // parts, -(-(i + 1) * size // parts)) for i in range(parts)]


def _sum_in_order(windows: Floats) -> Floats:
    """Sum the last two axes element by element, row by row: the order is part of the definition."""
    total = np.zeros(windows.shape[:4], np.float32)
    for row in range(windows.shape[4]):
        for column in range(windows.shape[5]):
            total += windows[..., row, column]
    return total


def _lower(lowering: "Lowering", place: int, operation: "Operation") -> None:
    fields = {"IN": lowering.as_real(operation.inputs[0]), **native_window(operation.settings)}
    lowering.finish_step(_STEPS[operation.kind], place + 1, fields)


def _to_onnx(graph: "OnnxGraph", operation: "Operation", shape: Shape) -> None:
    window = onnx_window(operation.settings)
    if operation.kind == "max_pool":
        graph.node("MaxPool", graph.inputs(operation)[0], **window)
    else:
        counted = int(operation.settings["count_padding"])
        graph.node("AveragePool", graph.inputs(operation)[0], **window, count_include_pad=counted)


def _to_openvino(graph: "OpenvinoGraph", operation: "Operation", shape: Shape) -> "OpenvinoNode":
    (stride, before, behind, _), kernel = openvino_window(operation.settings), list(operation.settings["kernel"])
    value = graph.values[operation.inputs[0]]
    if operation.kind == "max_pool":
        return graph.op1.max_pool(value, stride, before, behind, kernel)
    return graph.op1.avg_pool(value, stride, before, behind, kernel, not operation.settings["count_padding"])


def _adaptive_to_onnx(graph: "OnnxGraph", operation: "Operation", shape: Shape) -> None:
    """Emit a product from either side with a matrix that holds the share of each element in each window."""
    (read,), (_, height, width) = graph.inputs(operation), graph.network.shapes[operation.inputs[0]]
    rows, columns = operation.settings["size"]
    if (rows, columns) == (1, 1):
        graph.node("GlobalAveragePool", read)
        return
    down = graph.node("MatMul", graph.constant(_window_shares(height, rows)), read)
    graph.node("MatMul", down, graph.constant(_window_shares(width, columns).T))


def _window_shares(size: int, parts: int) -> Floats:
    shares = np.zeros((parts, size), np.float32)
    for row, (start, stop) in zip(shares, adaptive_windows(size, parts), strict=True):
        row[start:stop] = 1 / (stop - start)
    return shares


def _adaptive_to_openvino(graph: "OpenvinoGraph", operation: "Operation", shape: Shape) -> "OpenvinoNode":
    return graph.op.adaptive_avg_pool(graph.values[operation.inputs[0]], graph.int_list(*operation.settings["size"]))


max_pool = OpSpec(_pool_shape, _run_max, _to_onnx, _to_openvino, _lower, settings=WINDOW)
avg_pool = OpSpec(
    _pool_shape,
    _run_avg,
    _to_onnx,
    _to_openvino,
    _lower,
    settings={**WINDOW, "count_padding": Setting(flag, True)},
)
adaptive_avg_pool = OpSpec(
    _adaptive_shape,
    _run_adaptive,
    _adaptive_to_onnx,
    _adaptive_to_openvino,
    _lower,
    settings={"size": Setting(pair, (1, 1))},
)
OPS = {"max_pool": max_pool, "avg_pool": avg_pool, "adaptive_avg_pool": adaptive_avg_pool}
