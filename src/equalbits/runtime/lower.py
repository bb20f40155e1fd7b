"""Lower a network to a native plan: fuse operations into steps, and keep signs as bits where only bits are read.

A convolution, a pooling or an operation by itself starts a step. The elementwise operations behind it join the step's
chain as long as nothing else reads the values between them. The order of the chain is fixed (``native/equalbits.h``);
an operation that does not fit starts a step of its own. A value that only binary layers read is never written as
floats: the chain ends with its sign, one bit per number.
"""

import math
import sys
from collections.abc import Mapping

import numpy as np
from numpy.typing import DTypeLike

from equalbits.runtime.input_forms import input_form
from equalbits.runtime.network import Network
from equalbits.runtime.op_specs import Array, ChainOp, ElementwiseOp, Operation, Shape
from equalbits.runtime.plan_tables import BITS, BYTES, IMAGE, REAL, PlanTables, strides

#: Slots of a chain in order; an operation takes the first of its kind behind the last one taken.
SLOTS = ("affine1", "prelu1", "affine2", "residual", "affine3", "prelu2", "affine4", "clamp")
#: Maximum rows of a pooling window that a convolution takes in: EB_POOL of ``native/core.h``.
_MAX_POOLED_ROWS = 8


def lower(
    network: Network,
    fields: Mapping[str, int],
    kinds: Mapping[str, int],
    max_bytes: int = sys.maxsize,
    *,
    byte_weights: tuple[DTypeLike, ...] = (np.uint8,),
) -> tuple[PlanTables, int]:
    """Return the tables of a network's native plan, and the number of the value that is the output.

    Raise OverflowError where the tensors of the plan take more than ``max_bytes``. ``byte_weights`` are the dtypes of
    weights that are multiplied by rounded numbers in integers.
    """
    plan = PlanTables(fields, kinds, max_bytes)
    return plan, Lowering(network, plan, byte_weights).run()


