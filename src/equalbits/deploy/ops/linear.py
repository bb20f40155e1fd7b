"""Linear layers and products with a constant matrix."""

import math

from torch import Tensor

from equalbits.deploy import simplify
from equalbits.deploy.graph import Arrays, Value
from equalbits.deploy.ops.shape import permute
from equalbits.deploy.tracer import Known, Tracer, rule
from equalbits.deploy.weights import plane_arrays
from equalbits.runtime.op_specs import Settings


def add_weighted(tracer: Tracer, kind: str, value: Value, weight: Known, bias: Known, settings: Settings) -> Value:
    """Add a ``conv`` or ``linear``: one step per plane where the weight is a binary layer's, else real weights."""
    extra: Arrays = {} if bias is None else {"bias": tracer.weights(bias)}
    found = tracer.binary_weights(weight)
    if found is None:
        arrays = {"weight": tracer.weights(weight), **extra}
        return tracer.graph.add(kind, value, layer=tracer.tensor_layer(weight), arrays=arrays, **settings)
    tracer.used.add(found.name)
    name = found.name or tracer.layer
    first, *others = map(plane_arrays, found.planes)
    made = tracer.graph.add(kind, value, layer=name, arrays={**first, **extra}, **settings, p_pos=found.p_pos)
    for number, plane in enumerate(others, start=1):
        part = tracer.graph.add(kind, value, layer=f"{name}.{number}", arrays=plane, **settings)
        made = tracer.graph.add("add", made, part, layer=name)
    return made


def as_image(tracer: Tracer, value: Value, shape: tuple[int, ...], *, axes: tuple[int, ...] = (0, 1, 2)) -> Value:
    """Reshape and permute a value for a convolution. A sign moves behind the reshape, where the engine fuses it."""
    graph, layer = tracer.graph, tracer.layer
    step = graph.maker(value)
    while step is not None and step.kind in ("flatten", "reshape"):
        step = graph.maker(graph.source(step))
    permuted = axes != (0, 1, 2)
    signed = step is not None and step.kind == "sign" and (permuted or step.shape != shape)
    value = graph.source(step) if step is not None and signed else value
    image = simplify.reshape(graph, value, shape, layer=layer)
    image = graph.add("permute", image, layer=layer, axes=axes) if permuted else image
    return graph.add("sign", image, layer=layer) if signed else image


@rule("linear.default")
def linear(tracer: Tracer, value: Known, weight: Tensor, bias: Known = None) -> Value:
    """Multiply features by weights; features along a last axis are a 1×1 convolution over the other axes."""
    source = tracer.value(value)
    if len(source.shape) == 1:
        return add_weighted(tracer, "linear", source, weight, bias, {})
    *positions, features = source.shape
    image = as_image(tracer, source, (math.prod(positions), features, 1), axes=(1, 0, 2))
    made = add_weighted(tracer, "conv", image, weight[:, :, None, None], bias, {"kernel": 1})
    made = tracer.add("permute", made, axes=(1, 0, 2))
    return tracer.graph.reshape(made, (*positions, made.shape[1]), layer=tracer.layer)


@rule("matmul.default", "mm.default")
def matmul(tracer: Tracer, value: Known, weight: Known) -> Value:
    """Multiply by a constant matrix from either side."""
    if isinstance(value, Tensor) and value.dim() == 2 and isinstance(weight, Value) and len(weight.shape) == 2:
        return permute(tracer, linear(tracer, permute(tracer, weight, [0, 2, 1]), value), [0, 2, 1])
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        raise tracer.refuse("multiplies two values computed from the image: a packed network multiplies by constants")
    return linear(tracer, value, weight.T.contiguous())


@rule("addmm.default")
def addmm(tracer: Tracer, bias: Known, value: Known, weight: Tensor) -> Value:
    """Multiply by a constant matrix and add a bias."""
    return linear(tracer, value, weight.T.contiguous(), bias)
