"""A packed network as OpenVINO's IR, its binary convolutions as the BinaryConvolution that OpenVINO's CPU plugin runs.

BinaryConvolution takes weights of one bit and an input that a FakeQuantize of two levels made; its padding is 0, so its
sums are ours to the last bit. It has neither groups nor pruned weights, and wants whole bytes of channels. Pruned
weights are the mean of two binary convolutions, one with +1 and one with −1 in the holes. All else runs as a plain
convolution whose bits the graph unpacks when it is loaded.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equalbits.runtime import Network, Operation, PackedModel, bits
from equalbits.runtime.op_specs import connections

#: FakeQuantize gives its upper level above its edge, not at it. The largest number below 0 that is no denormal has
#: every 0 above it, as :mod:`equalbits.runtime.numpy_ops` has.
_EDGE = -np.finfo(np.float32).tiny

#: What moves numbers about, and what works on them one by one.
_MOVES = ("flatten", "reshape", "permute", "channel_shuffle", "slice", "pad", "concat")
_BY_NUMBER = ("affine", "prelu", "relu", "clamp", "add")


def export_openvino(packed: PackedModel, path: str | os.PathLike[str], *, batch: int = 1) -> None:
    """Write ``path`` (net.xml) and the weights beside it (net.bin); needs the package ``openvino``.

    The network takes exactly ``batch`` images at a time: BinaryConvolution knows no other way. Its input is called
    ``images``, its output ``logits``; compile it with ``INFERENCE_PRECISION_HINT`` ``f32`` for the packed answers.
    """
    import openvino as ov

    ov.save_model(build_openvino(packed.network, batch), os.fspath(path), compress_to_fp16=False)


def build_openvino(network: Network, batch: int = 1) -> Any:
    """The ``openvino.Model`` of a packed network."""
    import openvino as ov

    graph = _Graph(network, batch)
    for place, operation in enumerate(network.operations):
        graph.values[place + 1] = _EMIT[operation.kind](graph, operation, network.shapes[place + 1])
    answer = graph.op.result(graph.values[len(network.operations)], name="logits")
    answer.output(0).set_names({"logits"})
    return ov.Model([answer], [graph.values[0]], "equalbits")


class _Graph:
    """The nodes so far, by the value they stand for. A sign is kept as an image of 0 and 1 (``ones``) as well."""

    def __init__(self, network: Network, batch: int) -> None:
        import openvino as ov
        from openvino import opset1, opset13

        self.ov, self.op, self.op1 = ov, opset13, opset1
        self.network, self.batch = network, batch
        images = opset13.parameter([batch, *network.input_shape], ov.Type.f32, name="images")
        images.output(0).set_names({"images"})
        self.values: dict[int, Any] = {0: images}
        self.ones: dict[int, Any] = {}

    def shaped(self, value: Any, shape: tuple[int, ...]) -> Any:
        """A value in another shape."""
        return self.op.reshape(value, self.whole(self.batch, *shape), False)

    def signs(self, bits_: Any) -> Any:
        """±1 from 0 and 1."""
        return self.op.subtract(self.op.multiply(bits_, self.number(2)), self.number(1))

    def number(self, value: Any) -> Any:
        """A constant of float32."""
        return self.op.constant(np.asarray(value, np.float32))

    def whole(self, *numbers: int) -> Any:
        """A constant list of whole numbers."""
        return self.op.constant(np.array(numbers, np.int64))

    def stored(self, array: NDArray[Any]) -> Any:
        """A constant as it is stored, widened to float32 in the graph."""
        constant = self.op.constant(np.array(array))
        return constant if array.dtype == np.float32 else self.op.convert(constant, "f32")

    def bits(self, ones: NDArray[np.bool_], shape: tuple[int, ...], *, lowest_first: bool) -> Any:
        """A constant of one bit a number; they follow each other without gaps.

        OpenVINO's own unpacking takes the highest bit of a byte first, BinaryConvolution the lowest.
        """
        tensor = self.ov.Tensor(self.ov.Type.u1, self.ov.Shape(list(shape)))
        tensor.data[:] = np.packbits(ones.reshape(-1), bitorder="little" if lowest_first else "big")
        return self.ov.op.Constant(tensor)

    def unpacked(self, ones: NDArray[np.bool_], shape: tuple[int, ...]) -> Any:
        """Stored bits, as 0 and 1 in float32."""
        return self.op.convert(self.bits(ones, shape, lowest_first=False), "f32")


def _weighted(graph: _Graph, operation: Operation, shape: tuple[int, ...]) -> Any:
    """A convolution or linear layer, by bits where OpenVINO can."""
    arrays, settings = graph.network.arrays(operation), operation.settings
    value = operation.inputs[0]
    inputs = graph.network.shapes[value]
    width, groups = connections(settings, (inputs,)), settings.get("groups", 1)
    kernel = settings.get("kernel", (1, 1))
    full = (shape[0], inputs[0] // groups, *kernel)
    binary = arrays["weight"].dtype == np.uint8
    symbols = bits.unpack_symbols(arrays["weight"], arrays.get("kept"), width) if binary else None
    half = 1.0
    if symbols is not None and value in graph.ones and groups == 1 and inputs[0] % 8 == 0:
        made, half = _by_bits(graph, graph.ones[value], symbols, full, settings)
    else:
        image = _as_image(graph, graph.values[value], inputs)
        made = _by_reals(graph, image, _real_weights(graph, arrays, symbols, full, groups), settings)
    made = made if operation.kind == "conv" else graph.shaped(made, shape)
    tail = (1, 1) if operation.kind == "conv" else ()
    if "scale" in arrays or half != 1:
        scale = arrays.get("scale", np.ones(1, np.float32)) * np.float32(half)
        made = graph.op.multiply(made, graph.stored(scale.reshape(1, -1, *tail)))
    if "bias" in arrays:
        made = graph.op.add(made, graph.stored(arrays["bias"].reshape(1, -1, *tail)))
    return made


def _by_bits(graph: _Graph, image: Any, symbols: Any, full: tuple[int, ...], settings: Any) -> tuple[Any, float]:
    """The sum by BinaryConvolution, and what it is to be multiplied by: ½ where two were needed for pruned weights."""
    stride, begin, end, dilation = _window(settings)
    planes = [symbols == 1] if symbols.all() else [symbols >= 0, symbols == 1]
    parts = [
        graph.op.binary_convolution(
            image, graph.bits(ones, full, lowest_first=True), stride, begin, end, dilation, "xnor-popcount", 0.0
        )
        for ones in planes
    ]
    return (parts[0], 1.0) if len(parts) == 1 else (graph.op.add(*parts), 0.5)


def _by_reals(graph: _Graph, image: Any, weight: Any, settings: Any) -> Any:
    stride, begin, end, dilation = _window(settings)
    make = graph.op.convolution if settings.get("groups", 1) == 1 else graph.op.group_convolution
    return make(image, weight, stride, begin, end, dilation)


def _real_weights(
    graph: _Graph, arrays: dict[str, NDArray[Any]], symbols: Any, full: tuple[int, ...], groups: int
) -> Any:
    """Weights as reals, grouped; bits are stored as such and unpacked in the graph."""
    shape = full if groups == 1 else (groups, full[0] // groups, *full[1:])
    if symbols is None:
        return graph.stored(arrays["weight"].reshape(shape))
    weight = graph.signs(graph.unpacked(symbols == 1, shape))
    if symbols.all():
        return weight
    return graph.op.multiply(weight, graph.unpacked(symbols != 0, shape))


def _as_image(graph: _Graph, value: Any, shape: tuple[int, ...]) -> Any:
    return value if len(shape) == 3 else graph.shaped(value, (*shape, 1, 1))


def _window(settings: Any) -> tuple[list[int], list[int], list[int], list[int]]:
    top, bottom, left, right = settings.get("padding", (0, 0, 0, 0))
    stride, dilation = (list(settings.get(name, (1, 1))) for name in ("stride", "dilation"))
    return stride, [top, left], [bottom, right], dilation


def _affine(graph: _Graph, operation: Operation, shape: tuple[int, ...]) -> Any:
    tail = (1,) * (len(shape) - 1)
    gain, shift = (graph.stored(row.reshape(1, -1, *tail)) for row in graph.network.arrays(operation)["gain_shift"])
    return graph.op.add(graph.op.multiply(graph.values[operation.inputs[0]], gain), shift)


def _prelu(graph: _Graph, operation: Operation, shape: tuple[int, ...]) -> Any:
    slope = np.broadcast_to(graph.network.arrays(operation)["slope"], shape[:1])
    return graph.op.prelu(graph.values[operation.inputs[0]], graph.stored(slope))


def _clamp(graph: _Graph, operation: Operation, shape: tuple[int, ...]) -> Any:
    most = float(np.finfo(np.float32).max)
    low, high = operation.settings["min"], operation.settings["max"]
    return graph.op.clamp(
        graph.values[operation.inputs[0]], -most if low is None else low, most if high is None else high
    )


def _sign(graph: _Graph, operation: Operation, shape: tuple[int, ...]) -> Any:
    """A plain choice for whoever reads reals; a FakeQuantize, which works on images alone, for BinaryConvolution."""
    value = graph.values[operation.inputs[0]]
    if len(shape) in (1, 3):
        edge, low, high = graph.number(_EDGE), graph.number(0), graph.number(1)
        image = _as_image(graph, value, shape)
        if _is_moved(graph.network, operation.inputs[0]):
            image = graph.op1.max_pool(image, [1, 1], [0, 0], [0, 0], [1, 1])  # without, OpenVINO writes out of bounds
        ones = graph.op.fake_quantize(image, edge, edge, low, high, 2)
        graph.ones[len(graph.values)] = ones
    above = graph.op.greater_equal(value, graph.number(0))
    return graph.op.select(above, graph.number(1), graph.number(-1))


def _is_moved(network: Network, value: int) -> bool:
    """Whether a value's numbers were moved about last, by whatever works number by number behind that."""
    seen, wanted = set[int](), [value]
    while wanted:
        value = wanted.pop()
        kind = network.operations[value - 1].kind if value else ""
        if kind in _MOVES:
            return True
        if kind in _BY_NUMBER and value not in seen:
            wanted.extend(network.operations[value - 1].inputs)
        seen.add(value)
    return False


