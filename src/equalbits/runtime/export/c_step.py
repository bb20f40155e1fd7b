"""C code of one step of a native plan: ``value_N(y, x, f)`` makes one number, ``step_N()`` all of them.

Floats are (row, column, channel), bits are words of 32 channels (row, column, word). Every size is a literal, so a
compiler unrolls what is small.
"""

from collections.abc import Iterator

import numpy as np

from equalbits.runtime.export.c_program import CProgram, literal, word_count
from equalbits.runtime.op_specs import Array
from equalbits.runtime.plan_tables import field_default


class CStep:
    """Step ``number`` of a program; ``step["IN"]`` is one of its fields."""

    def __init__(self, program: CProgram, number: int) -> None:
        self.program, self.number = program, number
        self.fields = program.plan.steps[number][1]

    def __getitem__(self, name: str) -> int:
        return self.fields.get(name, field_default(name))

    @property
    def made(self) -> tuple[int, ...]:
        """Channels, rows and columns of the value that the step makes."""
        return self.program.shape(self.fields.get("OUT", self["OUT_BITS"]))

    @property
    def layer(self) -> str:
        """Kind and name of the first operation of the step."""
        network, place = self.program.network, self.program.plan.places[self.number]
        return f"{network.operations[place].kind} {network.layer_name(place)}".replace("*/", "* /")

    def describe_sizes(self) -> str:
        """Return the shapes that the step reads and writes."""
        named = (("IN", ""), ("OUT", " to floats "), ("OUT_BITS", " to signs "))
        return "".join(word + "x".join(map(str, self.shape(name))) for name, word in named if self[name] >= 0)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return channels, rows and columns of the value in a field."""
        return self.program.shape(self[name])

    def pointer(self, name: str) -> str:
        """Return the C expression that points to the value in a field."""
        return self.program.name(self[name])

    def pixel(self, name: str, row: str, column: str, channel: str) -> str:
        """Return the C expression of one number of the value in a field."""
        return self.program.pixel(self[name], row, column, channel)

    def tensor(self, name: str) -> Array:
        """Return the tensor of the plan in a field."""
        return self.program.plan.tensors[self[name]]

    def constant(self, name: str, array: Array) -> str:
        """Add a constant array of this step; return its name."""
        return self.program.constant(f"{name}_{self.number}", array)

    def entry(self, name: str, index: str = "f") -> str:
        """Return the C expression of one entry of the vector in a field: a literal where all are equal."""
        flat = self.tensor(name).reshape(-1)
        same = flat.size > 0 and (flat.view(np.uint32) == flat.view(np.uint32)[0]).all()
        return (
            literal(flat[0]) if same else f"{self.program.vector(self[name], f'{name.lower()}_{self.number}')}[{index}]"
        )

    def window(self, *, pooling: bool = False) -> tuple[tuple[int, ...], ...]:
        """Return kernel, stride, dilation and padding before of the window, or of the pooling fused into the step."""
        size, stride, before = ("POOL_", "POOL_STRIDE_", "POOL_") if pooling else ("KERNEL_", "STRIDE_", "PAD_")
        dilation = (1, 1) if pooling else (self["DILATION_H"], self["DILATION_W"])
        kernel, steps = ((self[f"{name}H"], self[f"{name}W"]) for name in (size, stride))
        return kernel, steps, dilation, (self[f"{before}TOP"], self[f"{before}LEFT"])

    def add(self, body: str) -> None:
        """Add the function of the step."""
        self.program.functions.append(f"static void step_{self.number}(void) {{\n{body}}}\n\n")


def _chain(step: CStep) -> Iterator[str]:
    """Yield the statements of a step's chain up to its pooling, on the number ``v``."""

    def affine(which: str) -> Iterator[str]:
        if step[f"GAIN{which}"] >= 0:
            yield f"v = v * {step.entry(f'GAIN{which}')};"
            yield f"v = v + {step.entry(f'SHIFT{which}')};"

    def slope(which: str) -> Iterator[str]:
        if step[f"SLOPE{which}"] >= 0:
            yield f"v = v >= 0.0f ? v : v * {step.entry(f'SLOPE{which}')};"
        elif step[f"RELU{which}"] > 0:
            yield "v = v < 0.0f ? 0.0f : v;"

    if step["SCALE"] >= 0:
        yield f"v = v * {step.entry('SCALE')};"
    if step["BIAS"] >= 0:
        yield f"v = v + {step.entry('BIAS')};"
    yield from (*affine("1"), *slope("1"), *affine("2"))
    if step["RESIDUAL"] >= 0:
        yield f"v = v + {step.pixel('RESIDUAL', 'y', 'x', 'f')};"
    yield from (*affine("3"), *slope("2"), *affine("4"))
    if step["CLAMP"] >= 0:
        low, high = step.tensor("CLAMP")
        for limit, sign in ((low, "<"), (high, ">")):
            if np.isfinite(limit):
                yield f"v = v {sign} {literal(limit)} ? {literal(limit)} : v;"
    if step["ROUND_REAL"]:
        gain, low, high = map(literal, step.tensor("QUANT"))
        yield f"v = v * {gain};"
        yield f"v = v >= {low} ? v : {low};"
        yield f"v = v <= {high} ? v : {high};"
        yield "v = v + 12582912.0f; /* 1.5 · 2^23: rounds to a whole number, halves to even */"
        yield "v = v - 12582912.0f;"