class Lowering:
    """State of :func:`lower`. ``real`` and ``compact`` (signs as bits, roundings as bytes) map values of the network to
    values of the plan.

    Numbers that are rounded to 8 bits stay floats where they are multiplied by other dtypes than ``byte_weights``. The
    rules of :mod:`equalbits.runtime.ops` call the methods to emit steps.
    """

    def __init__(self, network: Network, plan: PlanTables, byte_weights: tuple[DTypeLike, ...] = (np.uint8,)) -> None:
        self.network, self.plan, self.byte_weights, self.shapes = network, plan, byte_weights, network.shapes
        self.output = len(network.operations)
        self.real: dict[int, int] = {}
        self.compact: dict[int, int] = {}
        self.readers: list[list[int]] = [[] for _ in network.shapes]
        self.fused: set[int] = set()  # operations that are part of a step already
        self._by_rows = False  # whether the chain that is fused now is that of one row after the other
        for place, operation in enumerate(network.operations):
            for value in operation.inputs:
                self.readers[value].append(place)
        self.images = image_values(network)
        self.image = plan.value(IMAGE, network.input_shape)

    def run(self) -> int:
        """Emit all steps; return the plan's value that is the output, its numbers in torch's order."""
        for place, operation in enumerate(self.network.operations):
            if place not in self.fused:
                self.plan.place = place
                self.lower_operation(place, operation)
        in_order = self.shapes[self.output][0] == 1
        return self.as_real(self.output) if in_order else self.as_flat(self.output)

    def lower_operation(self, place: int, operation: Operation) -> None:
        """Emit the steps of an operation that no step has taken in."""
        operation.spec.lower(self, place, operation)

    def native_shape(self, value: int) -> Shape:
        """Return the shape that the plan gives a value: an image, or one long list."""
        shape = self.shapes[value]
        return shape if value in self.images else (math.prod(shape),)

    def strides(self, value: int) -> Shape:
        """Return the strides of a value in memory: images are channels-last, everything else is contiguous."""
        channels, *rest = shape = self.shapes[value]
        return (1, rest[1] * channels, channels) if value in self.images else strides(shape)

    def vector(self, array: Array, value: int, axis: int = 0, *, by_rows: bool = False) -> int:
        """Add float32 numbers per entry of an axis of a value, repeated where the plan has one long list.

        With ``by_rows`` they are those of one row, the last axis.
        """
        shape = self.shapes[value]
        if by_rows or self._by_rows:
            return self.plan.tensor(np.broadcast_to(array.astype(np.float32).reshape(-1), shape[-1:]))
        spread = array.astype(np.float32).reshape(-1, *(1,) * (len(shape) - 1 - axis))
        return self.plan.tensor(np.broadcast_to(spread, (*shape[:1], 1, 1) if value in self.images else shape))

    def write_compact(self, value: int, kind: int) -> int:
        """Return a new value of the plan, which from now on holds a sign as bits, or a rounding as bytes."""
        self.compact[value] = self.plan.value(kind, self.native_shape(value))
        return self.compact[value]

    def write_real(self, value: int) -> int:
        """Return a new value of the plan, which from now on holds ``value`` as floats."""
        self.real[value] = self.plan.value(REAL, self.native_shape(value))
        return self.real[value]

    def as_real(self, value: int) -> int:
        """Return the plan's value that holds ``value`` as floats; load the image where it is read first."""
        if value == 0 and 0 not in self.real:
            self.plan.step("LOAD", IN=self.image, OUT=self.write_real(0))
        return self.real[value]

    def input_form(self, place: int) -> str:
        """Return how an operation reads its input: as ``bits``, ``bytes`` or ``floats``."""
        return input_form(self.network, place, self.byte_weights)

    def rounding(self, place: int) -> int:
        """Return a tensor of the plan with gain, least and largest number of a ``quantize``."""
        settings = self.network.operations[place].settings
        return self.plan.tensor(np.array([settings[name] for name in ("gain", "min", "max")], np.float32))

    def write_bytes(self, place: int) -> dict[str, int]:
        """Return the fields of a step that writes the numbers of a ``quantize`` as bytes."""
        return {"OUT_BYTES": self.write_compact(place + 1, BYTES), "QUANT": self.rounding(place)}

    def is_elementwise(self, place: int) -> bool:
        """Return whether an operation can join a chain."""
        return isinstance(self.network.operations[place].spec, ChainOp)

    def read_compactly(self, place: int, kind: str = "") -> bool:
        """Return whether an operation, of this kind, is a sign read as bits or a rounding read as bytes."""
        right = kind in ("", self.network.operations[place].kind)
        return right and any(self.input_form(reader) != "floats" for reader in self.readers[place + 1])

    def read_as_real(self, place: int) -> bool:
        """Return whether the output of an operation is read as floats, or by nothing."""
        readers = self.readers[place + 1]
        return not readers or any(self.input_form(reader) == "floats" for reader in readers)

    def finish_step(
        self, step: str, value: int, fields: dict[str, int], slot: int = -1, *, by_rows: bool = False
    ) -> None:
        """Fuse the elementwise operations behind ``value``, then emit the step and its outputs.

        A step ``by_rows`` makes a list; an image is put in its own layout behind it.
        """
        if by_rows and value in self.images:
            self.write_flat(value, step, **fields)
            return
        self._by_rows = by_rows
        value = self._fuse_chain(value, fields, slot)
        self._by_rows = False
        if step.startswith("CONV") and not by_rows and "RESIDUAL" not in fields:
            value = self._fuse_pool(value, fields)
        groups = fields.get("GROUPS", 1)
        whole_words = not by_rows and (groups == 1 or self.shapes[value][0] // groups % 32 == 0)
        served = self._end_in_bits(value, fields) if whole_words else set()
        served |= set() if by_rows else self._end_in_bytes(value, fields)
        if value == self.output or set(self.readers[value]) - served or not fields.keys() & {"OUT_BITS", "OUT_BYTES"}:
            fields["OUT"] = self.write_real(value)
        self.plan.step(step, **fields)

    def _fuse_chain(self, value: int, fields: dict[str, int], slot: int) -> int:
        """Fuse the elementwise operations behind ``value``; return the value that the last of them makes."""
        while value != self.output and len(self.readers[value]) == 1:
            place = self.readers[value][0]
            taken = self.fuse(place, value, fields, slot)
            if taken is None:
                break
            slot, value = taken, place + 1
            self.fused.add(place)
        return value

    def fuse(self, place: int, value: int, fields: dict[str, int], slot: int) -> int | None:
        """Put an operation into the chain behind ``slot``; return its slot, or None where it does not fit."""
        operation = self.network.operations[place]
        spec = operation.spec
        if not isinstance(spec, ChainOp) or (self._by_rows and not self._is_per_entry(place)):
            return None
        kind = spec.slot(self, place)
        slot = next((i for i in range(slot + 1, len(SLOTS)) if SLOTS[i].rstrip("1234") == kind), -1)
        taken = spec.fields(self, operation, value, SLOTS[slot][-1]) if slot >= 0 else None
        if taken is None:
            return None
        fields |= taken
        return slot

    def _is_per_entry(self, place: int) -> bool:
        """Return whether the vectors of an operation hold one number, or one per entry of the last axis."""
        operation, rank = self.network.operations[place], len(self.shapes[place + 1])
        vectors = [array for name, array in self.network.arrays(operation).items() if array.size > 1]
        return not vectors or operation.settings.get("axis", 0) == rank - 1

    def _fuse_pool(self, value: int, fields: dict[str, int]) -> int:
        """Fuse a max pooling into a convolution where nothing else reads its output; return the last value."""
        if value == self.output or len(self.readers[value]) != 1:
            return value
        place = self.readers[value][0]
        operation = self.network.operations[place]
        if operation.kind != "max_pool" or operation.settings["kernel"][0] > _MAX_POOLED_ROWS:
            return value
        names = ("H", "W", "STRIDE_H", "STRIDE_W", "TOP", "BOTTOM", "LEFT", "RIGHT")
        sizes = (size for name in ("kernel", "stride", "padding") for size in operation.settings[name])
        fields |= {f"POOL_{name}": size for name, size in zip(names, sizes, strict=True)}
        self.fused.add(place)
        return place + 1

    def _end_in_bytes(self, value: int, fields: dict[str, int]) -> set[int]:
        """Have the step write the bytes of the first rounding that is read as such; return it if floats need not be."""
        place = next((place for place in self.readers[value] if self.read_compactly(place, "quantize")), None)
        if place is None:
            return set()
        fields |= self.write_bytes(place)
        served = set() if self.read_as_real(place) else {place}
        self.fused |= served
        return served

    def _end_in_bits(self, value: int, fields: dict[str, int]) -> set[int]:
        """Have the step write the signs that binary layers read; return the readers that need no floats then."""
        signs = [place for place in self.readers[value] if self.read_compactly(place, "sign")]
        served = {place for place in signs if not self.read_as_real(place)}
        if not signs:  # perhaps behind a batch norm of their own
            signs, served = self.signs_behind_affine(value, fields)
        if signs:
            fields["OUT_BITS"] = self.plan.value(BITS, self.native_shape(value))
            self.compact |= {place + 1: fields["OUT_BITS"] for place in signs}
            self.fused |= served | {place for place in signs if not self.read_as_real(place)}
        return served

    def signs_behind_affine(self, value: int, fields: dict[str, int]) -> tuple[list[int], set[int]]:
        """Return the signs behind the only affine that reads ``value``, where nothing else reads that affine."""
        affine = [place for place in self.readers[value] if self.network.operations[place].kind == "affine"]
        signs = self.readers[affine[0] + 1] if len(affine) == 1 else []
        if not signs or not all(self.read_compactly(place, "sign") and not self.read_as_real(place) for place in signs):
            return [], set()
        operation = self.network.operations[affine[0]]
        assert isinstance(operation.spec, ChainOp)
        fields |= operation.spec.fields(self, operation, value, "5") or {}
        return signs, set(affine)

    def as_flat(self, value: int) -> int:
        """Return a value of the plan that holds the numbers of ``value`` in torch's order."""
        found, shape = self.as_real(value), self.shapes[value]
        if value not in self.images or shape[1:] == (1, 1):
            return found
        flat = self.plan.value(REAL, (math.prod(shape),))
        self.plan.copy(found, flat, shape, (self.strides(value), strides(shape)))
        return flat

    def write_flat(self, value: int, step: str, **fields: int) -> None:
        """Emit a step that makes ``value`` in torch's order; an image is put in its own layout behind it."""
        shape = self.shapes[value]
        flat = self.plan.value(REAL, (math.prod(shape),))
        self.plan.step(step, OUT=flat, **fields)
        self.real[value] = self._from_flat(flat, value)

    def reshape(self, before: int, after: int) -> int:
        """Return a value with the numbers of ``before`` in the layout of ``after``: through a flat one for images."""
        if self.native_shape(before) == self.native_shape(after):
            return self.as_real(before)
        return self._from_flat(self.as_flat(before), after)

    def _from_flat(self, flat: int, value: int) -> int:
        """Return a value of the plan with the numbers of ``flat`` in the layout of ``value``."""
        shape = self.shapes[value]
        if value not in self.images or shape[1:] == (1, 1):
            return flat
        target = self.plan.value(REAL, shape)
        self.plan.copy(flat, target, shape, (strides(shape), self.strides(value)))
        return target


def image_values(network: Network) -> set[int]:
    """Return the values that lie in memory as images, channels last: those that windows slide over, and their kin.

    Elementwise operations need all their values in one layout, so one image makes images of all.
    """
    leader = list(range(len(network.shapes)))

    def find(value: int) -> int:
        while leader[value] != value:
            leader[value] = leader[leader[value]]
            value = leader[value]
        return value

    images = {0}
    for place, operation in enumerate(network.operations):
        if isinstance(operation.spec, ElementwiseOp):
            for value in operation.inputs:
                leader[find(value)] = find(place + 1)
        elif operation.spec.slides:
            images |= {place + 1, *operation.inputs}
    leaders = {find(value) for value in images}
    return {value for value, shape in enumerate(network.shapes) if len(shape) == 3 and find(value) in leaders}
