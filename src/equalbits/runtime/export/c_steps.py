"""C code of the other steps of a native plan, and the table of all that have one."""

import math
from collections.abc import Callable, Mapping

from equalbits.runtime.export.c_conv import conv_bits, conv_real, conv_signed, linear_bytes
from equalbits.runtime.export.c_step import CStep, add_pixels, window_loops


def _each_number(step: CStep) -> None:
    """Add a step that reads each number, of the image or of a value, and applies the chain."""
    add_pixels(step, f"    float v = {step.pixel('IN', 'y', 'x', 'f')};\n")


def _max_pool(step: CStep) -> None:
    lines = f"""\
    float v = -INFINITY;
{window_loops(step.window(), step.shape("IN")[1:])}
            const float in = {step.pixel("IN", "r", "c", "f")};
            if (in > v || isnan(in)) v = in;
        }}
    }}
"""
    add_pixels(step, lines)


def _avg_pool(step: CStep) -> None:
    window = step.window()
    counted = step["COUNT_PADDING"]
    divisor = f"{window[0][0] * window[0][1]}.0f" if counted else "(float)count"
    lines = f"""\
    float v = 0.0f;
{"" if counted else "    int count = 0;"}
{window_loops(window, step.shape("IN")[1:])}
            v += {step.pixel("IN", "r", "c", "f")};
{"" if counted else "            count++;"}
        }}
    }}
    v = v / {divisor};
"""
    add_pixels(step, lines)


def _adaptive(step: CStep) -> None:
    """Add windows that begin at ⌊i · size / parts⌋ and end at ⌈(i + 1) · size / parts⌉."""
    (_, rows, columns), (_, down, along) = step.shape("IN"), step.made
    lines = f"""\
    const int top = y * {rows} / {down}, bottom = ((y + 1) * {rows} + {down - 1}) / {down};
    const int left = x * {columns} / {along}, right = ((x + 1) * {columns} + {along - 1}) / {along};
    float v = 0.0f;
    for (int r = top; r < bottom; r++)
        for (int c = left; c < right; c++) v += {step.pixel("IN", "r", "c", "f")};
    v = v / (float)((bottom - top) * (right - left));
"""
    add_pixels(step, lines)


def _fill(step: CStep) -> None:
    count, target, value = math.prod(step.made), step.pointer("OUT"), step.entry("WEIGHT", "0")
    step.add(f"    for (int i = 0; i < {count}; i++) {target}[i] = {value};\n")


def _copy(step: CStep) -> None:
    to = f"{step.pointer('OUT')}[{step['TO_OFFSET']} + {_strided(step, 'TO')}]"
    step.add(f"{_axes(step)}{to} = {step.pointer('IN')}[{step['FROM_OFFSET']} + {_strided(step, 'FROM')}];\n")


def _mul(step: CStep) -> None:
    place = "0"
    for axis in range(6):
        size = step[f"SIZE{axis}"]
        place = f"({place}) * {size} + i{axis}" if size > 1 else place
    first, second = f"{step.pointer('IN')}[{_strided(step, 'FROM')}]", f"{step.pointer('IN2')}[{_strided(step, 'TO')}]"
    step.add(f"{_axes(step)}{step.pointer('OUT')}[{place}] = {first} * {second};\n")


def _axes(step: CStep) -> str:
    """Return the loops over the axes of a step with strides, those of size 1 left out."""
    sizes = [step[f"SIZE{axis}"] for axis in range(6)]
    loops = (f"    for (int i{axis} = 0; i{axis} < {size}; i{axis}++)\n" for axis, size in enumerate(sizes) if size > 1)
    return "".join(loops) + "        "


def _strided(step: CStep, side: str) -> str:
    """Return the C expression of a number's place, by the strides of one side."""
    axes = [axis for axis in range(6) if step[f"SIZE{axis}"] > 1 and step[f"{side}{axis}"]]
    return " + ".join(f"i{axis} * {step[f'{side}{axis}']}" for axis in axes) or "0"


#: The C form of each kind of step.
C_STEPS: Mapping[str, Callable[[CStep], None]] = {
    "LOAD": _each_number,
    "CONV_BITS": conv_bits,
    "CONV_SIGNED": conv_signed,
    "CONV_REAL": conv_real,
    "LINEAR_BYTES": linear_bytes,
    "MAX_POOL": _max_pool,
    "AVG_POOL": _avg_pool,
    "ADAPTIVE": _adaptive,
    "CHAIN": _each_number,
    "FILL": _fill,
    "COPY": _copy,
    "MUL": _mul,
}
