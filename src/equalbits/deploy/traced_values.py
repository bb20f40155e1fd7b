"""Values that the rules of a trace work on."""

from dataclasses import dataclass

from torch import Tensor

from equalbits.runtime import Shape


@dataclass(frozen=True)
class Value:
    """A value between steps: its number in the file (0 is the image), and its shape without the batch axis."""

    number: int
    shape: Shape


@dataclass(frozen=True)
class Mask:
    """A bool for each number of a value: 1 where true, 0 where false."""

    value: Value

    def __str__(self) -> str:
        return "a mask"


@dataclass(frozen=True)
class StepFunction:
    """A piecewise constant function: ``value`` takes the next level at each threshold, as a sign or a comparison does.

    The bool of a threshold says whether the threshold itself still has the level before it. ``axis`` and ``folded``
    say where the batch is, as in :class:`BatchView`.
    """

    value: Value
    thresholds: tuple[tuple[Tensor | float, bool], ...]
    levels: tuple[float, ...]
    axis: int = 0
    folded: bool = False


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


@dataclass(frozen=True)
class BatchView:
    """A value with the batch at ``axis`` of torch's shape; ``folded``: that axis is the batch times the value's own."""

    value: Value
    axis: int = 0
    folded: bool = False

    def __str__(self) -> str:
        return "a value whose batch is not the first axis"


#: Argument of a rule that computes with numbers: a value, or a constant.
Operand = Value | Tensor | float
#: Argument of any rule: whatever depends on the image, or a constant.
Known = Value | Mask | StepFunction | Indices | Stacked | BatchView | Tensor | float | None
