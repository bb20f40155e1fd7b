"""Convolution and linear layer: binary weights as planes of bits, or real weights as float32, float16 or int8.

Sums of ±1 are integers below 2²⁴, which float32 adds exactly in every order. Only the sums of real layers depend on the
order of addition.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from equalbits.runtime import bits, op_specs
from equalbits.runtime.export_graph import ExportGraph, Node
from equalbits.runtime.lower import Lowering
from equalbits.runtime.op_specs import EXACT, Floats, Operation, OpSpec, Setting, Settings, Shape, Shapes, Tensors
from equalbits.runtime.ops import windows

#: Maximum number of elements of the windows that numpy lines up at a time.
_MAX_LINED_UP = 1 << 25


class _Weighted(OpSpec):
    """A layer with weights (filter, channel per group, kernel row, kernel column)."""

    tensors = ("weight",)
    optional = ("kept", "scale", "bias")

    def numpy_bytes(self, shape: Shape, inputs: Shapes, settings: Settings, tensors: Tensors) -> int:
        """Count the weights as floats, and the windows that are lined up at a time."""
        width = op_specs.connections(settings, inputs)
        row = inputs[0][0] * shape[-1] * math.prod(settings.get("kernel", (1, 1)))
        lined_up = max(row, min(row * shape[-2], _MAX_LINED_UP)) if self.slides else 0
        wide = 16 if settings.get("input_bits") == 8 else 8
        weights = wide * len(tensors["weight"]) * width
        return super().numpy_bytes(shape, inputs, settings, tensors) + weights + 8 * lined_up

    def lower(self, lowering: Lowering, place: int, operation: Operation) -> None:
        value = operation.inputs[0]
        arrays = lowering.network.arrays(operation)
        by_rows = self.kind == "linear" and len(lowering.shapes[place + 1]) > 1
        fields = windows.native_window(operation.settings) if self.kind == "conv" else {}
        if by_rows:
            fields["SIZE0"] = math.prod(lowering.shapes[value][:-1])
        for part in ("scale", "bias"):
            if part in arrays:
                fields[part.upper()] = lowering.vector(arrays[part], place + 1, by_rows=by_rows)
        binary = arrays["weight"].dtype == np.uint8
        if binary:
            stored = {part: arrays[part] for part in ("weight", "kept") if part in arrays}
            fields |= {part.upper(): lowering.plan.weight(array, np.uint8) for part, array in stored.items()}
        step, form = "CONV_SIGNED" if binary else "CONV_REAL", lowering.input_form(place)
        if form != "floats":
            step = "CONV_BITS" if form == "bits" else "CONV_BYTES" if binary else "CONV_INT8"
            read = lowering.compact[value]
        elif operation.settings.get("input_bits") == 8:
            step, read = "LINEAR_BYTES", lowering.as_flat(value)
        elif by_rows:
            read = lowering.as_flat(value)
        else:
            read = lowering.image if value == 0 and fields.get("GROUPS", 1) == 1 else lowering.as_real(value)
        if not binary:
            fields["WEIGHT"] = lowering.plan.weight(arrays["weight"], np.int8 if step == "CONV_INT8" else np.float32)
        lowering.finish_step(step, place + 1, fields | {"IN": read}, by_rows=by_rows)

    def export(self, graph: ExportGraph, operation: Operation, shape: Shape) -> Node:
        settings, is_conv, inputs = operation.settings, self.kind == "conv", graph.network.shapes[operation.inputs[0]]
        full = (shape[-1], inputs[-1])
        if is_conv:
            full = (shape[0], inputs[0] // settings["groups"], *settings["kernel"])
        made = graph.multiply_signs(operation, full)
        if made is None:
            weight = graph.weight(operation, full)
            if is_conv:
                window = windows.onnx_window(settings) | {
                    "dilations": settings["dilation"],
                    "group": settings["groups"],
                }
                made = graph.node("Conv", *graph.inputs(operation), weight, **window)
            else:
                made = graph.node("MatMul", *graph.inputs(operation), graph.node("Transpose", weight, perm=(1, 0)))
        return graph.scale_and_shift(made, operation, (1, 1) if is_conv else ())


class _Conv(_Weighted):
    """Convolve with zero padding; with ±1 on both sides every sum is exact."""

    kind = "conv"
    slides = True
    settings: ClassVar = {
        **windows.WINDOW,
        "dilation": windows.ONE,
        "groups": Setting(op_specs.count, 1),
        "p_pos": Setting(op_specs.share),
    }

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        channels, *_ = op_specs.image_shape(inputs[0])
        filters, groups = _count_filters(tensors), settings["groups"]
        if channels % groups or filters % groups:
            raise ValueError(f"{channels} channels and {filters} filters cannot be divided into {groups} groups")
        _check_weight(tensors, (filters, channels // groups, *settings["kernel"]))
        return (filters, *windows.window_positions(inputs[0], settings))

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        lined = windows.sliding_windows(windows.pad_image(values[0], settings["padding"], 0.0), settings)
        batch, channels, rows, columns, *kernel = lined.shape
        groups, part = settings["groups"], channels // settings["groups"]
        width = part * kernel[0] * kernel[1]
        matrix = _float_weights(tensors, width).reshape(groups, -1, width)  # (group, filter, connection)
        result = np.empty((batch, groups, matrix.shape[1], rows, columns), np.float32)
        step = max(1, _MAX_LINED_UP // (batch * channels * columns * kernel[0] * kernel[1]))
        for row in range(0, rows, step):
            some = lined[:, :, row : row + step].reshape(batch, groups, part, -1, columns, *kernel)
            count = some.shape[3]
            lined_up = some.transpose(0, 1, 3, 4, 2, 5, 6).reshape(batch, groups, count * columns, width)
            sums = (lined_up @ matrix.swapaxes(1, 2)).swapaxes(2, 3)
            result[:, :, :, row : row + step] = sums.reshape(batch, groups, -1, count, columns)
        return _scale_and_shift(result.reshape(batch, -1, rows, columns), tensors)


class _Linear(_Weighted):
    """Multiply the last axis by the weights; with ``input_bits=8`` each row is rounded to integers first."""

    kind = "linear"
    settings: ClassVar = {"p_pos": Setting(op_specs.share), "input_bits": Setting(op_specs.input_bits, 32)}

    def shape(self, inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
        filters, kept_bits = _count_filters(tensors), settings["input_bits"]
        _check_weight(tensors, (filters, inputs[0][-1]))
        if kept_bits != 32 and tensors["weight"].dtype != np.uint8:
            raise ValueError(f"has input_bits={kept_bits} and weights that are not bits: real weights need 32")
        return (*inputs[0][:-1], filters)

    def run(self, values: Sequence[Floats], settings: Settings, tensors: Tensors) -> Floats:
        rows = values[0].reshape(-1, values[0].shape[-1])
        weights = _float_weights(tensors, rows.shape[1])
        if settings.get("input_bits", 32) != 8:
            made: Floats = _scale_and_shift(rows @ weights.T, tensors)
        else:
            rounded, step = round_to_bytes(rows)
            exact = np.float32 if 127 * weights.shape[1] < EXACT else np.float64
            sums: Floats = (rounded.astype(exact) @ weights.T.astype(exact)).astype(np.float32)
            made = _scale_and_shift(sums * step, tensors)
        return made.reshape(*values[0].shape[:-1], -1)


def _count_filters(tensors: Tensors) -> int:
    if tensors["weight"].ndim < 2 or 0 in tensors["weight"].shape:
        raise ValueError(f"has a weight of shape {tensors['weight'].shape}: it needs filters and connections")
    return len(tensors["weight"])


def _check_weight(tensors: Tensors, shape: Shape) -> None:
    """Check a float or int8 weight of ``shape``, or one or two planes of bits; scale and bias are per filter."""
    weight, kept, filters, width = tensors["weight"], tensors.get("kept"), shape[0], math.prod(shape[1:])
    if width >= EXACT:
        raise ValueError(f"has {width} connections per filter: sums of more than {EXACT - 1} are not exact")
    if weight.dtype != np.uint8:
        if weight.shape != shape:
            raise ValueError(f"has a weight of shape {weight.shape}: its input and kernel make it {shape}")
        if kept is not None:
            raise ValueError("has a kept plane and a weight that is not bits: only bits can be pruned")
    else:
        for plane in (weight,) if kept is None else (weight, kept):
            if plane.dtype != np.uint8 or plane.shape != (filters, bits.plane_width(width)):
                raise ValueError(
                    f"has a plane of {plane.dtype} and shape {plane.shape}: {filters} filters of {width} connections "
                    f"take uint8 ({filters}, {bits.plane_width(width)})"
                )
        if fault := bits.plane_fault(weight, kept, width):
            raise ValueError(f"has a plane that {fault}")
    if "scale" in tensors:
        op_specs.check_vector("scale", tensors["scale"], {(1,), (filters,)})
    if "bias" in tensors:
        op_specs.check_vector("bias", tensors["bias"], {(filters,)})


def round_to_bytes(value: Floats) -> tuple[Floats, Floats]:
    """Round each row to integers from −127 to 127, its largest becoming one of these; return them and the step.

    A row with a number that is not finite becomes zeros, with a step of NaN.

    >>> round_to_bytes(np.array([[0.5, -2.0, 0.0]], np.float32))[0]
    array([[  32., -127.,    0.]], dtype=float32)
    """
    largest = np.abs(value).max(axis=1, keepdims=True)
    finite = np.isfinite(largest)
    divisor = np.where(finite & (largest > 0), largest, np.float32(1))
    rounded = np.rint(np.where(finite, value, np.float32(0)) / divisor * np.float32(127))
    return rounded, np.where(finite, largest / np.float32(127), np.float32(np.nan))


def _float_weights(tensors: Tensors, width: int) -> Floats:
    """Return the weights without their scale as (filter, connection): stored floats, or the symbols of the bits."""
    weight = tensors["weight"]
    if weight.dtype == np.uint8:
        return bits.unpack_symbols(weight, tensors.get("kept"), width).astype(np.float32)
    return weight.astype(np.float32).reshape(len(weight), width)


def _scale_and_shift(sums: Floats, tensors: Tensors) -> Floats:
    tail = (1,) * (sums.ndim - 2)
    if "scale" in tensors:
        sums = sums * tensors["scale"].astype(np.float32).reshape(-1, *tail)
    return sums + tensors["bias"].astype(np.float32).reshape(-1, *tail) if "bias" in tensors else sums


OPS = (_Conv(), _Linear())
