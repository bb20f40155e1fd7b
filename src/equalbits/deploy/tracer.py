"""What the rules share: the steps so far, which constants are bits, and numbers turned into steps."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equalbits.deploy.graph import PackError, Steps, Value, as_array
from equalbits.deploy.simplify import constant, stair_parts
from equalbits.deploy.weights import BinaryWeights

Rule = Callable[..., Any]


@dataclass(frozen=True)
class Compare:
    """``value ≥ edge`` where ``above``, else ``value < edge``; ``strict`` means ``>`` and ``≤``."""

    value: Value
    edge: Tensor | float
    above: bool
    strict: bool


@dataclass(frozen=True)
class Stair:
    """A value that rises from one constant to the next as ``value`` passes each edge; a sign has one edge."""

    value: Value
    edges: tuple[tuple[Tensor | float, bool], ...]  # and whether the edge itself is still below
    levels: tuple[float, ...]


@dataclass(frozen=True)
class Places:
    """Where the largest numbers stood, as torch gives beside them: a packed network does not know it."""

    def __str__(self) -> str:
        return "their places"


@dataclass(frozen=True)
class Stacked:
    """Values one behind the other before the batch, as torch.stack has them unless told otherwise: to be added up."""

    values: tuple[Value, ...]

    def __str__(self) -> str:
        return "values stacked before the batch"


@dataclass
class Walk:
    """The state of a walk through a traced model. ``layer``, ``shape`` and ``dtype`` speak of the node at hand."""

    steps: Steps
    batch: int
    names: dict[int, str] = field(default_factory=dict)
    binary: dict[int, BinaryWeights] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    made: list[Tensor] = field(default_factory=list)  # of weights, and kept: names and bits are known by their address
    layer: str = ""
    shape: tuple[int, ...] | None = None
    dtype: torch.dtype | None = None

    def refuse(self, why: str) -> PackError:
        """The error for something at the node at hand."""
        return PackError(f"layer {self.layer!r} {why}")

    def value(self, known: Any) -> Value:
        """A value that flows; a stair is laid step by step first."""
        if isinstance(known, Stair):
            return self._lay(known)
        if not isinstance(known, Value):
            what = (
                "a constant" if isinstance(known, Tensor) else "a comparison" if isinstance(known, Compare) else known
            )
            raise self.refuse(f"needs numbers that come of the image where it gets {what}: this cannot be packed")
        return known

    def number(self, known: Any, value: Value) -> np.ndarray[Any, Any]:
        """A constant that meets ``value``, without the batch axis."""
        tensor = known.double() if isinstance(known, Tensor) else torch.tensor(float(known), dtype=torch.float64)
        found = constant(tensor, self.batch, len(value.shape))
        if found is None:
            raise self.refuse(f"meets each image with other constants, of shape {tuple(tensor.shape)}: keep them alike")
        return found.numpy()

    def affine(self, value: Value, gain: Any = 1.0, shift: Any = 0.0) -> Value:
        """``value · gain + shift`` with constants."""
        return self.steps.affine(value, self.number(gain, value), self.number(shift, value), layer=self.layer)

    def vector(self, tensor: Tensor | None) -> Any:
        """A constant as an array, None where there is none."""
        if tensor is not None and not isinstance(tensor, Tensor):
            raise self.refuse("has weights that come of the image: a packed network has constant ones alone")
        return None if tensor is None else as_array(tensor)

    def tensor_layer(self, tensor: Tensor) -> str:
        """The name of the layer that holds a parameter."""
        name = self.names.get(tensor.data_ptr(), "")
        return name.rpartition(".")[0] or self.layer

    def bits_of(self, weight: Any) -> BinaryWeights | None:
        """The planes of a weight that is a binary layer's, whole and in order; None for any other."""
        found = self.binary.get(weight.data_ptr()) if isinstance(weight, Tensor) else None
        if found is None or weight.flatten(1).shape != found.planes[0].symbols.shape:
            return None
        in_order = weight.is_contiguous() or weight.is_contiguous(memory_format=torch.channels_last)
        return found if in_order else None

    def _lay(self, stair: Stair) -> Value:
        halves, base = stair_parts(list(stair.levels))
        total: Value | None = None
        for (edge, strict), half in zip(stair.edges, halves, strict=True):
            part = self._edge(stair.value, edge, strict=strict)
            gain, shift = -half if strict else half, 0.0 if total else base
            part = part if (gain, shift) == (1.0, 0.0) else self.affine(part, gain, shift)
            total = part if total is None else self.steps.add("add", total, part, layer=self.layer)
        assert total is not None
        return total

    def _edge(self, value: Value, edge: Tensor | float, *, strict: bool) -> Value:
        """+1 from ``edge`` on; ``strict``: +1 up to and with the edge. Taking an edge off a float keeps its side."""
        numbers = self.number(edge, value)
        if strict or numbers.any():
            value = self.affine(value, -1.0, edge) if strict else self.affine(value, 1.0, -edge)
        return self.steps.add("sign", value, layer=self.layer)
