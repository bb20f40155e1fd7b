"""The operations a packed network is made of: what each takes, and the shape of what it gives.

A value is what flows between operations: one array per image, of the shape these rules give (the images of a batch
stand before it). Channels come first: (channel, row, column), or (feature,).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equalbits.runtime import bits
from equalbits.runtime.op_settings import Setting, borders, bound, count, counts, flag, input_bits, number, pair, share

Shape = tuple[int, ...]
Tensors = Mapping[str, NDArray[Any]]
Settings = Mapping[str, Any]

#: The most numbers one value may hold, per image.
MAX_ELEMENTS = 1 << 28
#: The most numbers of a pooling's window, and the most windows of an adaptive one.
MAX_WINDOW = 1 << 20
#: The tensors of a number or two for each channel; the others, weights, have a row for each filter.
VECTORS = ("scale", "bias", "gain_shift", "slope")
#: Sums of ±1 are exact in float32 up to here.
MAX_CONNECTIONS = 1 << 24


@dataclass(frozen=True)
class Kind:
    """One kind of operation: how many values it reads, its tensors and settings, and its rule of shapes."""

    shape: Callable[[tuple[Shape, ...], Settings, Tensors], Shape]
    inputs: tuple[int, int] = (1, 1)
    tensors: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)


def connections(settings: Settings, inputs: tuple[Shape, ...]) -> int:
    """D, the connections of each filter of a convolution or linear layer whose input has this shape."""
    groups: int = settings.get("groups", 1)
    return inputs[0][0] // groups * math.prod(settings.get("kernel", ()))


def work(shape: Shape, settings: Settings, inputs: tuple[Shape, ...], tensors: Tensors) -> int:
    """How many products, or looks at a number, an operation takes for one image."""
    if "weight" in tensors:
        return math.prod(shape) * connections(settings, inputs)
    return math.prod(shape) * math.prod(settings.get("kernel", (1,))) + math.prod(inputs[0])


def out_size(size: int, kernel: int, stride: int, pad: int, dilation: int = 1) -> int:
    """How many places a window takes along an axis, ``pad`` in all on both sides.

    >>> out_size(224, 7, 2, 6)
    112
    """
    reach = dilation * (kernel - 1) + 1
    if reach > size + pad:
        raise ValueError(f"a window of {reach} does not fit into {size} with {pad} of padding")
    return (size + pad - reach) // stride + 1


def _conv(inputs: tuple[Shape, ...], settings: Settings, tensors: Tensors) -> Shape:
    channels, *_ = _image(inputs[0])
    filters, groups = _filters(tensors), settings["groups"]
    if channels % groups or filters % groups:
        raise ValueError(f"{channels} channels and {filters} filters cannot be shared out to {groups} groups")
    _check_weight(tensors, (filters, channels // groups, *settings["kernel"]))
    return (filters, *_windows(inputs[0], settings))


def _linear(inputs: tuple[Shape, ...], settings: Settings, tensors: Tensors) -> Shape:
    if len(inputs[0]) != 1:
        raise ValueError(f"reads a value of shape {inputs[0]}: it must be flat; put a flatten before it")
    filters = _filters(tensors)
    _check_weight(tensors, (filters, inputs[0][0]))
    if settings["input_bits"] != 32 and tensors["weight"].dtype != np.uint8:
        raise ValueError(f"has input_bits={settings['input_bits']} and weights that are not bits: it takes both, or 32")
    return (filters,)


def _filters(tensors: Tensors) -> int:
    if tensors["weight"].ndim < 2 or 0 in tensors["weight"].shape:
        raise ValueError(f"has a weight of shape {tensors['weight'].shape}: it needs filters and connections")
    return len(tensors["weight"])


def _check_weight(tensors: Tensors, shape: Shape) -> None:
    """A weight is real or int8 in the shape given, or a plane of bits, or two; scale and bias are per filter."""
    weight, kept, filters, width = tensors["weight"], tensors.get("kept"), shape[0], math.prod(shape[1:])
    if width >= MAX_CONNECTIONS:
        raise ValueError(f"has {width} connections a filter: {MAX_CONNECTIONS - 1} are the most that add up exactly")
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
        _check_real("scale", tensors["scale"], {(1,), (filters,)})
    if "bias" in tensors:
        _check_real("bias", tensors["bias"], {(filters,)})


def _check_real(name: str, tensor: NDArray[Any], shapes: set[Shape]) -> None:
    if tensor.dtype.kind != "f" or tensor.shape not in shapes:
        raise ValueError(f"has {name} of {tensor.dtype} and shape {tensor.shape}: it must be real, {sorted(shapes)}")


def _pool(inputs: tuple[Shape, ...], settings: Settings, tensors: Tensors) -> Shape:
    _image(inputs[0])
    (height, width), (top, bottom, left, right) = settings["kernel"], settings["padding"]
    if max(top, bottom) >= height or max(left, right) >= width:
        raise ValueError(f"pads {settings['padding']} around a window of {settings['kernel']}: less than the window")
    if height * width > MAX_WINDOW:
        raise ValueError(f"pools windows of {settings['kernel']}: {MAX_WINDOW} numbers are the most")
    return (inputs[0][0], *_windows(inputs[0], settings))


def _windows(image: Shape, settings: Settings) -> Shape:
    kernel, stride, padding = (settings[name] for name in ("kernel", "stride", "padding"))
    dilation = settings.get("dilation", (1, 1))
    pads = (padding[0] + padding[1], padding[2] + padding[3])
    if image[0] * (image[1] + pads[0]) * (image[2] + pads[1]) > MAX_ELEMENTS:
        raise ValueError(f"pads {image} by {padding}: {MAX_ELEMENTS} numbers are allowed, the border included")
    return tuple(out_size(image[1 + i], kernel[i], stride[i], pads[i], dilation[i]) for i in (0, 1))


def _adaptive(inputs: tuple[Shape, ...], settings: Settings, tensors: Tensors) -> Shape:
    channels, *_ = _image(inputs[0])
    if math.prod(settings["size"]) > MAX_WINDOW:
        raise ValueError(f"pools to {settings['size']}: {MAX_WINDOW} windows are the most")
    return (channels, *settings["size"])


def _affine(inputs: tuple[Shape, ...], settings: Settings, tensors: Tensors) -> Shape:
    _check_real("gain_shift", tensors["gain_shift"], {(2, inputs[0][0])})
    return inputs[0]


def _prelu(inputs: tuple[Shape, ...], settings: Settings, tensors: Tensors) -> Shape:
    _check_real("slope", tensors["slope"], {(1,), (inputs[0][0],)})
    return inputs[0]


def _clamp(inputs: tuple[Shape, ...], settings: Settings, tensors: Tensors) -> Shape:
    low, high = settings["min"], settings["max"]
    if low is not None and high is not None and low > high:
        raise ValueError(f"has min={low} above max={high}")
    return inputs[0]


def _same(inputs: tuple[Shape, ...], settings: Settings, tensors: Tensors) -> Shape:
    return inputs[0]


def _add(inputs: tuple[Shape, ...], settings: Settings, tensors: Tensors) -> Shape:
    if inputs[0] != inputs[1]:
        raise ValueError(f"adds values of shape {inputs[0]} and {inputs[1]}: they must be the same")
    return inputs[0]


def _concat(inputs: tuple[Shape, ...], settings: Settings, tensors: Tensors) -> Shape:
    if len({shape[1:] for shape in inputs}) > 1:
        raise ValueError(f"joins values of shapes {list(inputs)[:4]}: they may differ in their channels alone")
    return (sum(shape[0] for shape in inputs), *inputs[0][1:])


def _flatten(inputs: tuple[Shape, ...], settings: Settings, tensors: Tensors) -> Shape:
    return (math.prod(inputs[0]),)


def _reshape(inputs: tuple[Shape, ...], settings: Settings, tensors: Tensors) -> Shape:
    shape: Shape = settings["shape"]
    if not shape or math.prod(shape) != math.prod(inputs[0]):
        raise ValueError(f"reshapes {inputs[0]} to {shape}: both must hold as many numbers")
    return shape


def _permute(inputs: tuple[Shape, ...], settings: Settings, tensors: Tensors) -> Shape:
    axes = settings["axes"]
    if sorted(axes) != list(range(len(inputs[0]))):
        raise ValueError(f"permutes {inputs[0]} by {axes}: each axis must be named once, from 0")
    return tuple(inputs[0][axis] for axis in axes)


def _shuffle(inputs: tuple[Shape, ...], settings: Settings, tensors: Tensors) -> Shape:
    channels, *_ = _image(inputs[0])
    groups = settings["groups"]
    if channels % groups:
        raise ValueError(f"shuffles {channels} channels in {groups} groups: they must divide evenly")
    return inputs[0]


def _slice(inputs: tuple[Shape, ...], settings: Settings, tensors: Tensors) -> Shape:
    starts, stops, steps = (_per_axis(settings[name], inputs[0]) for name in ("start", "stop", "step"))
    for start, stop, step, size in zip(starts, stops, steps, inputs[0], strict=True):
        if not start < stop <= size or step < 1:
            raise ValueError(f"takes {start}:{stop}:{step} of an axis of {size}: it must take something that is there")
    return tuple((stop - start + step - 1) // step for start, stop, step in zip(starts, stops, steps, strict=True))


def _pad(inputs: tuple[Shape, ...], settings: Settings, tensors: Tensors) -> Shape:
    before, after = (_per_axis(settings[name], inputs[0]) for name in ("before", "after"))
    return tuple(b + size + a for b, size, a in zip(before, inputs[0], after, strict=True))


def _image(shape: Shape) -> Shape:
    if len(shape) != 3:
        raise ValueError(f"reads a value of shape {shape}: it must have channels, rows and columns")
    return shape


def _per_axis(numbers: Shape, shape: Shape) -> Shape:
    if len(numbers) != len(shape):
        raise ValueError(f"has {numbers} for a value of shape {shape}: one number per axis")
    return numbers


_ONE, _NONE = Setting(pair, (1, 1)), Setting(borders, (0, 0, 0, 0))
_WINDOW = {"kernel": Setting(pair, required=True), "stride": _ONE, "padding": _NONE}
_LIST = Setting(counts, required=True)

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "conv": Kind(
            _conv,
            tensors=("weight",),
            optional=("kept", "scale", "bias"),
            settings={**_WINDOW, "dilation": _ONE, "groups": Setting(count, 1), "p_pos": Setting(share)},
        ),
        "linear": Kind(
            _linear,
            tensors=("weight",),
            optional=("kept", "scale", "bias"),
            settings={"p_pos": Setting(share), "input_bits": Setting(input_bits, 32)},
        ),
        "affine": Kind(_affine, tensors=("gain_shift",)),
        "prelu": Kind(_prelu, tensors=("slope",)),
        "relu": Kind(_same),
        "clamp": Kind(_clamp, settings={"min": Setting(bound), "max": Setting(bound)}),
        "sign": Kind(_same),
        "add": Kind(_add, inputs=(2, 2)),
        "concat": Kind(_concat, inputs=(1, 64)),
        "max_pool": Kind(_pool, settings=_WINDOW),
        "avg_pool": Kind(_pool, settings={**_WINDOW, "count_padding": Setting(flag, True)}),
        "adaptive_avg_pool": Kind(_adaptive, settings={"size": Setting(pair, (1, 1))}),
        "flatten": Kind(_flatten),
        "reshape": Kind(_reshape, settings={"shape": _LIST}),
        "permute": Kind(_permute, settings={"axes": _LIST}),
        "channel_shuffle": Kind(_shuffle, settings={"groups": Setting(count, required=True)}),
        "slice": Kind(_slice, settings={"start": _LIST, "stop": _LIST, "step": _LIST}),
        "pad": Kind(_pad, settings={"before": _LIST, "after": _LIST, "value": Setting(number, 0.0)}),
    }
)
