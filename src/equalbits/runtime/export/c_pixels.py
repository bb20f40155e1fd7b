"""C code shared by the steps that make one number at a time: ``value_N(y, x, f)`` makes one, ``step_N()`` all of them.

Floats are (row, column, channel), bits are words of 32 channels (row, column, word). Every size is a literal, so a
compiler unrolls what is small.
"""

from collections.abc import Iterator

import numpy as np

from equalbits.runtime.export.c_program import CProgram, literal, word_count


def _chain(program: CProgram, number: int) -> Iterator[str]:
    """Yield the statements of a step's chain up to its pooling, on the number ``v``."""

    def has(name: str) -> bool:
        return program.field(number, name) >= 0

    def entry(name: str) -> str:
        return program.entry(number, name)

    def affine(which: str) -> Iterator[str]:
        if has(f"GAIN{which}"):
            yield f"v = v * {entry(f'GAIN{which}')};"
            yield f"v = v + {entry(f'SHIFT{which}')};"

    def slope(which: str) -> Iterator[str]:
        if has(f"SLOPE{which}"):
            yield f"v = v >= 0.0f ? v : v * {entry(f'SLOPE{which}')};"
        elif program.field(number, f"RELU{which}") > 0:
            yield "v = v < 0.0f ? 0.0f : v;"

    if has("SCALE"):
        yield f"v = v * {entry('SCALE')};"
    if has("BIAS"):
        yield f"v = v + {entry('BIAS')};"
    yield from (*affine("1"), *slope("1"), *affine("2"))
    if has("RESIDUAL"):
        yield f"v = v + {program.pixel(program.field(number, 'RESIDUAL'), 'y', 'x', 'f')};"
    yield from (*affine("3"), *slope("2"), *affine("4"))
    if has("CLAMP"):
        low, high = program.plan.tensors[program.field(number, "CLAMP")]
        for limit, sign in ((low, "<"), (high, ">")):
            if np.isfinite(limit):
                yield f"v = v {sign} {literal(limit)} ? {literal(limit)} : v;"
    if program.field(number, "ROUND_REAL"):
        gain, low, high = map(literal, program.plan.tensors[program.field(number, "QUANT")])
        yield f"v = v * {gain};"
        yield f"v = v >= {low} ? v : {low};"
        yield f"v = v <= {high} ? v : {high};"
        yield "v = v + 12582912.0f; /* 1.5 · 2^23: rounds to a whole number, halves to even */"
        yield "v = v - 12582912.0f;"


def add_pixels(program: CProgram, number: int, sum_lines: str, prologue: str = "") -> None:
    """Add the functions of a step that makes one number at a time; ``sum_lines`` declare and compute ``float v``."""
    fields = program.plan.steps[number][1]
    outputs = [fields[name] for name in ("OUT", "OUT_BITS") if name in fields]
    channels, rows, columns = program.shape(outputs[0])
    chain = "".join(f"    {line}\n" for line in _chain(program, number))
    unused = "".join(f"    (void){name};\n" for name in "yx" if f"{name} *" not in sum_lines + chain)
    function = f"static float value_{number}(int y, int x, int f) {{\n{unused}{sum_lines}{chain}    return v;\n}}\n"
    make = f"value_{number}"
    if fields.get("POOL_H"):
        function, make = function + _pooled(program, number), f"pooled_{number}"
    store = ""
    if "OUT" in fields:
        kept = "v >= 0.0f ? 1.0f : -1.0f" if fields.get("SIGN_REAL") else "v"
        store = f"{program.pixel(fields['OUT'], 'y', 'x', 'f')} = {kept};"
    loops = f"    for (int y = 0; y < {rows}; y++)\n        for (int x = 0; x < {columns}; x++)\n"
    if "OUT_BITS" in fields:
        words = word_count(channels)
        last = ""
        if fields.get("GAIN5", -1) >= 0:
            last = f"v = v * {program.entry(number, 'GAIN5')};\n                    "
            last += f"v = v + {program.entry(number, 'SHIFT5')};\n                    "
        body = f"""\
            for (int w = 0; w < {words}; w++) {{
                uint32_t word = 0;
                for (int f = 32 * w; f < 32 * w + 32 && f < {channels}; f++) {{
                    float v = {make}(y, x, f);
                    {store}
                    {last}word |= (uint32_t)(v >= 0.0f) << (f - 32 * w);
                }}
                {program.name(fields["OUT_BITS"])}[(y * {columns} + x) * {words} + w] = word;
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
    program.functions.append("\n".join(line for line in text.split("\n") if line == "" or line.strip()))


def _pooled(program: CProgram, number: int) -> str:
    """Return the function that takes the largest number of a window of a convolution."""
    shape = _conv_size(program, number)
    return f"""\
static float pooled_{number}(int y, int x, int f) {{
    float best = -INFINITY;
{window_loops(program.window(number, pooling=True), shape)}
            const float v = value_{number}(r, c, f);
            if (v > best || isnan(v)) best = v;
        }}
    }}
    return best;
}}
"""


def _conv_size(program: CProgram, number: int) -> tuple[int, ...]:
    """Return the rows and columns that a convolution makes before it is pooled."""
    kernel, stride, dilation, before = program.window(number)
    after = [program.field(number, name) for name in ("PAD_BOTTOM", "PAD_RIGHT")]
    sizes = program.shape(program.field(number, "IN"))[1:]
    return tuple((sizes[i] + before[i] + after[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in (0, 1))


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
