"""Run a packed causal decoder on a few tokens at a time, with the keys and values of all before them kept."""

import math
from collections.abc import Sequence

import numpy as np

from equalbits.runtime import native
from equalbits.runtime.engine import PackedModel
from equalbits.runtime.lower import SLOTS, Lowering
from equalbits.runtime.op_specs import Floats, Operation
from equalbits.runtime.plan_tables import REAL, PlanTables
from equalbits.runtime.ports import join_inputs
from equalbits.runtime.shorten_decoder import Attention, Shortened, shorten

#: Positions of keys that the native engine keeps together.
_BLOCK = 32


class Decoder:
    """A packed causal decoder with a cache: each token is read once.

    :meth:`extend` reads tokens behind those read before and returns the logits of the last one, equal to those of the
    model on the whole text up to rounding. Raise ValueError for models whose tokens meet outside causal attention, and
    where the model does not run in the native engine.
    """

    def __init__(self, model: PackedModel, *, rows: int = 64) -> None:
        self.model, self.read, self._spare = model, 0, rows
        self._step = _CachedPlan(model, 1, rows)
        self.length = self._step.length
        self._rows = min(rows, self.length)
        self._state = _aligned_zeros(self._step.plan.state_size())
        self._chunk: _CachedPlan | None = None

    def reset(self) -> None:
        """Forget all tokens."""
        self.read = 0

    def extend(self, tokens: Sequence[int]) -> Floats:
        """Read tokens; return the logits of the last. Many are read together."""
        if not 0 < len(tokens) <= self.length - self.read:
            raise ValueError(f"{len(tokens)} tokens after {self.read}: give at least one, {self.length} in all")
        *before, last = tokens
        while len(before) >= max(2, self._rows // 4):
            self._chunk = self._chunk or _CachedPlan(self.model, self._rows, self._spare, until_attention=True)
            part, before = before[: self._rows], before[self._rows :]
            padded = [*part, *[0] * (self._rows - len(part))]  # read later, and then written over
            self._chunk(padded, self._state, self.read)
            self.read += len(part)
        for token in [*before, last]:
            logits = self._step([token], self._state, self.read)
            self.read += 1
        return logits


class _CachedPlan:
    """The native plan of a decoder that reads ``rows`` tokens, from any position on.

    A run may end behind the last position; the state has room for ``spare`` rows there, which nothing reads.
    """

    def __init__(self, model: PackedModel, rows: int, spare: int, *, until_attention: bool = False) -> None:
        if native.BUILT is None or model.native is None:
            raise ValueError("a cache needs the native engine")
        shortened = shorten(model.network, rows, until_attention=until_attention)
        self.length, self._network, self._threads = shortened.length, shortened.network, model.threads
        tables = PlanTables(native.BUILT.FIELDS, native.BUILT.KINDS)
        positions = -(-(self.length + spare) // _BLOCK) * _BLOCK
        answer = _CachedLowering(shortened, tables, positions).run()
        self.plan = native.BUILT.Plan(*tables.tables(), answer, model.native.instruction_set)

    def __call__(self, tokens: Sequence[int], state: Floats, position: int) -> Floats:
        """Read tokens at a position; return what the last one makes."""
        batch, _ = join_inputs(self._network.inputs, (np.asarray(tokens),), {})
        made = np.empty(self._network.shapes[-1], np.float32)
        self.plan.run_at(batch.reshape(-1), made.reshape(-1), state, position, self._threads)
        result: Floats = made[-1]
        return result


class _CachedLowering(Lowering):
    """Lower a shortened decoder: attention reads what is kept, and affines the rows of their tables."""

    def __init__(self, shortened: Shortened, plan: PlanTables, positions: int) -> None:
        super().__init__(shortened.network, plan)
        self._rows, self._positions = shortened.network.inputs[0].shape[0], positions
        self._tables, self._kept = shortened.tables, 0
        self._attentions = {attention.places[-1]: attention for attention in shortened.attentions}
        self.fused |= {place for attention in shortened.attentions for place in attention.places[:-1]}

    def lower_operation(self, place: int, operation: Operation) -> None:
        if place in self._attentions:
            self._attend(place, self._attentions[place])
        elif place in self._tables:
            self._add_positions(place, operation)
        else:
            super().lower_operation(place, operation)

    def fuse(self, place: int, value: int, fields: dict[str, int], slot: int) -> int | None:
        return None if place in self._tables else super().fuse(place, value, fields, slot)

    def signs_behind_affine(self, value: int, fields: dict[str, int]) -> tuple[list[int], set[int]]:
        positional = any(place in self._tables for place in self.readers[value])
        return ([], set()) if positional else super().signs_behind_affine(value, fields)

    def _attend(self, place: int, attention: Attention) -> None:
        """Emit one attention, with room in the state for its keys and values."""
        *lead, rows, width = self.shapes[place + 1]
        heads, queries, keys, values = math.prod(lead), *(self.as_flat(value) for value in attention.inputs)
        sizes = {"SIZE0": heads, "SIZE1": rows, "SIZE2": width, "SIZE3": self._positions}
        start, middle = self._kept, self._kept + heads * width * self._positions
        self._kept = middle + heads * -(-width // _BLOCK) * _BLOCK * self._positions
        places = {"FROM_OFFSET": start, "TO_OFFSET": middle}
        self.write_flat(place + 1, "ATTEND", IN=queries, IN2=keys, RESIDUAL=values, **sizes, **places)

    def _add_positions(self, place: int, operation: Operation) -> None:
        """Emit an affine whose gain and shift depend on the position."""
        value, (gain, shift) = operation.inputs[0], self._tables[place]
        read, count = self.as_flat(value), math.prod(self.shapes[value])
        if (gain != 1).any():
            made = self.plan.value(REAL, (count,))
            rows = self._rows_of(gain, read)
            self.plan.strided("MUL", (count,), ((1,), (1,)), IN=read, IN2=rows, OUT=made)
            read = made
        fields = {"IN": read, "RESIDUAL": self._rows_of(shift, read)}
        if place + 1 in self.images:
            self.write_flat(place + 1, "CHAIN", **fields)
        else:
            self.finish_step("CHAIN", place + 1, fields, SLOTS.index("residual"))

    def _rows_of(self, table: Floats, like: int) -> int:
        """Return a value with the rows of a table that belong to the positions of a run; it is as large as ``like``."""
        outer, length, inner = table.shape
        padded = np.zeros((outer, self._positions, inner), np.float32)
        padded[:, :length] = table
        made = self.plan.value(REAL, (outer * self._rows * inner,))
        sizes = {"SIZE0": outer, "SIZE1": self._rows, "SIZE2": inner, "SIZE3": self._positions}
        self.plan.step("POSITION", IN=like, OUT=made, SCALE=self.plan.tensor(padded), **sizes)
        return made


def _aligned_zeros(count: int) -> Floats:
    """Return zeros that begin at a multiple of 64 bytes."""
    memory = np.zeros(count + 16, np.float32)
    start = -memory.ctypes.data // 4 % 16
    return memory[start : start + count]
