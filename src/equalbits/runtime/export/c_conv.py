"""C code of convolutions and linear layers, which are convolutions of one pixel."""

import numpy as np
from numpy.typing import NDArray

from equalbits.runtime import bits
from equalbits.runtime.export.c_pixels import add_pixels, window_loops
from equalbits.runtime.export.c_program import CProgram, word_count


def _symbols(program: CProgram, number: int) -> tuple[NDArray[np.int8], int, int]:
    """Return binary weights as (filter, kernel row, kernel column, channel of the group), filters and channels."""
    fields, (height, width) = program.plan.steps[number][1], program.window(number)[0]
    sign = program.plan.tensors[fields["WEIGHT"]]
    kept = program.plan.tensors[fields["KEPT"]] if "KEPT" in fields else None
    part = program.shape(fields["IN"])[0] // program.field(number, "GROUPS")
    symbols = bits.unpack_symbols(sign, kept, part * height * width)
    return symbols.reshape(len(sign), part, height, width).transpose(0, 2, 3, 1), len(sign), part


def _pack_words(ones: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Pack the last axis into words of 32 bits, the lowest bit first."""
    spare = -ones.shape[-1] % 32
    padded = np.pad(ones, [(0, 0)] * (ones.ndim - 1) + [(0, spare)])
    return np.packbits(padded, axis=-1, bitorder="little").view("<u4").astype(np.uint32)


def conv_bits(program: CProgram, number: int) -> None:
    """XOR and popcount of words; padding is skipped. A mask drops pruned connections, and bits of other groups."""
    symbols, filters, part = _symbols(program, number)
    read, groups = program.field(number, "IN"), program.field(number, "GROUPS")
    channels, rows, columns = program.shape(read)
    starts = np.arange(groups) * part
    span = int((starts % 32 + part - 1).max()) // 32 + 1
    aligned = np.zeros((*symbols.shape[:3], 32 * span), np.int8)
    for index in range(filters):
        first = int(starts[index * groups // filters]) % 32
        aligned[index, ..., first : first + part] = symbols[index]
    weight = program.constant(f"bits_{number}", _pack_words(aligned == 1))
    (height, width), *_ = window = program.window(number)
    per_filter = height * width * span
    masked = groups > 1 or not symbols.all()
    mask = program.constant(f"kept_{number}", _pack_words(aligned != 0)) if masked else ""
    at = f"(r * {columns} + c) * {word_count(channels)}"
    if groups > 1:
        at += f" + f / {filters // groups} * {part} / 32"
    place = f"(size_t)f * {per_filter} + (i * {width} + j) * {span}"
    kept = f"            const uint32_t *m = {mask} + {place};\n" if masked else ""
    add = "popcount(m[k]) - 2 * popcount((in[k] ^ w[k]) & m[k])" if masked else "- 2 * popcount(in[k] ^ w[k])"
    after = "" if masked else f"            sum += {part};\n"
    add_pixels(
        program,
        number,
        f"""\
    int sum = 0; /* twice the equal bits, minus all: what XNOR and popcount give */
{window_loops(window, (rows, columns))}
            const uint32_t *in = {program.name(read)} + {at};
            const uint32_t *w = {weight} + {place};
{kept}            for (int k = 0; k < {span}; k++) sum += {add};
{after}        }}
    }}
    float v = (float)sum;
""",
    )


def conv_signed(program: CProgram, number: int) -> None:
    """Floats by binary weights: each number is added or subtracted; pruned ones are left out."""
    symbols, filters, part = _symbols(program, number)
    flat = symbols.reshape(filters, -1)
    words = word_count(flat.shape[1])
    weight = program.constant(f"bits_{number}", _pack_words(flat == 1))
    test = f"{weight}[(size_t)f * {words} + (at >> 5)] >> (at & 31) & 1u"
    if not symbols.all():
        kept = program.constant(f"kept_{number}", _pack_words(flat != 0))
        keep = f"if (!({kept}[(size_t)f * {words} + (at >> 5)] >> (at & 31) & 1u)) continue;\n                "
        _convolve(program, number, part, f"{keep}sum += {test} ? in : -in;")
    elif program.is_real(program.field(number, "IN")) and (part % 32 == 0 or 32 % part == 0):
        _add_whole_words(program, number, part, f"{weight}[(size_t)f * {words} + (at >> 5)]")
    else:
        _convolve(program, number, part, f"sum += {test} ? in : -in;")


def _add_whole_words(program: CProgram, number: int, part: int, word: str) -> None:
    """Add a convolution with binary weights whose channels fill words, or share one: each word is read once."""
    window, read = program.window(number), program.field(number, "IN")
    step = min(part, 32)
    add_pixels(
        program,
        number,
        f"""\
    float sum = 0.0f;
{window_loops(window, program.shape(read)[1:])}
            const float *in = &{program.pixel(read, "r", "c", _first_channel(program, number, part))};
            for (int k = 0; k < {part}; k += {step}) {{
                const int at = (i * {window[0][1]} + j) * {part} + k;
                uint32_t word = {word} >> (at & 31);
                for (int b = 0; b < {step}; b++, word >>= 1) sum = word & 1u ? sum + in[k + b] : sum - in[k + b];
            }}
        }}
    }}
    float v = sum;
