"""State of a trace and the steps that rules add to it; rules register themselves with :func:`rule`.

Reshapes, permutations and slices are merged with the step before them where possible.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from inspect import get_annotations
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from equalbits.deploy.compare import as_array
from equalbits.deploy.graph import Graph, PackError, Step
from equalbits.deploy.pack_weights import BinaryWeights
from equalbits.deploy.traced_values import Known, Mask, Operand, StepFunction, Value
from equalbits.runtime import FUNCTIONS, OPS, Array, Floats, Shape, make_operation

#: Operations that do the same to (channel, feature) and to (channel, 1, feature).
_PER_CHANNEL = ("affine", "prelu", "relu", "clamp", "sign", "add", "concat")


_FunctionT = TypeVar("_FunctionT", bound=Callable[..., Any])


class TraceRule(NamedTuple):
    """Translation of an ATen operation: ``function`` adds the steps of a node to the tracer.

    ``batch`` says what it does where the batch is not in front, in a word that :mod:`equalbits.deploy.batch_axis`
    explains. ``axes_at`` is the place of the axes among the arguments, 0 for none.
    """

    function: Callable[..., Any]
    batch: Literal["", "anywhere", "axis", "cut", "drop", "reshape", "pool", "norm", "pad", "own"] = ""
    axes_at: int = 0


#: Rules by name of the operation, as in ``"aten.relu.default"``. An operation with a rule is not decomposed.
RULES: dict[str, TraceRule] = {}


def rule(*names: str, batch: str = "", axes_at: int = 0) -> Callable[[_FunctionT], _FunctionT]:
    """Register a function as the rule of ATen operations.

    An argument that it annotates as a ``Value`` is made one, and so is any but a constant annotated as an ``Operand``.
    """

    def register(function: _FunctionT) -> _FunctionT:
        kinds = [kind for name, kind in get_annotations(function).items() if name != "return"][1:]
        needed = {place: kind for place, kind in enumerate(kinds) if kind in (Value, Operand)}

        def with_values(tracer: "Tracer", *given: Any, **options: Any) -> Any:
            arguments = list(given)
            for place, kind in needed.items():
                if place < len(given) and not (kind == Operand and isinstance(given[place], Tensor | float | int)):
                    arguments[place] = tracer.value(given[place])
            return function(tracer, *arguments, **options)

        made = TraceRule(with_values if needed else function, batch or ("axis" if axes_at else ""), axes_at)  # type: ignore[arg-type]
        RULES.update({f"aten.{name}": made for name in names})
        return function

    return register


@dataclass
class Tracer:
    """State of a trace. ``operation``, ``layer``, ``shape`` and ``dtype`` are those of the node being translated."""

    graph: Graph
    batch: int
    names: dict[int, str] = field(default_factory=dict)  # of constants, by address
    binary: dict[int, BinaryWeights] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    made: list[Tensor] = field(default_factory=list)  # keeps computed weights alive: addresses identify them
    operation: str = ""  # with no "aten." in front
    layer: str = ""
    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = None

    def refuse(self, why: str) -> PackError:
        """Return the error for the current node."""
        return PackError(f"layer {self.layer!r} {why}")

    def value(self, known: Known) -> Value:
        """Return a value that depends on the image; a step function is added to the graph first."""
        if isinstance(known, StepFunction):
            return self._add_step_function(known)
        known = known.value if isinstance(known, Mask) else known
        if not isinstance(known, Value):
            what = "a constant" if isinstance(known, Tensor) else str(known)
            raise self.refuse(f"needs a value computed from the image but gets {what}: this cannot be packed")
        return known

    def output_shape(self) -> Shape:
        """Return the output shape of the current node, without the batch axis."""
        if self.shape == (self.batch,):
            raise self.refuse("returns a single number per image: keep an axis, with keepdim=True or a slice")
        if len(self.shape) < 2 or self.shape[0] != self.batch:
            raise self.refuse(f"returns shape {self.shape} for {self.batch} images: the batch must stay the first axis")
        return self.shape[1:]

    def image_axis(self, value: Value, axis: int, refusal: str) -> int:
        """Return an axis counted from 0, the batch, which is refused."""
        axis = axis % (len(value.shape) + 1)
        if axis == 0:
            raise self.refuse(refusal)
        return axis

    def constant(self, weights: Known) -> Tensor:
        """Return weights, which must be constant."""
        if not isinstance(weights, Tensor):
            raise self.refuse("has weights computed from the image: a packed network has only constant weights")
        return weights

    def weights(self, tensor: Known) -> Floats:
        """Return constant weights as an array."""
        return as_array(self.constant(tensor))

    def tensor_layer(self, tensor: Known) -> str:
        """Return the name of the layer that holds a parameter."""
        name = self.names.get(tensor.data_ptr(), "") if isinstance(tensor, Tensor) else ""
        return name.rpartition(".")[0] or self.layer

    def binary_weights(self, weight: Known) -> BinaryWeights | None:
        """Return the planes of a weight that is a binary layer's, unchanged; None for any other."""
        found = self.binary.get(weight.data_ptr()) if isinstance(weight, Tensor) else None
        if found is None or not isinstance(weight, Tensor) or weight.flatten(1).shape != found.planes[0].symbols.shape:
            return None
        in_order = weight.is_contiguous() or weight.is_contiguous(memory_format=torch.channels_last)
        return found if in_order else None

    def maker(self, value: Value) -> Step | None:
        """Return the step that makes a value; None for the image."""
        return self.graph.steps[value.number - 1] if value.number else None

    def source(self, step: Step) -> Value:
        """Return the first value that a step reads."""
        return self.graph.value(step.inputs[0])

    def add(
        self, kind: str, *inputs: Value, layer: str = "", arrays: dict[str, Array] | None = None, **settings: Any
    ) -> Value:
        """Add a step, by default of the current layer; refuse inputs that the operation does not accept.

        An elementwise step on (channel, feature) that is a reshape of (channel, 1, feature) is added before the
        reshape, where the native engine can fuse it with convolutions.
        """
        if not settings.get("axis") and (images := self._as_row_images(kind, inputs)):
            made = self.add(kind, *images, layer=layer, arrays=arrays, **settings)
            return self.reshape(made, (made.shape[0], made.shape[2]))
        if kind in FUNCTIONS and (step := self.maker(inputs[0])) is not None and step.kind in ("permute", "reshape"):
            made = self.add(kind, self.source(step), layer=layer, **settings)
            permuted = step.kind == "permute"
            return self.permute(made, step.settings["axes"]) if permuted else self.reshape(made, inputs[0].shape)
        layer, stored = layer or self.layer, arrays or {}
        numbers = tuple(value.number for value in inputs)
        try:
            operation = make_operation(kind, numbers, dict.fromkeys(stored, ""), settings)
            shape = OPS[kind].shape(tuple(value.shape for value in inputs), operation.settings, stored)
        except ValueError as error:
            raise PackError(f"layer {layer!r} cannot be packed: its {kind} {error}") from None
        self.graph.steps.append(Step(kind, numbers, stored, operation.settings, layer, shape))
        return Value(len(self.graph.steps), shape)

    def _as_row_images(self, kind: str, inputs: tuple[Value, ...]) -> list[Value]:
        """Return the images of one row that all ``inputs`` are reshapes of; none where one is not."""
        images = []
        for value in inputs:
            step = self.maker(value)
            if kind not in _PER_CHANNEL or len(value.shape) != 2 or step is None or step.kind != "reshape":
                return []
            images.append(self.source(step))
            if images[-1].shape != (value.shape[0], 1, value.shape[1]):
                return []
        return images

    def reshape(self, value: Value, shape: Iterable[int], *, merge: bool = True) -> Value:
        """Reshape; behind a reshape and a swap of groups, shuffle channels. The same shape adds no step."""
        last, shape = self.maker(value) if merge else None, tuple(shape)
        if shape[0] == -1:
            shape = (math.prod(value.shape) // math.prod(shape[1:]), *shape[1:])
        if last is not None and last.kind in ("reshape", "flatten"):
            return self.reshape(self.source(last), shape, merge=False)
        if last is not None and last.kind == "permute" and last.settings["axes"] == (1, 0, 2, 3):
            before = self.maker(self.source(last))
            whole = before is not None and before.kind == "reshape" and before.shape[2:] == shape[1:]
            if before is not None and whole and self.source(before).shape == shape:
                return self.add("channel_shuffle", self.source(before), groups=before.shape[0])
        if shape == value.shape:
            return value
        if shape == (math.prod(value.shape),):
            return self.add("flatten", value)
        return self.add("reshape", value, shape=shape)

    def permute(self, value: Value, axes: Sequence[int]) -> Value:
        """Permute axes; the identity adds no step."""
        last = self.maker(value)
        if last is not None and last.kind == "permute":
            return self.permute(self.source(last), [last.settings["axes"][axis] for axis in axes])
        return value if list(axes) == sorted(axes) else self.add("permute", value, axes=list(axes))

    def move_axis(self, value: Value, axis: int, target: int) -> Value:
        """Move one axis; the others keep their order."""
        order = [other for other in range(len(value.shape)) if other != axis]
        return self.permute(value, [*order[:target], axis, *order[target:]])

    def slice_axis(self, value: Value, axis: int, cut: slice) -> Value:
        """Slice one axis, merged with a slice of another axis before it; a full slice adds no step."""
        start, stop, step = cut.indices(value.shape[axis])
        if (start, stop, step) == (0, value.shape[axis], 1):
            return value
        last, source = self.maker(value), value
        starts, stops, strides = [0] * len(value.shape), list(value.shape), [1] * len(value.shape)
        if last is not None and last.kind == "slice" and last.shape[axis] == self.source(last).shape[axis]:
            source = self.source(last)
            starts, stops, strides = (list(last.settings[name]) for name in ("start", "stop", "step"))
        starts[axis], stops[axis], strides[axis] = start, stop, step
        return self.add("slice", source, start=starts, stop=stops, step=strides)

    def affine(self, value: Value, gain: Tensor | float = 1.0, shift: Tensor | float = 0.0) -> Value:
        """Return ``value · gain + shift`` with constants; those that vary within a channel act on a flat value."""
        arrays, rank = [self._constant(known, value) for known in (gain, shift)], len(value.shape)
        offsets = [(rank - array.ndim, array.shape) for array in arrays]
        along = {axis for offset, shape in offsets for axis, size in enumerate(shape, offset) if size > 1}
        step = self.maker(value)
        if rank > 1 and along == {rank - 1} and step is not None and step.kind == "permute":
            order = step.settings["axes"]
            if order[-1] == 0:  # per channel of the value before the permutation
                columns = [torch.from_numpy(np.array(array).reshape(-1, *(1,) * (rank - 1))) for array in arrays]
                return self.permute(self.affine(self.source(step), *columns), order)
        per_channel, last = along <= {0}, along == {rank - 1} and rank > 1
        target = value.shape if not last else (*(1,) * (rank - 1), value.shape[-1])
        target = (value.shape[0], *(1,) * (rank - 1)) if per_channel else target
        try:
            rows = np.stack([np.broadcast_to(array, target).reshape(-1) for array in arrays])
        except ValueError:
            raise self.refuse(
                f"combines {value.shape} with constants of shape {arrays[0].shape} and {arrays[1].shape}: they cannot "
                f"be broadcast"
            ) from None
        flat = value
        if not per_channel:
            flat = self.reshape(value, (-1, value.shape[-1]) if last else (-1,), merge=False)
        with np.errstate(over="ignore"):  # the network refuses numbers beyond float32
            stored = rows.astype(np.float32)
        made = self.add("affine", flat, arrays={"gain_shift": stored}, axis=int(last and not per_channel))
        return self.reshape(made, value.shape)

    def _constant(self, known: Tensor | float, value: Value) -> Array:
        """Return a constant that is combined with ``value``, without its batch axis, along which it must not vary."""
        tensor = known.double() if isinstance(known, Tensor) else torch.tensor(float(known), dtype=torch.float64)
        beyond = tensor.dim() - len(value.shape)
        if beyond > 1 or (beyond == 1 and not (len(tensor) in (1, self.batch) and bool((tensor == tensor[:1]).all()))):
            raise self.refuse(f"has a constant of shape {tuple(tensor.shape)} that varies along the batch axis")
        if beyond == 1:
            uniform = bool((tensor == tensor.flatten()[0]).all())  # as made by full_like
            tensor = tensor.flatten()[0] if uniform else tensor[0]
        return tensor.numpy()

    def _add_step_function(self, function: StepFunction) -> Value:
        """Add a sum of signs, one per threshold: ``Σ ±half + base`` takes each level in turn."""
        halves = [(above - below) / 2 for below, above in pairwise(function.levels)]
        total, shift = None, float(np.float64(function.levels[0]) + sum(halves))
        for (threshold, strict), half in zip(function.thresholds, halves, strict=True):
            value = function.value  # subtracting a float keeps the side of 0
            if strict:
                value = self.affine(value, -1.0, threshold)
            elif self._constant(threshold, value).any():
                value = self.affine(value, 1.0, -threshold)
            part, gain = self.add("sign", value), -half if strict else half
            part = part if (gain, shift) == (1.0, 0.0) else self.affine(part, gain, shift)
            total, shift = part if total is None else self.add("add", total, part), 0.0
        assert total is not None
        return total
