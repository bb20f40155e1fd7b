"""Lower a network to a native plan: fuse operations into steps, and keep signs as bits where only bits are read.

A convolution, a pooling or an operation by itself starts a step. The elementwise operations behind it join the step's
chain as long as nothing else reads the values between them. The order of the chain is fixed (``native/equalbits.h``);
an operation that does not fit starts a step of its own. A value that only binary layers read is never written as
floats: the chain ends with its sign, one bit per number.
"""

import math
from collections.abc import Mapping

from equalbits.runtime.network import Network
from equalbits.runtime.op_specs import ChainOp, Shape
from equalbits.runtime.ops import OPS
from equalbits.runtime.ops.conv_linear import multiplies_bits
from equalbits.runtime.plan_tables import BITS, IMAGE, REAL, PlanTables, as_image, contiguous_strides, strides

#: Slots of a chain in order; an operation takes the first of its kind behind the last one taken.
_SLOTS = ("affine1", "prelu1", "affine2", "residual", "affine3", "prelu2", "affine4", "clamp")
#: Maximum rows of a pooling window that a convolution takes in: EB_POOL of ``native/core.h``.
_MAX_POOLED_ROWS = 8


def lower(network: Network, fields: Mapping[str, int], kinds: Mapping[str, int]) -> tuple[PlanTables, int]:
    """Return the tables of a network's native plan, and the number of the value that is the output."""
    plan = PlanTables(fields, kinds)
    return plan, Lowering(network, plan).run()


