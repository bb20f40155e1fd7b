"""State of a trace and the values that rules work on; rules register themselves with :func:`rule`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from equalbits.deploy.graph import Graph, PackError, Value, as_array
from equalbits.deploy.weights import BinaryWeights
from equalbits.runtime.op_specs import Array, Floats


@dataclass(frozen=True)
class ThresholdComparison:
    """``value ≥ threshold`` where ``above``, else ``value < threshold``; ``strict`` means ``>`` and ``≤``."""

    value: Value
    threshold: Tensor | float
    above: bool
    strict: bool


@dataclass(frozen=True)
class StepFunction:
    """A piecewise constant function: ``value`` takes the next level at each threshold. A sign has one threshold.

    The bool of a threshold says whether the threshold itself still has the lower level.
    """

    value: Value
    thresholds: tuple[tuple[Tensor | float, bool], ...]
    levels: tuple[float, ...]


@dataclass(frozen=True)
class Indices:
    """Indices of maxima, as torch returns beside the maxima; a packed network has none."""

    def __str__(self) -> str:
        return "the indices of maxima"


@dataclass(frozen=True)
class Stacked:
    """Values stacked along a new axis before the batch, to be reduced over it."""

    values: tuple[Value, ...]

    def __str__(self) -> str:
        return "values stacked before the batch"


#: Argument of a rule: a value that depends on the image, or a constant.
Known = Value | ThresholdComparison | StepFunction | Indices | Stacked | Tensor | float | None
Rule = Callable[..., Any]
_RuleT = TypeVar("_RuleT", bound=Rule)

#: Rules by name of the ATen operation, as in ``"aten.relu.default"``. An operation with a rule is not decomposed.
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[_RuleT], _RuleT]:
    """Register a function as the rule of ATen operations: it adds the steps of a node to ``tracer.graph``."""

    def register(function: _RuleT) -> _RuleT:
        RULES.update({f"aten.{name}": function for name in names})
        return function

    return register


@dataclass
class Tracer:
    """State of a trace. ``layer``, ``shape`` and ``dtype`` describe the node that is being translated."""

    graph: Graph
    batch: int
    names: dict[int, str] = field(default_factory=dict)  # of constants, by address
    binary: dict[int, BinaryWeights] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    made: list[Tensor] = field(default_factory=list)  # keeps computed weights alive: addresses identify them
    layer: str = ""
    shape: tuple[int, ...] | None = None
    dtype: torch.dtype | None = None

    def refuse(self, why: str) -> PackError:
        """Return the error for the current node."""
        return PackError(f"layer {self.layer!r} {why}")

    def value(self, known: Known) -> Value:
        """Return a value that depends on the image; a step function is added to the graph first."""
        if isinstance(known, StepFunction):
            return self._add_step_function(known)
        if not isinstance(known, Value):
            constant = "a constant" if isinstance(known, Tensor) else str(known)
            what = "a comparison" if isinstance(known, ThresholdComparison) else constant
            raise self.refuse(f"needs a value computed from the image but gets {what}: this cannot be packed")
        return known

    def add(self, kind: str, *inputs: Value, arrays: dict[str, Array] | None = None, **settings: Any) -> Value:
        """Add a step of the current layer."""
        return self.graph.add(kind, *inputs, layer=self.layer, arrays=arrays, **settings)

    def affine(self, value: Value, gain: Tensor | float = 1.0, shift: Tensor | float = 0.0) -> Value:
        """Return ``value · gain + shift`` with constants."""
        return self.graph.affine(value, self._constant(gain, value), self._constant(shift, value), layer=self.layer)

    def output_shape(self) -> tuple[int, ...]:
        """Return the output shape of the current node, without the batch axis."""
        if self.shape == (self.batch,):
            raise self.refuse("returns a single number per image: keep an axis, with keepdim=True or a slice")
        if self.shape is None or len(self.shape) < 2 or self.shape[0] != self.batch:
            raise self.refuse(f"returns shape {self.shape} for {self.batch} images: the batch must stay the first axis")
        return self.shape[1:]

    def weights(self, tensor: Known) -> Floats:
        """Return constant weights as an array."""
        if not isinstance(tensor, Tensor):
            raise self.refuse("has weights computed from the image: a packed network has only constant weights")
        return as_array(tensor)

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

    def _constant(self, known: Tensor | float, value: Value) -> Array:
        """Return a constant that is combined with ``value``, without its batch axis."""
        tensor = known.double() if isinstance(known, Tensor) else torch.tensor(float(known), dtype=torch.float64)
        found = _without_batch(tensor, self.batch, len(value.shape))
        if found is None:
            raise self.refuse(f"has a constant of shape {tuple(tensor.shape)} that varies along the batch axis")
        return found.numpy()

    def _add_step_function(self, function: StepFunction) -> Value:
        halves, base = step_heights(list(function.levels))
        total: Value | None = None
        for (threshold, strict), half in zip(function.thresholds, halves, strict=True):
            part = self._add_threshold(function.value, threshold, strict=strict)
            gain, shift = -half if strict else half, 0.0 if total else base
            part = part if (gain, shift) == (1.0, 0.0) else self.affine(part, gain, shift)
            total = part if total is None else self.add("add", total, part)
        assert total is not None
        return total

    def _add_threshold(self, value: Value, threshold: Tensor | float, *, strict: bool) -> Value:
        """Return +1 from ``threshold`` on; with ``strict`` +1 up to it. Subtracting a float keeps the side of 0."""
        if strict or self._constant(threshold, value).any():
            value = self.affine(value, -1.0, threshold) if strict else self.affine(value, 1.0, -threshold)
        return self.add("sign", value)


def _without_batch(tensor: Tensor, batch: int, rank: int) -> Tensor | None:
    """Return a constant without its batch axis, for values of ``rank`` axes; None where it varies along that axis."""
    if tensor.dim() <= rank:
        return tensor
    if tensor.dim() > rank + 1 or tensor.shape[0] not in (1, batch):
        return None
    if not bool((tensor == tensor[:1]).all()):
        return None
    uniform = bool((tensor == tensor.flatten()[0]).all())  # as made by full_like
    return tensor.flatten()[0] if uniform else tensor[0]


def step_heights(levels: list[float]) -> tuple[list[float], float]:
    """Return the half heights of a step function and its base: ``Σ ±half + base`` takes each level in turn.

    >>> step_heights([-1.0, 1.0])
    ([1.0], 0.0)
    """
    halves = [(above - below) / 2 for below, above in pairwise(levels)]
    return halves, float(np.float64(levels[0]) + sum(halves))