def add_pixels(step: CStep, sum_lines: str, prologue: str = "") -> None:
    """Add the functions of a step that makes one number at a time; ``sum_lines`` declare and compute ``float v``."""
    (channels, rows, columns), number = step.made, step.number
    chain = "".join(f"    {line}\n" for line in _chain(step))
    unused = "".join(f"    (void){name};\n" for name in "yx" if f"{name} *" not in sum_lines + chain)
    function = f"static float value_{number}(int y, int x, int f) {{\n{unused}{sum_lines}{chain}    return v;\n}}\n"
    make = f"value_{number}"
    if step["POOL_H"]:
        function, make = function + _pooled(step), f"pooled_{number}"
    store = ""
    if "OUT" in step.fields:
        kept = "v >= 0.0f ? 1.0f : -1.0f" if step["SIGN_REAL"] else "v"
        store = f"{step.pixel('OUT', 'y', 'x', 'f')} = {kept};"
    loops = f"    for (int y = 0; y < {rows}; y++)\n        for (int x = 0; x < {columns}; x++)\n"
    if "OUT_BITS" in step.fields:
        words = word_count(channels)
        last = ""
        if step["GAIN5"] >= 0:
            last = f"v = v * {step.entry('GAIN5')};\n                    "
            last += f"v = v + {step.entry('SHIFT5')};\n                    "
        body = f"""\
            for (int w = 0; w < {words}; w++) {{
                uint32_t word = 0;
                for (int f = 32 * w; f < 32 * w + 32 && f < {channels}; f++) {{
                    float v = {make}(y, x, f);
                    {store}
                    {last}word |= (uint32_t)(v >= 0.0f) << (f - 32 * w);
                }}
                {step.pointer("OUT_BITS")}[(y * {columns} + x) * {words} + w] = word;
            }}
"""
    else:
        body = f"""\
            for (int f = 0; f < {channels}; f++) {{
                const float v = {make}(y, x, f);
                {store}
            }}
"""
    text = f"{function}static void step_{number}(void) {{\n{prologue}{loops}{body}}}\n\n"
    step.program.functions.append("\n".join(line for line in text.split("\n") if line == "" or line.strip()))


def _pooled(step: CStep) -> str:
    """Return the function that takes the largest number of a window of a convolution."""
    kernel, stride, dilation, before = step.window()
    after, sizes = (step["PAD_BOTTOM"], step["PAD_RIGHT"]), step.shape("IN")[1:]
    reach = [sizes[i] + before[i] + after[i] - dilation[i] * (kernel[i] - 1) for i in (0, 1)]
    unpooled = tuple((reach[i] - 1) // stride[i] + 1 for i in (0, 1))
    return f"""\
static float pooled_{step.number}(int y, int x, int f) {{
    float best = -INFINITY;
{window_loops(step.window(pooling=True), unpooled)}
            const float v = value_{step.number}(r, c, f);
            if (v > best || isnan(v)) best = v;
        }}
    }}
    return best;
}}
"""


def window_loops(window: tuple[tuple[int, ...], ...], sizes: tuple[int, ...]) -> str:
    """Return the loops over row ``r`` and column ``c`` of a window at (y, x), both inside the image."""
    kernel, stride, dilation, before = window
    return f"""\
    for (int i = 0; i < {kernel[0]}; i++) {{
        const int r = y * {stride[0]} - {before[0]} + i * {dilation[0]};
        if (r < 0 || r >= {sizes[0]}) continue;
        for (int j = 0; j < {kernel[1]}; j++) {{
            const int c = x * {stride[1]} - {before[1]} + j * {dilation[1]};
            if (c < 0 || c >= {sizes[1]}) continue;"""
