"""Pooling: maximum, mean, and the mean over a grid of windows."""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from equalbits.runtime import op_specs
from equalbits.runtime.export_graph import ExportGraph, Node
from equalbits.runtime.lower import Lowering
from equalbits.runtime.op_specs import Floats, Operation, OpSpec, Setting, Settings, Shape, Shapes, Tensors
from equalbits.runtime.ops import windows

#: Maximum number of elements of a window, and of windows of an adaptive pooling.
MAX_WINDOW = 1 << 20


class _Pool(OpSpec):
    """Pool windows of an image; ``step`` is the kind of the native step."""

    step: str
    settings = windows.WINDOW
    slides = True

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        op_specs.image_shape(inputs[0])
        (height, width), (top, bottom, left, right) = settings["kernel"], settings["padding"]
        if max(top, bottom) >= height or max(left, right) >= width:
            raise ValueError(
                f"pads {settings['padding']} around a window of {settings['kernel']}: pad by less than that"
            )
        if height * width > MAX_WINDOW:
            raise ValueError(f"pools windows of {settings['kernel']}: a window may have {MAX_WINDOW} numbers at most")
        return (inputs[0][0], *windows.window_positions(inputs[0], settings))

    def lower(self, lowering: Lowering, place: int, operation: Operation) -> None:
        fields = {"IN": lowering.as_real(operation.inputs[0]), **windows.native_window(operation.settings)}
        lowering.finish_step(self.step, place + 1, fields)


class _MaxPool(_Pool):
    """The maximum of each window; padding never wins."""

    kind, step = "max_pool", "MAX_POOL"

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        padded = windows.pad_image(values[0], settings["padding"], -np.inf)
        result: Floats = windows.sliding_windows(padded, settings).max(axis=(4, 5))
        return result

    def export(self, graph: ExportGraph, operation: Operation, shape: Shape) -> Node:
        return graph.node("MaxPool", *graph.inputs(operation), **windows.onnx_window(operation.settings))


class _AvgPool(_Pool):
    """The sum of each window, divided by its size or by the number of its elements inside the image."""

    kind, step = "avg_pool", "AVG_POOL"
    settings: ClassVar = {**windows.WINDOW, "count_padding": Setting(op_specs.flag, True)}

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        padding = settings["padding"]
        total = _sum_in_order(windows.sliding_windows(windows.pad_image(values[0], padding, 0.0), settings))
        if settings["count_padding"]:
            return total / np.float32(math.prod(settings["kernel"]))
        inside = windows.pad_image(np.ones((1, 1, *values[0].shape[2:]), np.float32), padding, 0.0)
        return total / _sum_in_order(windows.sliding_windows(inside, settings))

    def export(self, graph: ExportGraph, operation: Operation, shape: Shape) -> Node:
        counted = int(operation.settings["count_padding"])
        window = windows.onnx_window(operation.settings)
        return graph.node("AveragePool", *graph.inputs(operation), **window, count_include_pad=counted)


class _AdaptiveAvgPool(_Pool):
    """The mean over a grid of windows."""

    kind, step = "adaptive_avg_pool", "ADAPTIVE"
    settings: ClassVar = {"size": windows.ONE}

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        channels, *_ = op_specs.image_shape(inputs[0])
        if math.prod(settings["size"]) > MAX_WINDOW:
            raise ValueError(f"pools to {settings['size']}: there may be {MAX_WINDOW} windows at most")
        return (channels, *settings["size"])

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        (value,), (rows, columns) = values, settings["size"]
        result = np.empty((*value.shape[:2], rows, columns), np.float32)
        for row, (top, bottom) in enumerate(adaptive_windows(value.shape[2], rows)):
            for column, (left, right) in enumerate(adaptive_windows(value.shape[3], columns)):
                total = _sum_in_order(value[:, :, None, None, top:bottom, left:right])[:, :, 0, 0]
                result[:, :, row, column] = total / np.float32((bottom - top) * (right - left))
        return result

    def export(self, graph: ExportGraph, operation: Operation, shape: Shape) -> Node:
        """Emit a product from either side with a matrix that holds the share of each element in each window."""
        (read,), (_, height, width) = graph.inputs(operation), graph.network.shapes[operation.inputs[0]]
        rows, columns = operation.settings["size"]
        if (rows, columns) == (1, 1):
            return graph.node("GlobalAveragePool", read)
        graph.check_room(4 * (height * rows + width * columns))
        before, behind = _window_shares(height, rows), _window_shares(width, columns).T
        down = graph.node("MatMul", graph.constant(before, f":{rows} of {height}"), read)
        return graph.node("MatMul", down, graph.constant(behind, f":columns {columns} of {width}"))


def adaptive_windows(size: int, parts: int) -> list[tuple[int, int]]:
    """Return start and end of each window of an adaptive pooling along an axis, as torch places them.

    >>> adaptive_windows(5, 2)
    [(0, 3), (2, 5)]
    """
    return [(i * size // parts, -(-(i + 1) * size // parts)) for i in range(parts)]


def _window_shares(size: int, parts: int) -> Floats:
    shares = np.zeros((parts, size), np.float32)
    for row, (start, stop) in zip(shares, adaptive_windows(size, parts), strict=True):
        row[start:stop] = 1 / (stop - start)
    return shares


def _sum_in_order(windows: Floats) -> Floats:
    """Sum the last two axes element by element, row by row: the order is part of the definition."""
    total = np.zeros(windows.shape[:4], np.float32)
    for row in range(windows.shape[4]):
        for column in range(windows.shape[5]):
            total += windows[..., row, column]
    return total


OPS = (_MaxPool(), _AvgPool(), _AdaptiveAvgPool())
