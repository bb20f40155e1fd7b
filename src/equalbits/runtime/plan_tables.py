"""The tables a native plan is made from: values, steps and tensors, as ``native/equalbits.h`` names them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]

IMAGE, REAL, BITS = 0, 1, 2

_WINDOW = ("KERNEL_H", "KERNEL_W", "STRIDE_H", "STRIDE_W", "DILATION_H", "DILATION_W", "GROUPS")
_NONE_IS_ZERO = ("COUNT_PADDING", "SIGN_REAL", "RELU1", "RELU2", "FROM_OFFSET", "TO_OFFSET")


class PlanTables:
    """Collects values, steps and tensors under numbers; :meth:`tables` gives the arrays."""

    def __init__(self, fields: Mapping[str, int], kinds: Mapping[str, int]) -> None:
        self._fields, self._kinds = fields, kinds
        self._values: list[tuple[int, ...]] = []
        self._steps: list[dict[str, int]] = []
        self._tensors: list[NDArray[np.uint8]] = []

    def value(self, kind: int, shape: Shape) -> int:
        """A new value. One that is no image and no list of features is kept flat, in the order of its axes."""
        self._values.append((kind, *as_image(shape)))
        return len(self._values) - 1

    def step(self, kind: str, **numbers: int) -> None:
        """A new step; what is not said is "none"."""
        self._steps.append({"KIND": self._kinds[kind], **numbers})

    def tensor(self, array: NDArray[Any]) -> int:
        """A tensor's number; its bytes are taken as they are."""
        self._tensors.append(np.ascontiguousarray(array).view(np.uint8).reshape(-1))
        return len(self._tensors) - 1

    def vector(self, array: NDArray[Any], shape: Shape) -> int:
        """A number per channel of a value of this shape, as float32: one is repeated for all."""
        channels, *rest = shape
        vector = np.broadcast_to(array.astype(np.float32), (channels,))
        repeats = math.prod(rest) if len(shape) not in (1, 3) else 1
        return self.tensor(np.repeat(vector, repeats))

    def copy(
        self, source: int, target: int, sizes: Shape, strides: tuple[Shape, Shape], offsets: Shape = (0, 0)
    ) -> None:
        """A step that moves numbers: along each axis, how many, and how far apart they stand in source and target."""
        axes = sorted(range(len(sizes)), key=lambda axis: (-strides[0][axis], -strides[1][axis]))
        if len(axes) > 6:
            raise ValueError(f"a value of shape {sizes} has more axes than the native engine moves")
        numbers = {"IN": source, "OUT": target, "FROM_OFFSET": offsets[0], "TO_OFFSET": offsets[1]}
        for place, axis in enumerate([-1] * (6 - len(axes)) + axes):
            parts = (1, 0, 0) if axis < 0 else (sizes[axis], strides[0][axis], strides[1][axis])
            numbers |= {f"{name}{place}": number for name, number in zip(("SIZE", "FROM", "TO"), parts, strict=True)}
        self.step("COPY", **numbers)

    def tables(self) -> tuple[NDArray[np.int64], NDArray[np.int64], Sequence[NDArray[np.uint8]]]:
        """Values, steps and tensors as the native plan takes them."""
        steps = np.full((len(self._steps), len(self._fields)), -1, np.int64)
        for name, default in [(name, 1) for name in _WINDOW] + [(name, 0) for name in _NONE_IS_ZERO]:
            steps[:, self._fields[name]] = default
        for name, column in self._fields.items():
            if name.startswith(("PAD_", "POOL_")):
                steps[:, column] = 0
        for row, numbers in zip(steps, self._steps, strict=True):
            for name, number in numbers.items():
                row[self._fields[name]] = number
        return np.array(self._values, np.int64), steps, self._tensors


def as_image(shape: Shape) -> Shape:
    """A value's shape as channels, rows and columns."""
    return shape if len(shape) == 3 else (math.prod(shape), 1, 1)


def strides(shape: Shape) -> Shape:
    """How far apart the entries along each axis stand: images have their channels last, all else is in order.

    >>> strides((3, 4, 5)), strides((2, 3, 4, 5))
    ((1, 15, 3), (60, 20, 5, 1))
    """
    if len(shape) == 3:
        return 1, shape[2] * shape[0], shape[0]
    return in_order(shape)


def in_order(shape: Shape) -> Shape:
    """How far apart the entries along each axis stand when the last axis is the quickest."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
