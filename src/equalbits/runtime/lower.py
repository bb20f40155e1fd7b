"""From a network to a native plan: which operations become one step, and which values stay bits.

A convolution, a pooling or a lone operation starts a step. What follows it number by number, batch norm, PReLU, a
residual, is taken into the step's chain as long as nothing else reads what lies between; the chain's order is fixed
(``native/equalbits.h``), and an operation that does not fit starts a step of its own. A value that only binary
convolutions read is never written as reals at all: the chain ends with its sign, one bit a number.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from equalbits.runtime.network import Network, Operation
from equalbits.runtime.plan_tables import BITS, IMAGE, REAL, PlanTables, as_image, in_order, strides

#: The chain's slots in order; an operation takes the first of its kind behind the last one taken.
_SLOTS = ("affine1", "prelu1", "affine2", "residual", "affine3", "prelu2", "affine4", "clamp")
_BY_NUMBER = {"affine", "prelu", "relu", "clamp", "add"}
#: The most rows of a window that a convolution pools by itself: EB_POOL of ``native/core.h``.
_MOST_POOLED = 8
#: Fewer filters a group than this are quicker as reals.
_FEWEST_FILTERS = 16


class Lowering:
    """The work of :func:`lower`: walks the operations in order and emits steps."""

    def __init__(self, network: Network, plan: PlanTables) -> None:
        self.network, self.plan = network, plan
        self.answer = len(network.operations)
        self.real: dict[int, int] = {}  # value of the network: value of the plan
        self.bits: dict[int, int] = {}
        self.taken: set[int] = set()  # operations that are part of a step already
        self.readers: list[list[int]] = [[] for _ in network.shapes]
        for place, operation in enumerate(network.operations):
            for value in operation.inputs:
                self.readers[value].append(place)
        self.image = plan.value(IMAGE, network.input_shape)

    def run(self) -> int:
        """Emit everything; returns the plan's value that is the answer, its numbers in order."""
        for place, operation in enumerate(self.network.operations):
            if place not in self.taken:
                self._emit(place, operation)
        shape = self.network.shapes[self.answer]
        found = self._as_real(self.answer)
        if len(shape) != 3 or shape[1:] == (1, 1) or shape[0] == 1:
            return found
        flat = self.plan.value(REAL, (int(np.prod(shape)),))
        self.plan.copy(found, flat, shape, (strides(shape), in_order(shape)))
        return flat

    def _emit(self, place: int, operation: Operation) -> None:
        kind = operation.kind
        if kind in ("conv", "linear"):
            self._weighted(place, operation)
        elif kind in ("max_pool", "avg_pool", "adaptive_avg_pool"):
            step = {"max_pool": "MAX_POOL", "avg_pool": "AVG_POOL", "adaptive_avg_pool": "ADAPTIVE"}[kind]
            numbers = {"IN": self._as_real(operation.inputs[0]), **_window(operation.settings)}
            self._finish(step, place + 1, numbers, -1)
        elif kind in _BY_NUMBER:
            numbers = {"IN": self._as_real(operation.inputs[0])}
            slot = self._take(place, operation.inputs[0], numbers, -1)
            assert slot is not None
            self._finish("CHAIN", place + 1, numbers, slot)
        elif kind == "sign":
            self._sign(place, operation)
        else:
            self._move(place, operation)

    def _weighted(self, place: int, operation: Operation) -> None:
        """A convolution or linear layer, with its scale and bias."""
        value, shape = operation.inputs[0], self.network.shapes[place + 1]
        arrays = self.network.arrays(operation)
        numbers = _window(operation.settings) if operation.kind == "conv" else {}
        for part in ("scale", "bias"):
            if part in arrays:
                numbers[part.upper()] = self.plan.vector(arrays[part], shape)
        if arrays["weight"].dtype == np.uint8:
            numbers |= {part.upper(): self.plan.tensor(arrays[part]) for part in ("weight", "kept") if part in arrays}
        if self._by_bits(place):
            self._finish("CONV_BITS", place + 1, numbers | {"IN": self.bits[value]}, -1)
            return
        if operation.settings.get("input_bits") == 8:
            self._finish("LINEAR_BYTES", place + 1, numbers | {"IN": self._as_real(value)}, -1)
            return
        read = self.image if value == 0 and numbers.get("GROUPS", 1) == 1 else self._as_real(value)
        if "WEIGHT" in numbers:
            self._finish("CONV_SIGNED", place + 1, numbers | {"IN": read}, -1)
        else:
            weight = self.plan.tensor(arrays["weight"].astype(np.float32))
            self._finish("CONV_REAL", place + 1, numbers | {"IN": read, "WEIGHT": weight}, -1)

    def _by_bits(self, place: int) -> bool:
        """Whether an operation multiplies bits by bits."""
        operation = self.network.operations[place]
        if operation.kind not in ("conv", "linear") or not self._is_sign(operation.inputs[0]):
            return False
        if operation.settings.get("input_bits") == 8:
            return False
        groups = operation.settings.get("groups", 1)
        enough = groups == 1 or self.network.shapes[place + 1][0] // groups >= _FEWEST_FILTERS
        return enough and self.network.tensors[operation.tensors["weight"]].dtype == np.uint8

    def _is_sign(self, value: int) -> bool:
        return value > 0 and self.network.operations[value - 1].kind == "sign"

    def _finish(self, step: str, value: int, numbers: dict[str, int], slot: int) -> None:
        """Take in what follows ``value`` number by number, then emit the step and say where its numbers go."""
        while value != self.answer and len(self.readers[value]) == 1:
            place = self.readers[value][0]
            taken = self._take(place, value, numbers, slot)
            if taken is None:
                break
            slot, value = taken, place + 1
            self.taken.add(place)
        if step.startswith("CONV") and "RESIDUAL" not in numbers:
            value = self._take_pool(value, numbers)
        groups = numbers.get("GROUPS", 1)
        whole_words = groups == 1 or self.network.shapes[value][0] // groups % 32 == 0
        served = self._end_in_bits(value, numbers) if whole_words else set()
        if value == self.answer or set(self.readers[value]) - served or "OUT_BITS" not in numbers:
            self.real[value] = numbers["OUT"] = self.plan.value(REAL, self.network.shapes[value])
        self.plan.step(step, **numbers)

    def _take(self, place: int, value: int, numbers: dict[str, int], slot: int) -> int | None:
        """Put an operation into the chain behind ``slot``; returns its slot, None where it does not fit."""
        operation, shape = self.network.operations[place], self.network.shapes[value]
        if operation.kind not in _BY_NUMBER:
            return None
        kind = "residual" if operation.kind == "add" else operation.kind
        if kind == "relu":  # a clamp ends the chain, so where more follows it takes a PReLU's place
            more = [self.network.operations[reader].kind in _BY_NUMBER for reader in self.readers[place + 1]]
            kind = "prelu" if more == [True] else "clamp"
        slot = next((i for i in range(slot + 1, len(_SLOTS)) if _SLOTS[i].rstrip("1234") == kind), -1)
        if slot < 0:
            return None
        arrays, number, vector = self.network.arrays(operation), _SLOTS[slot][-1], self.plan.vector
        if kind == "residual":
            other = operation.inputs[1] if operation.inputs[0] == value else operation.inputs[0]
            if other != 0 and other not in self.real:
                return None
            numbers["RESIDUAL"] = self._as_real(other)
        elif kind == "affine":
            gain, shift = arrays["gain_shift"]
            numbers |= {f"GAIN{number}": vector(gain, shape), f"SHIFT{number}": vector(shift, shape)}
        elif kind == "prelu":
            numbers |= {f"SLOPE{number}": vector(arrays["slope"], shape)} if arrays else {f"RELU{number}": 1}
        else:
            low, high = operation.settings.get("min", 0.0), operation.settings.get("max")
            limits = [-np.inf if low is None else low, np.inf if high is None else high]
            numbers["CLAMP"] = self.plan.tensor(np.array(limits, np.float32))
        return slot

    def _take_pool(self, value: int, numbers: dict[str, int]) -> int:
        """Let a convolution take the largest of each window, where nothing else reads it; returns the last value."""
        if value == self.answer or len(self.readers[value]) != 1:
            return value
        place = self.readers[value][0]
        operation = self.network.operations[place]
        if operation.kind != "max_pool" or operation.settings["kernel"][0] > _MOST_POOLED:
            return value
        (numbers["POOL_H"], numbers["POOL_W"]), stride = operation.settings["kernel"], operation.settings["stride"]
        numbers["POOL_STRIDE_H"], numbers["POOL_STRIDE_W"] = stride
        for side, number in zip(("TOP", "BOTTOM", "LEFT", "RIGHT"), operation.settings["padding"], strict=True):
            numbers[f"POOL_{side}"] = number
        self.taken.add(place)
        return place + 1

    def _end_in_bits(self, value: int, numbers: dict[str, int]) -> set[int]:
        """Let the step write the signs that binary convolutions want; returns the readers that need no reals then."""
        signs = [place for place in self.readers[value] if self._wants_bits(place)]
        served = {place for place in signs if not self._wants_real(place)}
        if not signs:  # perhaps behind a batch norm of their own
            signs, served = self._signs_behind(value, numbers)
        if signs:
            numbers["OUT_BITS"] = self.plan.value(BITS, self.network.shapes[value])
            self.bits |= {place + 1: numbers["OUT_BITS"] for place in signs}
            self.taken |= served | {place for place in signs if not self._wants_real(place)}
        return served

    def _signs_behind(self, value: int, numbers: dict[str, int]) -> tuple[list[int], set[int]]:
        """The signs behind the one affine that reads ``value``, where nothing else reads that affine."""
        affine = [place for place in self.readers[value] if self.network.operations[place].kind == "affine"]
        signs = self.readers[affine[0] + 1] if len(affine) == 1 else []
        if not signs or not all(self._wants_bits(place) and not self._wants_real(place) for place in signs):
            return [], set()
        gain, shift = self.network.arrays(self.network.operations[affine[0]])["gain_shift"]
        numbers["GAIN5"] = self.plan.vector(gain, self.network.shapes[value])
        numbers["SHIFT5"] = self.plan.vector(shift, self.network.shapes[value])
        return signs, set(affine)

    def _sign(self, place: int, operation: Operation) -> None:
        numbers = {"IN": self._as_real(operation.inputs[0])}
        if self._wants_bits(place) and place + 1 not in self.bits:
            self.bits[place + 1] = numbers["OUT_BITS"] = self.plan.value(BITS, self.network.shapes[place + 1])
        if self._wants_real(place):
            self.real[place + 1] = numbers["OUT"] = self.plan.value(REAL, self.network.shapes[place + 1])
            numbers["SIGN_REAL"] = 1
        self.plan.step("CHAIN", **numbers)

    def _wants_bits(self, place: int) -> bool:
        """Whether an operation is a sign whose bits something reads."""
        return self._is_sign(place + 1) and any(map(self._by_bits, self.readers[place + 1]))

    def _wants_real(self, place: int) -> bool:
        """Whether a sign is read as reals, or by nothing."""
        return not self.readers[place + 1] or not all(map(self._by_bits, self.readers[place + 1]))

    def _as_real(self, value: int) -> int:
        if value == 0 and 0 not in self.real:
            self.real[0] = self.plan.value(REAL, self.network.input_shape)
            self.plan.step("LOAD", IN=self.image, OUT=self.real[0])
        return self.real[value]

    def _move(self, place: int, operation: Operation) -> None:
        """An operation that only moves numbers."""
        settings, shape = operation.settings, self.network.shapes[place + 1]
        sources = [(self._as_real(value), self.network.shapes[value]) for value in operation.inputs]
        source, before = sources[0]
        if operation.kind in ("flatten", "reshape"):
            self.real[place + 1] = self._reshape(source, before, shape)
            return
        target = self.real[place + 1] = self.plan.value(REAL, shape)
        apart, after = strides(before), strides(shape)
        if operation.kind == "concat":
            start = 0
            for source, part in sources:
                self.plan.copy(source, target, part, (strides(part), after), (0, start * after[0]))
                start += part[0]
        elif operation.kind == "permute":
            self.plan.copy(source, target, shape, (tuple(apart[axis] for axis in settings["axes"]), after))
        elif operation.kind == "slice":
            steps = tuple(step * far for step, far in zip(settings["step"], apart, strict=True))
            start = sum(start * far for start, far in zip(settings["start"], apart, strict=True))
            self.plan.copy(source, target, shape, (steps, after), (start, 0))
        elif operation.kind == "pad":
            start = sum(start * far for start, far in zip(settings["before"], after, strict=True))
            self.plan.step("FILL", OUT=target, WEIGHT=self.plan.tensor(np.array([settings["value"]], np.float32)))
            self.plan.copy(source, target, before, (apart, after), (0, start))
        else:
            groups, part = settings["groups"], before[0] // settings["groups"]
            split = (groups, part, *before[1:])
            self.plan.copy(source, target, split, ((part, 1, *apart[1:]), (1, groups, *after[1:])))

    def _reshape(self, source: int, before: tuple[int, ...], shape: tuple[int, ...]) -> int:
        """The same numbers in order under another shape: through a flat value where images are involved."""
        if as_image(before) == as_image(shape) and (as_image(shape)[1:] == (1, 1) or before == shape):
            return source
        flat = self.plan.value(REAL, (math.prod(shape),))
        self.plan.copy(source, flat, before, (strides(before), in_order(before)))
        if len(shape) != 3 or shape[1:] == (1, 1):
            return flat
        target = self.plan.value(REAL, shape)
        self.plan.copy(flat, target, shape, (in_order(shape), strides(shape)))
        return target


def lower(network: Network, fields: Mapping[str, int], kinds: Mapping[str, int]) -> tuple[PlanTables, int]:
    """The tables of a network's native plan, and which of its values is the answer."""
    plan = PlanTables(fields, kinds)
    return plan, Lowering(network, plan).run()


def _window(settings: Mapping[str, Any]) -> dict[str, int]:
    """The fields of a window; those an operation does not have are left to the default."""
    numbers = {}
    for name in ("kernel", "stride", "dilation"):
        if name in settings:
            numbers[f"{name.upper()}_H"], numbers[f"{name.upper()}_W"] = settings[name]
    if "padding" in settings:
        for side, number in zip(("TOP", "BOTTOM", "LEFT", "RIGHT"), settings["padding"], strict=True):
            numbers[f"PAD_{side}"] = number
    return numbers | {"GROUPS": settings.get("groups", 1), "COUNT_PADDING": int(settings.get("count_padding", True))}
