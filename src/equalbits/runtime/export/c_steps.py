"""C code of the other steps of a native plan, and the table of all that have one."""

from collections.abc import Callable, Mapping

from equalbits.runtime.export.c_conv import conv_bits, conv_real, conv_signed, linear_bytes
from equalbits.runtime.export.c_pixels import add_pixels, window_loops
from equalbits.runtime.export.c_program import CProgram


def _each_number(program: CProgram, number: int) -> None:
    """Add a step that reads each number, of the image or of a value, and applies the chain."""
    read = program.pixel(program.field(number, "IN"), "y", "x", "f")
    add_pixels(program, number, f"    float v = {read};\n")


def _max_pool(program: CProgram, number: int) -> None:
    read = program.field(number, "IN")
    lines = f"""\
    float v = -INFINITY;
{window_loops(program.window(number), program.shape(read)[1:])}
            const float in = {program.pixel(read, "r", "c", "f")};
            if (in > v || isnan(in)) v = in;
        }}
    }}
"""
    add_pixels(program, number, lines)


def _avg_pool(program: CProgram, number: int) -> None:
    read, window = program.field(number, "IN"), program.window(number)
    counted = program.field(number, "COUNT_PADDING")
    divisor = f"{window[0][0] * window[0][1]}.0f" if counted else "(float)count"
    lines = f"""\
    float v = 0.0f;
{"" if counted else "    int count = 0;"}
{window_loops(window, program.shape(read)[1:])}
            v += {program.pixel(read, "r", "c", "f")};
{"" if counted else "            count++;"}
        }}
    }}
    v = v / {divisor};
"""
    add_pixels(program, number, lines)


def _adaptive(program: CProgram, number: int) -> None:
    """Add windows that begin at ⌊i · size / parts⌋ and end at ⌈(i + 1) · size / parts⌉."""
    fields = program.plan.steps[number][1]
    read = fields["IN"]
    (_, rows, columns), (_, down, along) = (
        program.shape(read),
        program.shape(fields.get("OUT", fields.get("OUT_BITS", 0))),
    )
    lines = f"""\
    const int top = y * {rows} / {down}, bottom = ((y + 1) * {rows} + {down - 1}) / {down};
    const int left = x * {columns} / {along}, right = ((x + 1) * {columns} + {along - 1}) / {along};
    float v = 0.0f;
    for (int r = top; r < bottom; r++)
        for (int c = left; c < right; c++) v += {program.pixel(read, "r", "c", "f")};
    v = v / (float)((bottom - top) * (right - left));
"""
    add_pixels(program, number, lines)


def _fill(program: CProgram, number: int) -> None:
    target = program.field(number, "OUT")
    channels, rows, columns = program.shape(target)
    value = program.entry(number, "WEIGHT", "0")
    _add_step(
        program,
        number,
        f"    for (int i = 0; i < {channels * rows * columns}; i++) {program.name(target)}[i] = {value};\n",
    )


def _copy(program: CProgram, number: int) -> None:
    source, target = (program.name(program.field(number, name)) for name in ("IN", "OUT"))
    start, end = (program.field(number, f"{name}_OFFSET") for name in ("FROM", "TO"))
    there, here = (_strided(program, number, side) for side in ("TO", "FROM"))
    text = f"{target}[{end} + {there}] = {source}[{start} + {here}];"
    _add_step(program, number, f"{_axes(program, number)}{text}\n")


def _mul(program: CProgram, number: int) -> None:
    first, second, target = (program.name(program.field(number, name)) for name in ("IN", "IN2", "OUT"))
    sizes = [program.field(number, f"SIZE{axis}") for axis in range(6)]
    place = "0"
    for axis, size in enumerate(sizes):
        place = f"({place}) * {size} + i{axis}" if size > 1 else place
    one, other = (_strided(program, number, side) for side in ("FROM", "TO"))
    text = f"{target}[{place}] = {first}[{one}] * {second}[{other}];"
    _add_step(program, number, f"{_axes(program, number)}{text}\n")


def _axes(program: CProgram, number: int) -> str:
    """Return the loops over the axes of a step with strides, those of size 1 left out."""
    sizes = [program.field(number, f"SIZE{axis}") for axis in range(6)]
    loops = (f"    for (int i{axis} = 0; i{axis} < {size}; i{axis}++)\n" for axis, size in enumerate(sizes) if size > 1)
    return "".join(loops) + "        "


def _strided(program: CProgram, number: int, side: str) -> str:
    """Return the C expression of a number's place, by the strides of one side."""
    sizes = [program.field(number, f"SIZE{axis}") for axis in range(6)]
    strides = [program.field(number, f"{side}{axis}") for axis in range(6)]
    parts = (f"i{axis} * {strides[axis]}" for axis in range(6) if sizes[axis] > 1 and strides[axis])
    return " + ".join(parts) or "0"


def _add_step(program: CProgram, number: int, body: str) -> None:
    program.functions.append(f"static void step_{number}(void) {{\n{body}}}\n\n")


#: The C form of each kind of step.
C_STEPS: Mapping[str, Callable[[CProgram, int], None]] = {
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
