"""Build a network by hand, one operation at a time."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from equalbits.runtime import bits
from equalbits.runtime.network import Network
from equalbits.runtime.op_specs import Array, Operation
from equalbits.runtime.ops import OPS, make_operation


class NetworkBuilder:
    """Collects operations; :meth:`add` returns the value an operation makes, for the next one to read.

    >>> build = NetworkBuilder((1, 2, 2))
    >>> x = build.add("flatten", build.image)
    >>> x = build.add_binary("linear", x, np.array([[1, -1, 1, 1]]), name="fc", p_pos=0.75)
    >>> build.finish().shapes
    ((1, 2, 2), (4,), (1,))
    """

    #: The value every network starts from.
    image = 0

    def __init__(self, input_shape: Iterable[int]) -> None:
        self.input_shape = tuple(input_shape)
        self._operations: list[Operation] = []
        self._tensors: dict[str, Array] = {}

    def add(self, kind: str, *inputs: int, name: str = "", **parts: object) -> int:
        """Add an operation. Arrays among ``parts`` are its tensors, stored as ``name.part``; the rest its settings.

        To share a tensor between operations, give both the same ``name`` and the same array.
        """
        known = OPS[kind].tensor_names if kind in OPS else ()
        arrays = {part: np.asarray(value) for part, value in parts.items() if part in known and value is not None}
        settings = {part: value for part, value in parts.items() if part not in known}
        layer = name or f"{kind}{len(self._operations)}"
        names = {part: f"{layer}.{part}" for part in arrays}
        for part, array in arrays.items():
            stored = array.astype(np.float32) if array.dtype in (np.float64, np.int64) else array
            held = self._tensors.setdefault(names[part], stored)
            if held.dtype != stored.dtype or not np.array_equal(held, stored):
                raise ValueError(f"tensor {names[part]!r} exists with other numbers: give the operation another name")
        self._operations.append(make_operation(kind, inputs, names, settings))
        return len(self._operations)

    def add_binary(self, kind: str, value: int, symbols: Array, *, name: str = "", **parts: object) -> int:
        """Add a ``conv`` or ``linear`` whose weights are the symbols −1, +1 and 0, filter first."""
        sign, kept = bits.pack_symbols(symbols)
        if symbols.ndim == 4:
            parts.setdefault("kernel", symbols.shape[2:])
        return self.add(kind, value, name=name, weight=sign, kept=kept, **parts)

    def finish(self, **header: Any) -> Network:
        """Return the network so far, validated; ``header`` holds ``mean``, ``std``, ``classes`` and ``notes``."""
        return Network(self.input_shape, tuple(self._operations), self._tensors, **header)
