"""State of a C export: constants, functions, and the place of each value in static memory."""

import math

import numpy as np
from numpy.typing import DTypeLike

from equalbits.runtime.lower import Lowering
from equalbits.runtime.network import Network
from equalbits.runtime.op_specs import Array
from equalbits.runtime.plan_tables import BITS, IMAGE, REAL, PlanTables

_C_TYPES = {"f": "float", "i": "int8_t", "u": "uint32_t"}

#: Most bytes of a plan whose constants are written as text.
MAX_BYTES = 1 << 27


class _Plan(PlanTables):
    """A plan whose int8 weights stay int8."""

    def weight(self, array: Array, dtype: DTypeLike) -> int:
        return super().weight(array, np.int8 if array.dtype == np.int8 else dtype)


class CProgram:
    """The C code of a network under construction: constants and functions, and the place of each value in memory."""

    def __init__(self, network: Network) -> None:
        self.plan = _Plan({}, {}, MAX_BYTES)
        try:
            self.answer = Lowering(network, self.plan, byte_weights=()).run()
        except OverflowError:
            raise ValueError(f"the constants take more than {MAX_BYTES >> 20} MiB, which is too large for C") from None
        self.network = network
        self.outputs = math.prod(network.shapes[-1])
        self.constants: list[str] = []
        self.functions: list[str] = []
        self.flash_bytes = 0
        self._names: dict[int, str] = {}
        self._places, self._floats, self._words = _place_values(self.plan, self.answer)
        self._view_rows()
        rounded = [self.shape(fields["IN"])[0] for kind, fields in self.plan.steps if kind == "LINEAR_BYTES"]
        self._rounded = max(rounded, default=0)
        self.ram_bytes = 4 * (self._floats + self._words) + self._rounded + 4  # and the pointer to the image
        self.pixel_type = "float" if network.mean is None else "uint8_t"
        if network.mean is not None:
            self.constant("normal", network.byte_table())

    def _view_rows(self) -> None:
        """Give a layer that reads and makes a list as rows values of that shape, at the same places."""
        for kind, fields in self.plan.steps:
            rows = fields.get("SIZE0", 1) if kind in ("CONV_REAL", "CONV_SIGNED", "LINEAR_BYTES") else 1
            if kind == "LINEAR_BYTES" and rows > 1:
                raise ValueError("the C export rounds one row: pack with linear_inputs='float32'")
            for name in ("IN", "OUT", "RESIDUAL") if rows > 1 else ():
                if name in fields:
                    viewed = self.plan.value(REAL, (self.shape(fields[name])[0] // rows, 1, rows))
                    self._places[viewed] = self._places[fields[name]]
                    fields[name] = viewed

    def memory(self) -> str:
        """Return the declarations of the static memory."""
        lines = [f"static const {self.pixel_type} *image;"]
        sizes = (
            ("float", "floats", self._floats),
            ("uint32_t", "words", self._words),
            ("int8_t", "bytes", self._rounded),
        )
        return "\n".join(lines + [f"static {kind} {name}[{size}];" for kind, name, size in sizes if size]) + "\n"

    def largest_step(self) -> int:
        """Return the step that reads and writes most, which sets the RAM."""
        names = ("IN", "IN2", "RESIDUAL", "OUT", "OUT_BITS")
        used = [
            {fields[name] for name in names if fields.get(name, -1) in self._places} for _, fields in self.plan.steps
        ]
        return int(np.argmax([sum(_size(self.plan, value) for value in values) for values in used]))

    def shape(self, value: int) -> tuple[int, ...]:
        """Return channels, rows and columns of a value."""
        return self.plan.values[value][1:]

    def is_real(self, value: int) -> bool:
        """Return whether a value is floats in static memory, not the image and not bits."""
        return self.plan.values[value][0] == REAL

    def name(self, value: int) -> str:
        """Return the C expression that points to a value."""
        array = "words" if self.plan.values[value][0] == BITS else "floats"
        return f"({array} + {self._places[value]})" if self._places[value] else array

    def pixel(self, value: int, row: str, column: str, channel: str) -> str:
        """Return the C expression of one number of a value."""
        channels, rows, columns = self.shape(value)
        if self.is_real(value):
            return f"{self.name(value)}[({row} * {columns} + {column}) * {channels} + {channel}]"
        pixel = f"image[({channel} * {rows} + {row}) * {columns} + {column}]"
        return pixel if self.pixel_type == "float" else f"normal[{channel} * 256 + {pixel}]"

    def constant(self, name: str, array: Array) -> str:
        """Add a constant array; return its name."""
        flat = array.reshape(-1)
        kind = _C_TYPES[flat.dtype.kind]
        rows = (", ".join(map(literal, flat[start : start + 10])) for start in range(0, flat.size, 10))
        self.constants.append(f"static const {kind} {name}[{flat.size}] = {{\n    " + ",\n    ".join(rows) + "};\n")
        self.flash_bytes += flat.nbytes
        return name

    def vector(self, tensor: int, name: str) -> str:
        """Return the name of a tensor of the plan, added once."""
        if tensor not in self._names:
            self._names[tensor] = self.constant(name, self.plan.tensors[tensor])
        return self._names[tensor]


def _place_values(plan: PlanTables, answer: int) -> tuple[dict[int, int], int, int]:
    """Return the offset of each value, and the floats and words they take: first fit among those alive together.

    An elementwise step writes over the value it reads last, and so does one that adds a value number by number, unless
    windows of that value are read too.
    """
    born, dies = dict[int, int](), {answer: len(plan.steps)}
    for number, (_, fields) in enumerate(plan.steps):
        for name in ("IN", "IN2", "RESIDUAL", "OUT", "OUT_BITS"):
            if (value := fields.get(name, -1)) >= 0 and plan.values[value][0] != IMAGE:
                born.setdefault(value, number)
                dies[value] = max(dies.get(value, 0), number)
    places, tops = dict[int, int](), {REAL: 0, BITS: 0}
    for value in sorted(born, key=lambda value: (born[value], value)):
        kind, size = plan.values[value][0], _size(plan, value)
        step, fields = plan.steps[born[value]]
        over = fields.get("IN" if step == "CHAIN" else "RESIDUAL", -1)
        windowed = step != "CHAIN" and over == fields.get("IN")
        reusable = not windowed and over in places and dies[over] == born[value] and value == fields.get("OUT")
        if reusable and plan.values[over] == plan.values[value] and not fields.get("POOL_H"):
            places[value] = places[over]
            continue
        alive = [other for other in places if plan.values[other][0] == kind and dies[other] >= born[value]]
        taken = sorted((places[other], places[other] + _size(plan, other)) for other in alive)
        place = 0
        for start, end in taken:
            if place + size <= start:
                break
            place = max(place, end)
        places[value], tops[kind] = place, max(tops[kind], place + size)
    return places, tops[REAL], tops[BITS]


def _size(plan: PlanTables, value: int) -> int:
    """Return the floats or words of a value."""
    kind, channels, rows, columns = plan.values[value]
    return (word_count(channels) if kind == BITS else channels) * rows * columns


def word_count(channels: int) -> int:
    """Return the words that hold one bit of each channel."""
    return -(-channels // 32)


def literal(number: np.generic) -> str:
    """Return a C constant of exactly this number."""
    if number.dtype.kind == "f":
        text = f"{number:.9g}"
        return f"{text}f" if "." in text or "e" in text else f"{text}.0f"
    return f"0x{number:08x}u" if number.dtype.kind == "u" else str(number)
