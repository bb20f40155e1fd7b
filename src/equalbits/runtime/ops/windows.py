"""Sliding windows, shared by convolutions and pooling: geometry, numpy views, native fields and export attributes."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from equalbits.runtime.op_specs import MAX_ELEMENTS, Floats, Setting, Settings, Shape, borders, pair

ONE = Setting(pair, (1, 1))
#: Settings of every operation that slides a window.
WINDOW = {"kernel": Setting(pair, required=True), "stride": ONE, "padding": Setting(borders, (0, 0, 0, 0))}


def window_positions(image: Shape, settings: Settings) -> Shape:
    """Return how many rows and columns of windows an image has."""
    kernel, stride, padding = (settings[name] for name in ("kernel", "stride", "padding"))
    dilation = settings.get("dilation", (1, 1))
    pads = (padding[0] + padding[1], padding[2] + padding[3])
    if image[0] * (image[1] + pads[0]) * (image[2] + pads[1]) > MAX_ELEMENTS:
        raise ValueError(f"pads {image} by {padding}: the padded image may have {MAX_ELEMENTS} numbers at most")
    reaches = [reach * (size - 1) + 1 for size, reach in zip(kernel, dilation, strict=True)]
    for size, pad, reach in zip(image[1:], pads, reaches, strict=True):
        if reach > size + pad:
            raise ValueError(f"a window of {reach} does not fit into {size} with {pad} of padding")
    return tuple((image[1 + i] + pads[i] - reaches[i]) // stride[i] + 1 for i in (0, 1))


def pad_image(value: Floats, padding: tuple[int, int, int, int], fill: float) -> Floats:
    """Pad the rows and columns of a batch of images."""
    top, bottom, left, right = padding
    if padding == (0, 0, 0, 0):
        return value
    return np.pad(value, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=np.float32(fill))


def sliding_windows(value: Floats, settings: Settings) -> Floats:
    """Return a view of every window: (batch, channel, row, column, kernel row, kernel column)."""
    (height, width), (down, right) = settings["kernel"], settings["stride"]
    tall, wide = settings.get("dilation", (1, 1))
    reach = (tall * (height - 1) + 1, wide * (width - 1) + 1)
    return sliding_window_view(value, reach, axis=(2, 3))[:, :, ::down, ::right, ::tall, ::wide]


def native_window(settings: Settings) -> dict[str, int]:
    """Return the fields of a native step's window; the plan fills in those an operation does not have."""
    fields = {}
    for name in ("kernel", "stride", "dilation"):
        if name in settings:
            fields[f"{name.upper()}_H"], fields[f"{name.upper()}_W"] = settings[name]
    if "padding" in settings:
        for side, size in zip(("TOP", "BOTTOM", "LEFT", "RIGHT"), settings["padding"], strict=True):
            fields[f"PAD_{side}"] = size
    return fields | {"GROUPS": settings.get("groups", 1), "COUNT_PADDING": int(settings.get("count_padding", True))}


def onnx_window(settings: Settings) -> dict[str, Shape]:
    """Return the attributes of an ONNX node's window."""
    top, bottom, left, right = settings["padding"]
    return {"kernel_shape": settings["kernel"], "strides": settings["stride"], "pads": (top, left, bottom, right)}