class Lowering:
    """State of :func:`lower`. ``real`` and ``bits`` map values of the network to values of the plan.

    The rules of :mod:`equalbits.runtime.ops` call the methods to emit steps.
    """

    def __init__(self, network: Network, plan: PlanTables) -> None:
        self.network, self.plan = network, plan
        self.output = len(network.operations)
        self.real: dict[int, int] = {}
        self.bits: dict[int, int] = {}
        self.readers: list[list[int]] = [[] for _ in network.shapes]
        self._fused: set[int] = set()  # operations that are part of a step already
        for place, operation in enumerate(network.operations):
            for value in operation.inputs:
                self.readers[value].append(place)
        self.image = plan.value(IMAGE, network.input_shape)

    def run(self) -> int:
        """Emit all steps; return the plan's value that is the output, its numbers in torch's order."""
        for place, operation in enumerate(self.network.operations):
            if place not in self._fused:
                OPS[operation.kind].lower(self, place, operation)
        shape = self.network.shapes[self.output]
        found = self.as_real(self.output)
        if len(shape) != 3 or shape[1:] == (1, 1) or shape[0] == 1:
            return found
        flat = self.plan.value(REAL, (math.prod(shape),))
        self.plan.copy(found, flat, shape, (strides(shape), contiguous_strides(shape)))
        return flat

    def new_bits(self, value: int) -> int:
        """Return a new value of the plan for a value of the network, as bits."""
        return self.plan.value(BITS, self.network.shapes[value])

    def write_real(self, value: int) -> int:
        """Return a new value of the plan, which from now on holds ``value`` as floats."""
        self.real[value] = self.plan.value(REAL, self.network.shapes[value])
        return self.real[value]

    def as_real(self, value: int) -> int:
        """Return the plan's value that holds ``value`` as floats; load the image where it is read first."""
        if value == 0 and 0 not in self.real:
            self.plan.step("LOAD", IN=self.image, OUT=self.write_real(0))
        return self.real[value]

    def is_sign(self, value: int) -> bool:
        """Return whether a value is made by a sign."""
        return value > 0 and self.network.operations[value - 1].kind == "sign"

    def is_elementwise(self, place: int) -> bool:
        """Return whether an operation can join a chain."""
        return isinstance(OPS[self.network.operations[place].kind], ChainOp)

    def read_as_bits(self, place: int) -> bool:
        """Return whether an operation is a sign whose bits are read."""
        return self.is_sign(place + 1) and any(multiplies_bits(self, reader) for reader in self.readers[place + 1])

    def read_as_real(self, place: int) -> bool:
        """Return whether a sign is read as floats, or by nothing."""
        readers = self.readers[place + 1]
        return not readers or not all(multiplies_bits(self, reader) for reader in readers)

    def finish_step(self, step: str, value: int, fields: dict[str, int], slot: int = -1) -> None:
        """Fuse the elementwise operations behind ``value``, then emit the step and its outputs."""
        while value != self.output and len(self.readers[value]) == 1:
            place = self.readers[value][0]
            taken = self.fuse(place, value, fields, slot)
            if taken is None:
                break
            slot, value = taken, place + 1
            self._fused.add(place)
        if step.startswith("CONV") and "RESIDUAL" not in fields:
            value = self._fuse_pool(value, fields)
        groups = fields.get("GROUPS", 1)
        whole_words = groups == 1 or self.network.shapes[value][0] // groups % 32 == 0
        served = self._end_in_bits(value, fields) if whole_words else set()
        if value == self.output or set(self.readers[value]) - served or "OUT_BITS" not in fields:
            fields["OUT"] = self.write_real(value)
        self.plan.step(step, **fields)

    def fuse(self, place: int, value: int, fields: dict[str, int], slot: int) -> int | None:
        """Put an operation into the chain behind ``slot``; return its slot, or None where it does not fit."""
        operation = self.network.operations[place]
        spec = OPS[operation.kind]
        if not isinstance(spec, ChainOp):
            return None
        kind = spec.slot(self, place)
        slot = next((i for i in range(slot + 1, len(_SLOTS)) if _SLOTS[i].rstrip("1234") == kind), -1)
        taken = spec.fields(self, operation, value, _SLOTS[slot][-1]) if slot >= 0 else None
        if taken is None:
            return None
        fields |= taken
        return slot

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
        self._fused.add(place)
        return place + 1

    def _end_in_bits(self, value: int, fields: dict[str, int]) -> set[int]:
        """Have the step write the signs that binary layers read; return the readers that need no floats then."""
        signs = [place for place in self.readers[value] if self.read_as_bits(place)]
        served = {place for place in signs if not self.read_as_real(place)}
        if not signs:  # perhaps behind a batch norm of their own
            signs, served = self._signs_behind_affine(value, fields)
        if signs:
            fields["OUT_BITS"] = self.new_bits(value)
            self.bits |= {place + 1: fields["OUT_BITS"] for place in signs}
            self._fused |= served | {place for place in signs if not self.read_as_real(place)}
        return served

    def _signs_behind_affine(self, value: int, fields: dict[str, int]) -> tuple[list[int], set[int]]:
        """Return the signs behind the only affine that reads ``value``, where nothing else reads that affine."""
        affine = [place for place in self.readers[value] if self.network.operations[place].kind == "affine"]
        signs = self.readers[affine[0] + 1] if len(affine) == 1 else []
        if not signs or not all(self.read_as_bits(place) and not self.read_as_real(place) for place in signs):
            return [], set()
        spec = OPS["affine"]
        assert isinstance(spec, ChainOp)
        fields |= spec.fields(self, self.network.operations[affine[0]], value, "5") or {}
        return signs, set(affine)

    def reshape(self, source: int, before: Shape, after: Shape) -> int:
        """Return a value with the same numbers in another shape: through a flat one where images are involved."""
        if as_image(before) == as_image(after) and (as_image(after)[1:] == (1, 1) or before == after):
            return source
        flat = self.plan.value(REAL, (math.prod(after),))
        self.plan.copy(source, flat, before, (strides(before), contiguous_strides(before)))
        if len(after) != 3 or after[1:] == (1, 1):
            return flat
        target = self.plan.value(REAL, after)
        self.plan.copy(flat, target, after, (contiguous_strides(after), strides(after)))
        return target
