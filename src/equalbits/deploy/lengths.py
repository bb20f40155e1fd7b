"""Models of several input lengths: trace a few lengths, compare, and find what depends on the length."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from torch import Tensor, nn

from equalbits.deploy.compare import as_array, same_answers
from equalbits.deploy.graph import Graph, PackError, Step, to_network
from equalbits.deploy.ports import Example
from equalbits.deploy.torch_export import Frozen, trace_program
from equalbits.deploy.translate import translate
from equalbits.deploy.verify import verify
from equalbits.runtime import Array, Lengths, Network, Shape, Sizes, at_length, run_numpy

#: Graph and traced model by length, the longest first.
Traces = Mapping[int, tuple[Graph, Frozen]]

#: Entries that an axis may have beside those of the length, as for a class token.
_BESIDE = (0, 1, 2, -1, -2)


@dataclass(frozen=True)
class Span:
    """Lengths from ``least`` to ``most``, the size of all axes of an example that vary."""

    least: int
    most: int

    @classmethod
    def of(cls, lengths: Sequence[int], example: Example) -> "Span":
        """Validate the lengths that a model is packed for."""
        ends = tuple(lengths)
        if len(ends) != 2 or not all(type(end) is int for end in ends) or not 1 <= ends[0] < ends[1]:
            raise PackError(f"lengths={lengths!r}: give the least and the largest length, as in (1, 128)")
        shapes = [tuple(tensor.shape) for tensor in _tensors(example)]
        if not any(ends[1] in shape[1:] for shape in shapes):
            raise PackError(f"example has shapes {shapes}: give one of the largest length, {ends[1]}")
        return cls(*ends)

    def trace_shorter(self, model: nn.Module, example: Example) -> dict[int, tuple[Graph, Frozen]]:
        """Trace and verify a model at up to three shorter lengths."""
        traces = {}
        for length in sorted({self.most - 1, (self.least + self.most) // 2, self.least}, reverse=True):
            try:
                frozen = trace_program(model, self.shorten(example, length))
                graph = translate(frozen)
                verify(to_network(graph), graph, frozen)
            except Exception as error:  # a forward may raise anything for a length that it does not take
                why = " ".join(str(error).split())[:300]
                raise PackError(f"with inputs of length {length} in place of {self.most}: {why}") from error
            traces[length] = graph, frozen
        return traces

    def shorten(self, example: Example, length: int) -> Example:
        """Return the first entries of an example."""
        if isinstance(example, Mapping):
            return {name: self._first(tensor, length) for name, tensor in example.items()}
        return (
            self._first(example, length) if isinstance(example, Tensor) else [self._first(t, length) for t in example]
        )

    def _first(self, tensor: Tensor, length: int) -> Tensor:
        varies = (axis > 0 and size == self.most for axis, size in enumerate(tensor.shape))
        return tensor[tuple(slice(length if each else None) for each in varies)]

    def sizes(self, example: Example) -> tuple[Sizes, ...]:
        """Return the shape of each input, with the length in place of the sizes that vary."""
        shapes = [tensor.shape[1:] for tensor in _tensors(example)]
        return tuple(tuple((0, 1) if size == self.most else size for size in shape) for shape in shapes)


def _tensors(example: Example) -> list[Tensor]:
    if isinstance(example, Tensor):
        return [example]
    return list(example.values() if isinstance(example, Mapping) else example)


def with_lengths(network: Network, traces: Traces, inputs: tuple[Sizes, ...]) -> Network:
    """Return the network of the longest input with all that depends on the length, from traces by length.

    Steps must be the same for all lengths but the least, where axes of one entry may save some. Raise
    :class:`PackError` at the first step that depends on the length in another way than a file can hold. Each traced
    length is made again of the result, and must be that of its trace, or give its logits.
    """
    most, *others = traces
    steps = {most: traces[most][0].steps}
    for length in others:
        differing = _first_other(steps[most], traces[length][0].steps)
        if not differing:
            steps[length] = traces[length][0].steps
        elif length != others[-1] or len(others) == 1:
            raise PackError(f"{differing} is another operation at length {length} than at {most}: pack one length")
    tables = _find(network, {length: traces[length][0] for length in steps})
    ports = {length: frozen.ports.outputs if frozen.ports else () for length, (_, frozen) in traces.items()}
    outputs = []
    for number, port in enumerate(network.outputs):
        found = _sizes("", {length: ports[length][number].shape for length in steps}, {})
        if found is None:
            raise PackError(f"output {port.name!r} has a shape that is no rule of the length: pack one length")
        outputs.append(found)
    try:
        network = replace(network, lengths=Lengths(others[-1], most, inputs, tuple(outputs), *tables))
        shorter = {length: at_length(network, length) for length in traces}
    except ValueError as error:  # the least may take other operations, which the longest does not have
        raise PackError(f"{error}: pack one length, or give a larger least than {others[-1]}") from None
    for length, (graph, frozen) in traces.items():
        short, expected = shorter[length], to_network(graph)
        arrays = expected.tensors
        equal = (np.array_equal(array, arrays[name]) for name, array in short.tensors.items())
        if short.operations != expected.operations or not all(equal):  # of one name each, as operations are the same
            images = as_array(frozen.images)
            if not same_answers(run_numpy(short, images), run_numpy(expected, images)):
                raise PackError(f"the model does something else at length {length} than at {most}: pack one length")
    return network


def _first_other(steps: Sequence[Step], others: Sequence[Step]) -> str:
    """Return the layer of the first step that is another operation; empty where there is none."""
    for step, other in zip(steps, others, strict=False):
        if (step.kind, step.inputs, step.arrays.keys()) != (other.kind, other.inputs, other.arrays.keys()):
            return f"layer {step.layer!r} ({step.kind})"
    return "" if len(steps) == len(others) else f"layer {steps[-1].layer!r} ({steps[-1].kind})"


def _find(
    network: Network, graphs: Mapping[int, Graph]
) -> tuple[dict[int, dict[str, Sizes]], dict[str, Sizes], dict[str, Sizes]]:
    """Return settings by place, and vectors to cut and to scale, that depend on the length."""
    settings, cuts, scaled = dict[int, dict[str, Sizes]](), dict[str, Sizes](), dict[str, Sizes]()
    for place, operation in enumerate(network.operations):
        steps = {length: graph.steps[place] for length, graph in graphs.items()}
        first = next(iter(steps.values()))
        read = {length: graph.value(first.inputs[0]).shape for length, graph in graphs.items()}
        refusal = f"layer {first.layer!r} ({first.kind}) depends on the length by no rule that a file holds: its "
        for name in operation.settings:
            values = {length: step.settings[name] for length, step in steps.items()}
            if len(set(values.values())) > 1:
                found = _sizes(operation.kind, values, read)
                if found is None:
                    raise PackError(f"{refusal}{name} is {str(values)[1:-1]} by length; pack one length")
                settings.setdefault(place, {})[name] = found
        for part, tensor in operation.tensors.items():
            arrays = {length: step.arrays[part] for length, step in steps.items()}
            if any(not np.array_equal(array, first.arrays[part]) for array in arrays.values()):
                of_one_size = len({array.shape for array in arrays.values()}) == 1
                found = _scale(arrays) if of_one_size else _cut(arrays)
                if found is None:
                    raise PackError(f"{refusal}{part} changes; pack one length")
                (scaled if of_one_size else cuts)[tensor] = found
    return settings, cuts, scaled


def _sizes(kind: str, values: Mapping[int, object], read: Mapping[int, Shape]) -> Sizes | None:
    """Return a setting at any length: numbers, polynomials, and numbers below zero, relative to what is read."""
    shapes = {length: value for length, value in values.items() if isinstance(value, tuple)}
    if len(shapes) != len(values) or len({len(shape) for shape in shapes.values()}) != 1:
        return None
    count = len(next(iter(shapes.values())))
    found: list[int | tuple[int, ...] | None] = []
    for place in range(count):
        numbers = {length: shape[place] for length, shape in shapes.items()}
        short = {shape[place - count] - numbers[n] for n, shape in read.items() if len(shape) >= count}
        relative = len({*numbers.values()}) > 1 and kind != "reshape" and len(short) == 1 and min(short) >= 0
        found.append(-1 - short.pop() if relative else _polynomial(numbers))
    open_ = [place for place, size in enumerate(found) if not isinstance(size, int)]
    open_ = open_ if len(open_) == 1 else [place for place in open_ if found[place] is None]
    if kind == "reshape" and len(open_) == 1:
        found[open_[0]] = -1
    sizes = tuple(size for size in found if size is not None)
    return sizes if len(sizes) == count else None


def _polynomial(values: Mapping[int, int]) -> int | tuple[int, ...] | None:
    """Return the polynomial of degree two at most with these values, by its integer coefficients.

    >>> _polynomial({8: 67, 7: 52, 4: 19}), _polynomial({8: 5, 7: 5, 4: 5}), _polynomial({8: 4, 7: 3, 4: 2})
    ((3, 0, 1), 5, None)
    """
    (x, y), *more = values.items()
    if len(set(values.values())) == 1:
        return y
    slopes = [Fraction(y - value, x - length) for length, value in more]
    square = (slopes[0] - slopes[1]) / (more[0][0] - more[1][0]) if len(more) > 1 else Fraction(0)
    slope = slopes[0] - square * (x + more[0][0])
    factors = [y - slope * x - square * x * x, slope, square]
    whole = tuple(map(int, factors if square else factors[:2]))
    right = all(sum(factor * n**power for power, factor in enumerate(whole)) == value for n, value in values.items())
    return whole if right else None


def _scale(arrays: Mapping[int, Array]) -> Sizes | None:
    """Return the size that a vector is proportional to; None where there is none."""
    (most, longest), *_ = arrays.items()
    for beside in _BESIDE if longest.dtype.kind == "f" else ():
        scaled = {length: Lengths.scale(longest, (most + beside,), (length + beside,)) for length in arrays}
        if all(np.array_equal(scaled[length], array) for length, array in arrays.items()):
            return ((beside, 1),)
    return None


def _cut(arrays: Mapping[int, Array]) -> Sizes | None:
    """Return axes to split a vector into so that :meth:`Lengths.cut` makes the shorter ones; None where none do."""
    (most, longest), *_ = arrays.items()
    counts = {length: array.shape[-1] for length, array in arrays.items()}
    common = math.gcd(*counts.values()) if longest.dtype.kind == "f" else 0
    for more in ((), *(((beside, 1),) for beside in _BESIDE)):
        for outer in (number for number in range(1, common + 1) if common % number == 0):
            sizes: Sizes = (*((outer,) if outer > 1 else ()), *more)
            axes = {n: tuple(size if isinstance(size, int) else size[0] + n for size in sizes) for n in arrays}
            try:
                cut = {n: Lengths.cut(longest, axes[most], axes[n], count) for n, count in counts.items()}
            except ValueError:  # it cannot be split so
                continue
            if all(np.array_equal(cut[length], array) for length, array in arrays.items()):
                return sizes
    return None
