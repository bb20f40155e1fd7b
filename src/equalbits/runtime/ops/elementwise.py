"""Elementwise operations: affine, PReLU, ReLU, clamp, sign and the sum of two values.

The native engine fuses all but sign into the chain behind a convolution or pooling. A sign ends a chain: what only
binary layers read is written as one bit per number.
"""

from typing import TYPE_CHECKING

import numpy as np

from equalbits.runtime.op_specs import (
    Array,
    ChainRule,
    Floats,
    OpSpec,
    Setting,
    Settings,
    Shape,
    Shapes,
    Tensors,
    check_vector,
    optional_number,
)

if TYPE_CHECKING:
    from equalbits.runtime.export_graphs import OnnxGraph, OpenvinoGraph, OpenvinoNode
    from equalbits.runtime.lower import Lowering
    from equalbits.runtime.network import Network, Operation

#: OpenVINO's FakeQuantize returns its upper level above its edge, not at it. The largest normal number below 0 puts
#: both zeros above the edge, as in numpy.
_FAKE_QUANTIZE_EDGE = float(-np.finfo(np.float32).tiny)


def _same_shape(inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
    return inputs[0]


def _per_channel(vector: Array, value: Floats) -> Floats:
    return vector.astype(np.float32).reshape(-1, *[1] * (value.ndim - 2))


def _lower_chain(lowering: "Lowering", place: int, operation: "Operation") -> None:
    """Emit a step of its own, which the operations behind it may join."""
    fields = {"IN": lowering.as_real(operation.inputs[0])}
    slot = lowering.fuse(place, operation.inputs[0], fields, -1)
    assert slot is not None
    lowering.finish_step("CHAIN", place + 1, fields, slot)


# affine: value · gain + shift per channel


def _affine_shape(inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
    check_vector("gain_shift", tensors["gain_shift"], {(2, inputs[0][0])})
    return inputs[0]


def _run_affine(value: Floats, *, tensors: Tensors, settings: Settings) -> Floats:
    gain, shift = (_per_channel(row, value) for row in tensors["gain_shift"])
    return value * gain + shift


def _affine_fields(lowering: "Lowering", operation: "Operation", value: int, number: str) -> dict[str, int]:
    gain, shift = lowering.network.arrays(operation)["gain_shift"]
    shape = lowering.network.shapes[value]
    return {f"GAIN{number}": lowering.plan.vector(gain, shape), f"SHIFT{number}": lowering.plan.vector(shift, shape)}


def _affine_to_onnx(graph: "OnnxGraph", operation: "Operation", shape: Shape) -> None:
    both = graph.floats(operation, "gain_shift", (2, shape[0], *(1,) * (len(shape) - 1)))
    gain, shift = (graph.node("Gather", both, graph.constant(np.int64(row), f":row{row}"), axis=0) for row in (0, 1))
    graph.node("Add", graph.node("Mul", graph.inputs(operation)[0], gain), shift)


def _affine_to_openvino(graph: "OpenvinoGraph", operation: "Operation", shape: Shape) -> "OpenvinoNode":
    tail = (1,) * (len(shape) - 1)
    gain, shift = (graph.stored(row.reshape(1, -1, *tail)) for row in graph.network.arrays(operation)["gain_shift"])
    return graph.op.add(graph.op.multiply(graph.values[operation.inputs[0]], gain), shift)


affine = OpSpec(
    _affine_shape,
    _run_affine,
    _affine_to_onnx,
    _affine_to_openvino,
    _lower_chain,
    ChainRule(lambda lowering, place: "affine", _affine_fields),
    tensors=("gain_shift",),
)

# prelu: value where it is at least 0, else value · slope


def _prelu_shape(inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
    check_vector("slope", tensors["slope"], {(1,), (inputs[0][0],)})
    return inputs[0]


def _run_prelu(value: Floats, *, tensors: Tensors, settings: Settings) -> Floats:
    return np.where(value >= 0, value, value * _per_channel(tensors["slope"], value))


def _prelu_fields(lowering: "Lowering", operation: "Operation", value: int, number: str) -> dict[str, int]:
    slope = lowering.network.arrays(operation)["slope"]
    return {f"SLOPE{number}": lowering.plan.vector(slope, lowering.network.shapes[value])}


def _prelu_to_onnx(graph: "OnnxGraph", operation: "Operation", shape: Shape) -> None:
    size = graph.network.arrays(operation)["slope"].size
    slope = graph.floats(operation, "slope", (size, *(1,) * (len(shape) - 1)))
    graph.node("PRelu", graph.inputs(operation)[0], slope)


def _prelu_to_openvino(graph: "OpenvinoGraph", operation: "Operation", shape: Shape) -> "OpenvinoNode":
    slope = np.broadcast_to(graph.network.arrays(operation)["slope"], shape[:1])
    return graph.op.prelu(graph.values[operation.inputs[0]], graph.stored(slope))


prelu = OpSpec(
    _prelu_shape,
    _run_prelu,
    _prelu_to_onnx,
    _prelu_to_openvino,
    _lower_chain,
    ChainRule(lambda lowering, place: "prelu", _prelu_fields),
    tensors=("slope",),
)

# relu and clamp: not below min, not above max


def _clamp_shape(inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
    low, high = settings["min"], settings["max"]
    if low is not None and high is not None and low > high:
        raise ValueError(f"has min={low} above max={high}")
    return inputs[0]


def _run_relu(value: Floats, *, tensors: Tensors, settings: Settings) -> Floats:
    return np.maximum(value, np.float32(0))


def _run_clamp(value: Floats, *, tensors: Tensors, settings: Settings) -> Floats:
    low, high = settings["min"], settings["max"]
    value = value if low is None else np.maximum(value, np.float32(low))
    return value if high is None else np.minimum(value, np.float32(high))


def _relu_slot(lowering: "Lowering", place: int) -> str:
    """Return the slot of a ReLU: a clamp ends the chain, so where more follows it takes the place of a PReLU."""
    more = [lowering.is_elementwise(reader) for reader in lowering.readers[place + 1]]
    return "prelu" if more == [True] else "clamp"


def _clamp_fields(lowering: "Lowering", operation: "Operation", value: int, number: str) -> dict[str, int]:
    low, high = operation.settings.get("min", 0.0), operation.settings.get("max")
    limits = [-np.inf if low is None else low, np.inf if high is None else high]
    return {"CLAMP": lowering.plan.tensor(np.array(limits, np.float32))}


def _relu_fields(lowering: "Lowering", operation: "Operation", value: int, number: str) -> dict[str, int]:
    return {f"RELU{number}": 1} if number.isdigit() else _clamp_fields(lowering, operation, value, number)


def _relu_to_onnx(graph: "OnnxGraph", operation: "Operation", shape: Shape) -> None:
    graph.node("Relu", *graph.inputs(operation))


def _relu_to_openvino(graph: "OpenvinoGraph", operation: "Operation", shape: Shape) -> "OpenvinoNode":
    return graph.op.relu(graph.values[operation.inputs[0]])


def _clamp_to_onnx(graph: "OnnxGraph", operation: "Operation", shape: Shape) -> None:
    limits = (operation.settings["min"], operation.settings["max"])
    names = ["" if limit is None else graph.constant(np.float32(limit)) for limit in limits]
    graph.node("Clip", graph.inputs(operation)[0], *names)


def _clamp_to_openvino(graph: "OpenvinoGraph", operation: "Operation", shape: Shape) -> "OpenvinoNode":
    most = float(np.finfo(np.float32).max)
    low, high = operation.settings["min"], operation.settings["max"]
    value = graph.values[operation.inputs[0]]
    return graph.op.clamp(value, -most if low is None else low, most if high is None else high)


relu = OpSpec(
    _same_shape,
    _run_relu,
    _relu_to_onnx,
    _relu_to_openvino,
    _lower_chain,
    ChainRule(_relu_slot, _relu_fields),
    aten={"relu.default": ()},
)
clamp = OpSpec(
    _clamp_shape,
    _run_clamp,
    _clamp_to_onnx,
    _clamp_to_openvino,
    _lower_chain,
    ChainRule(lambda lowering, place: "clamp", _clamp_fields),
    settings={"min": Setting(optional_number), "max": Setting(optional_number)},
)

# sign: +1 where the value is at least 0, else −1


def _run_sign(value: Floats, *, tensors: Tensors, settings: Settings) -> Floats:
    return np.where(value >= 0, np.float32(1), np.float32(-1))


def _lower_sign(lowering: "Lowering", place: int, operation: "Operation") -> None:
    fields = {"IN": lowering.as_real(operation.inputs[0])}
    if lowering.read_as_bits(place) and place + 1 not in lowering.bits:
        lowering.bits[place + 1] = fields["OUT_BITS"] = lowering.new_bits(place + 1)
    if lowering.read_as_real(place):
        lowering.real[place + 1] = fields["OUT"] = lowering.new_real(place + 1)
        fields["SIGN_REAL"] = 1
    lowering.plan.step("CHAIN", **fields)


def _sign_to_onnx(graph: "OnnxGraph", operation: "Operation", shape: Shape) -> None:
    above = graph.node("GreaterOrEqual", graph.inputs(operation)[0], graph.constant(np.float32(0), ":zero"))
    plus, minus = (graph.constant(np.float32(symbol), name) for symbol, name in ((1, ":plus"), (-1, ":minus")))
    graph.node("Where", above, plus, minus)


def _sign_to_openvino(graph: "OpenvinoGraph", operation: "Operation", shape: Shape) -> "OpenvinoNode":
    """Emit a select for readers of floats, and a FakeQuantize of two levels for BinaryConvolution."""
    value = graph.values[operation.inputs[0]]
    if len(shape) in (1, 3):
        edge, low, high = (graph.number(level) for level in (_FAKE_QUANTIZE_EDGE, 0, 1))
        image = graph.as_image(value, shape)
        if _comes_from_move(graph.network, operation.inputs[0]):  # without a pooling, OpenVINO writes out of bounds
            image = graph.op1.max_pool(image, [1, 1], [0, 0], [0, 0], [1, 1])
        graph.sign_bits[len(graph.values)] = graph.op.fake_quantize(image, edge, edge, low, high, 2)
    return graph.op.select(graph.op.greater_equal(value, graph.number(0)), graph.number(1), graph.number(-1))


def _comes_from_move(network: "Network", value: int) -> bool:
    """Return whether a value is made by an operation that moves numbers, with elementwise ones behind it."""
    from equalbits.runtime.ops import OPS

    seen, wanted = set[int](), [value]
    while wanted:
        value = wanted.pop()
        spec = OPS[network.operations[value - 1].kind] if value else None
        if spec is not None and spec.moves:
            return True
        if spec is not None and spec.chain is not None and value not in seen:
            wanted.extend(network.operations[value - 1].inputs)
        seen.add(value)
    return False


sign = OpSpec(_same_shape, _run_sign, _sign_to_onnx, _sign_to_openvino, _lower_sign)

# add: the sum of two values


def _add_shape(inputs: Shapes, settings: Settings, tensors: Tensors) -> Shape:
    if inputs[0] != inputs[1]:
        raise ValueError(f"adds values of shape {inputs[0]} and {inputs[1]}: they must be the same")
    return inputs[0]


def _run_add(value: Floats, other: Floats, *, tensors: Tensors, settings: Settings) -> Floats:
    return value + other


def _residual_fields(lowering: "Lowering", operation: "Operation", value: int, number: str) -> dict[str, int] | None:
    """Add a value that has been written before; a step cannot wait for one that has not."""
    other = operation.inputs[1] if operation.inputs[0] == value else operation.inputs[0]
    if other != 0 and other not in lowering.real:
        return None
    return {"RESIDUAL": lowering.as_real(other)}


def _add_to_onnx(graph: "OnnxGraph", operation: "Operation", shape: Shape) -> None:
    graph.node("Add", *graph.inputs(operation))


def _add_to_openvino(graph: "OpenvinoGraph", operation: "Operation", shape: Shape) -> "OpenvinoNode":
    return graph.op.add(*(graph.values[value] for value in operation.inputs))


add = OpSpec(
    _add_shape,
    _run_add,
    _add_to_onnx,
    _add_to_openvino,
    _lower_chain,
    ChainRule(lambda lowering, place: "residual", _residual_fields),
    inputs=(2, 2),
)
OPS = {"affine": affine, "prelu": prelu, "relu": relu, "clamp": clamp, "sign": sign, "add": add}