""",
    )


def _first_channel(program: CProgram, number: int, part: int) -> str:
    """Return the C expression of the first channel of a filter's group."""
    fields, groups = program.plan.steps[number][1], program.field(number, "GROUPS")
    filters = program.shape(fields.get("OUT", fields.get("OUT_BITS", -1)))[0]
    return f"f / {filters // groups} * {part}" if groups > 1 else "0"


def conv_real(program: CProgram, number: int) -> None:
    """Floats by float or int8 weights."""
    fields, (height, width) = program.plan.steps[number][1], program.window(number)[0]
    given = program.plan.tensors[fields["WEIGHT"]]
    part = program.shape(fields["IN"])[0] // program.field(number, "GROUPS")
    laid = given.reshape(len(given), part, height, width).transpose(0, 2, 3, 1)
    weight = program.constant(f"weight_{number}", laid)
    _convolve(program, number, part, f"sum += in * (float){weight}[(size_t)f * {part * height * width} + at];")


def _convolve(program: CProgram, number: int, part: int, add: str) -> None:
    """Add a convolution of floats; ``add`` adds connection ``at`` of filter ``f`` with the number ``in``."""
    read, window = program.field(number, "IN"), program.window(number)
    channel = f"({_first_channel(program, number, part)} + k)" if program.field(number, "GROUPS") > 1 else "k"
    add_pixels(
        program,
        number,
        f"""\
    float sum = 0.0f;
{window_loops(window, program.shape(read)[1:])}
            for (int k = 0; k < {part}; k++) {{
                const int at = (i * {window[0][1]} + j) * {part} + k;
                const float in = {program.pixel(read, "r", "c", channel)};
                {add}
            }}
        }}
    }}
    float v = sum;
""",
    )


def linear_bytes(program: CProgram, number: int) -> None:
    """Add a linear layer whose input is rounded to 8 bits: whole numbers, added or subtracted by binary weights."""
    symbols, _, part = _symbols(program, number)
    words = word_count(part)
    weight = program.constant(f"bits_{number}", _pack_words(symbols[:, 0, 0] == 1))
    test = f"{weight}[(size_t)f * {words} + (k >> 5)] >> (k & 31) & 1u"
    keep = ""
    if not symbols.all():
        kept = program.constant(f"kept_{number}", _pack_words(symbols[:, 0, 0] != 0))
        keep = f"if ({kept}[(size_t)f * {words} + (k >> 5)] >> (k & 31) & 1u) "
    read = program.name(program.field(number, "IN"))
    program.functions.append(f"static float unit_{number}; /* of the rounded numbers */\n")
    program.ram_bytes += 4
    add_pixels(
        program,
        number,
        f"""\
    int32_t sum = 0;
    for (int k = 0; k < {part}; k++) {keep}sum += {test} ? bytes[k] : -bytes[k];
    float v = (float)sum * unit_{number};
""",
        prologue=f"""\
    float largest = 0.0f;
    for (int k = 0; k < {part}; k++)
        if (fabsf({read}[k]) > largest || isnan({read}[k])) largest = fabsf({read}[k]);
    if (!isfinite(largest)) largest = NAN;
    for (int k = 0; k < {part}; k++) {{
        const float scaled = isnan(largest) ? 0.0f : {read}[k] / (largest > 0.0f ? largest : 1.0f) * 127.0f;
        const float nearest = scaled + 12582912.0f; /* 1.5 · 2^23: rounds to a whole number, halves to even */
        bytes[k] = (int8_t)(nearest - 12582912.0f);
    }}
    unit_{number} = largest / 127.0f;
""",
    )