def _pool(graph: _Graph, operation: Operation, shape: tuple[int, ...]) -> Any:
    (stride, begin, end, _), kernel = _window(operation.settings), list(operation.settings["kernel"])
    value = graph.values[operation.inputs[0]]
    if operation.kind == "max_pool":
        return graph.op1.max_pool(value, stride, begin, end, kernel)
    return graph.op1.avg_pool(value, stride, begin, end, kernel, not operation.settings["count_padding"])


def _adaptive(graph: _Graph, operation: Operation, shape: tuple[int, ...]) -> Any:
    return graph.op.adaptive_avg_pool(graph.values[operation.inputs[0]], graph.whole(*operation.settings["size"]))


def _reshape(graph: _Graph, operation: Operation, shape: tuple[int, ...]) -> Any:
    return graph.shaped(graph.values[operation.inputs[0]], shape)


def _permute(graph: _Graph, operation: Operation, shape: tuple[int, ...]) -> Any:
    axes = [0, *(axis + 1 for axis in operation.settings["axes"])]
    return graph.op.transpose(graph.values[operation.inputs[0]], graph.whole(*axes))


def _shuffle(graph: _Graph, operation: Operation, shape: tuple[int, ...]) -> Any:
    (channels, *rest), groups = shape, operation.settings["groups"]
    parts = graph.shaped(graph.values[operation.inputs[0]], (groups, channels // groups, *rest))
    dealt = graph.op.transpose(parts, graph.whole(0, 2, 1, 3, 4))
    return graph.shaped(dealt, shape)


def _slice(graph: _Graph, operation: Operation, shape: tuple[int, ...]) -> Any:
    start, stop, step = (operation.settings[name] for name in ("start", "stop", "step"))
    parts = (start, stop, step, range(1, len(start) + 1))
    return graph.op.slice(graph.values[operation.inputs[0]], *(graph.whole(*part) for part in parts))


def _pad(graph: _Graph, operation: Operation, shape: tuple[int, ...]) -> Any:
    settings = operation.settings
    before, after = (graph.whole(0, *settings[name]) for name in ("before", "after"))
    return graph.op.pad(graph.values[operation.inputs[0]], before, after, "constant", graph.number(settings["value"]))


def _add(graph: _Graph, operation: Operation, shape: tuple[int, ...]) -> Any:
    return graph.op.add(*(graph.values[value] for value in operation.inputs))


def _relu(graph: _Graph, operation: Operation, shape: tuple[int, ...]) -> Any:
    return graph.op.relu(graph.values[operation.inputs[0]])


def _concat(graph: _Graph, operation: Operation, shape: tuple[int, ...]) -> Any:
    return graph.op.concat([graph.values[value] for value in operation.inputs], 1)


_EMIT: dict[str, Callable[[_Graph, Operation, tuple[int, ...]], Any]] = {
    "conv": _weighted,
    "linear": _weighted,
    "affine": _affine,
    "prelu": _prelu,
    "relu": _relu,
    "clamp": _clamp,
    "sign": _sign,
    "add": _add,
    "concat": _concat,
    "max_pool": _pool,
    "avg_pool": _pool,
    "adaptive_avg_pool": _adaptive,
    "flatten": _reshape,
    "reshape": _reshape,
    "permute": _permute,
    "channel_shuffle": _shuffle,
    "slice": _slice,
    "pad": _pad,
}
