"""Tables that a native plan is made from: values, steps and tensors, named as in ``native/equalbits.h``."""

import math
import sys
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray

from equalbits.runtime.op_specs import Array, Shape

#: Kinds of values: the image as given, floats, bits, bytes.
IMAGE, REAL, BITS, BYTES = 0, 1, 2, 3

#: First letters of the fields that default to 1 and to 0; all others default to −1.
_DEFAULT_ONE = ("KERNEL_", "STRIDE_", "DILATION_", "GROUPS")
_DEFAULT_ZERO = (
    "CAUSAL",
    "COUNT_PADDING",
    "SIGN_REAL",
    "ROUND_REAL",
    "RELU",
    "FROM_OFFSET",
    "TO_OFFSET",
    "PAD_",
    "POOL_",
)

#: Most steps that the native engine takes, and the memory of one in both languages.
_MOST_STEPS, _STEP_BYTES = 1 << 16, 1 << 12


class PlanTables:
    """Collects values, steps and tensors by number; :meth:`tables` returns the arrays.

    ``fields`` are the columns of the native table of steps in order, ``kinds`` its kinds of steps.
    """

    def __init__(self, fields: Mapping[str, int], kinds: Mapping[str, int], max_bytes: int = sys.maxsize) -> None:
        self._fields, self._kinds, self.bytes_left = fields, kinds, max_bytes
        self._weights: dict[tuple[int, np.dtype[np.generic]], int] = {}
        self.values: list[tuple[int, ...]] = []
        self.steps: list[tuple[str, dict[str, int]]] = []
        self.tensors: list[Array] = []
        #: Operation that is lowered now, and the operation of each step.
        self.place, self.places = 0, list[int]()

    def value(self, kind: int, shape: Shape) -> int:
        """Add a value; return its number. Anything but an image or a feature list is kept flat, in torch's order."""
        self.values.append((kind, *(shape if len(shape) == 3 else (math.prod(shape), 1, 1))))
        return len(self.values) - 1

    def step(self, kind: str, **fields: int) -> None:
        """Add a step; fields that are not given take their default."""
        if len(self.steps) == _MOST_STEPS:
            raise ValueError(f"the plan has more than {_MOST_STEPS} steps: numpy runs the network, slowly")
        self._spend(_STEP_BYTES)
        self.steps.append((kind, fields))
        self.places.append(self.place)

    @property
    def step_kinds(self) -> list[str]:
        """Kind of every step so far."""
        return [kind for kind, _ in self.steps]

    def tensor(self, array: Array) -> int:
        """Add a tensor by its bytes; return its number."""
        self._spend(array.nbytes)
        self.tensors.append(np.ascontiguousarray(array))
        return len(self.tensors) - 1

    def _spend(self, count: int) -> None:
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise OverflowError("the tables of the plan take more memory than allowed")

    def weight(self, array: Array, dtype: DTypeLike) -> int:
        """Add a tensor of the network in a dtype, once for all operations that share it; return its number."""
        key = id(array), np.dtype(dtype)  # the network keeps it alive
        if key not in self._weights:
            self._weights[key] = self.tensor(array.astype(dtype, copy=False))
        return self._weights[key]

    def copy(
        self, source: int, target: int, sizes: Shape, strides: tuple[Shape, Shape], offsets: Shape = (0, 0)
    ) -> None:
        """Add a step that copies ``sizes`` numbers, with strides and offsets in the source and in the target."""
        axes = sorted(range(len(sizes)), key=lambda axis: (-strides[0][axis], -strides[1][axis]))
        ordered = [tuple(numbers[axis] for axis in axes) for numbers in (sizes, *strides)]
        fields = {"IN": source, "OUT": target, "FROM_OFFSET": offsets[0], "TO_OFFSET": offsets[1]}
        self.strided("COPY", ordered[0], (ordered[1], ordered[2]), **fields)

    def strided(self, kind: str, sizes: Shape, strides: tuple[Shape, ...], **fields: int) -> None:
        """Add a step over ``sizes`` numbers, the last axis inmost, with strides in two of its values."""
        kept = [row for row in zip(sizes[:-1], *(part[:-1] for part in strides), strict=True) if row[0] > 1]
        rows = [*[(1, 0, 0)] * (5 - len(kept)), *kept, (sizes[-1], strides[0][-1], strides[1][-1])]
        if len(rows) > 6:
            raise ValueError(f"a value of shape {sizes} has more axes than the native engine can copy")
        for place, row in enumerate(rows):
            fields |= {f"{name}{place}": number for name, number in zip(("SIZE", "FROM", "TO"), row, strict=True)}
        self.step(kind, **fields)

    def tables(self) -> tuple[NDArray[np.int64], NDArray[np.int64], Sequence[NDArray[np.uint8]]]:
        """Return values, steps and tensors as the native plan takes them."""
        rows = [{"KIND": self._kinds[kind], **fields} for kind, fields in self.steps]
        steps = [[row.get(name, field_default(name)) for name in self._fields] for row in rows]
        tensors = [tensor.reshape(-1).view(np.uint8) for tensor in self.tensors]
        return np.array(self.values, np.int64), np.array(steps, np.int64), tensors


def field_default(name: str) -> int:
    """Return the number that a step has in a field it is not given."""
    return 1 if name.startswith(_DEFAULT_ONE) else 0 if name.startswith(_DEFAULT_ZERO) else -1


def strides(shape: Shape) -> Shape:
    """Return the strides of a contiguous array.

    >>> strides((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
