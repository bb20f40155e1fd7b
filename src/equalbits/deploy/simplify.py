"""Add reshapes, permutations and slices to a graph, merged with the step before them where possible."""

from collections.abc import Sequence

from equalbits.deploy.graph import Graph, Value
from equalbits.runtime.op_specs import Shape


def reshape(graph: Graph, value: Value, shape: Shape, *, layer: str) -> Value:
    """Reshape, merged with a reshape before it; behind a reshape and a swap of groups, shuffle channels instead."""
    last = graph.maker(value)
    if last is not None and last.kind in ("reshape", "flatten"):
        return graph.reshape(graph.source(last), shape, layer=layer)
    if last is not None and last.kind == "permute" and len(last.shape) == 4 and last.settings["axes"] == (1, 0, 2, 3):
        before = graph.maker(graph.source(last))
        whole = before is not None and before.kind == "reshape" and before.shape[2:] == shape[1:]
        if before is not None and whole and graph.source(before).shape == shape:
            return graph.add("channel_shuffle", graph.source(before), layer=layer, groups=before.shape[0])
    return graph.reshape(value, shape, layer=layer)


def permute(graph: Graph, value: Value, axes: Sequence[int], *, layer: str) -> Value:
    """Permute axes, merged with a permutation before it; the identity adds no step."""
    last = graph.maker(value)
    if last is not None and last.kind == "permute":
        return permute(graph, graph.source(last), [last.settings["axes"][axis] for axis in axes], layer=layer)
    if list(axes) == sorted(axes):
        return value
    return graph.add("permute", value, layer=layer, axes=list(axes))


def move_to_front(graph: Graph, value: Value, axis: int, *, layer: str) -> Value:
    """Move one axis before all others."""
    return permute(graph, value, _axis_first(axis, len(value.shape)), layer=layer)


def move_from_front(graph: Graph, value: Value, axis: int, *, layer: str) -> Value:
    """Move the first axis to ``axis``: the inverse of :func:`move_to_front`."""
    order = _axis_first(axis, len(value.shape))
    return permute(graph, value, [order.index(place) for place in range(len(order))], layer=layer)


def _axis_first(axis: int, rank: int) -> list[int]:
    return [axis, *(other for other in range(rank) if other != axis)]


def slice_axis(graph: Graph, value: Value, axis: int, cut: slice, *, layer: str) -> Value:
    """Slice one axis, merged with a slice of another axis before it; a full slice adds no step."""
    start, stop, step = cut.indices(value.shape[axis])
    if (start, stop, step) == (0, value.shape[axis], 1):
        return value
    last, source = graph.maker(value), value
    starts, stops, strides = [0] * len(value.shape), list(value.shape), [1] * len(value.shape)
    if last is not None and last.kind == "slice":
        before = graph.source(last)
        if last.shape[axis] == before.shape[axis]:
            source = before
            starts, stops, strides = (list(last.settings[name]) for name in ("start", "stop", "step"))
    starts[axis], stops[axis], strides[axis] = start, stop, step
    return graph.add("slice", source, layer=layer, start=starts, stop=stops, step=strides)
