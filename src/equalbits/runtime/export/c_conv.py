"""C code of convolutions and linear layers, which are convolutions of one pixel."""

import numpy as np
from numpy.typing import NDArray

from equalbits.runtime import bits
from equalbits.runtime.export.c_program import word_count
from equalbits.runtime.export.c_step import CStep, add_pixels, window_loops


def _symbols(step: CStep) -> tuple[NDArray[np.int8], int, int]:
    """Return binary weights as (filter, kernel row, kernel column, channel of the group), filters and channels."""
    sign, kept = step.tensor("WEIGHT"), step.tensor("KEPT") if "KEPT" in step.fields else None
    (height, width), part = step.window()[0], step.shape("IN")[0] // step["GROUPS"]
    symbols = bits.unpack_symbols(sign, kept, part * height * width)
    return symbols.reshape(len(sign), part, height, width).transpose(0, 2, 3, 1), len(sign), part


def _pack_words(ones: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Pack the last axis into words of 32 bits, the lowest bit first."""
    spare = -ones.shape[-1] % 32
    padded = np.pad(ones, [(0, 0)] * (ones.ndim - 1) + [(0, spare)])
    return np.packbits(padded, axis=-1, bitorder="little").view("<u4").astype(np.uint32)


def conv_bits(step: CStep) -> None:
    """XOR and popcount of words; padding is skipped. A mask drops pruned connections, and bits of other groups."""
    symbols, filters, part = _symbols(step)
    (channels, rows, columns), groups = step.shape("IN"), step["GROUPS"]
    starts = np.arange(groups) * part
    span = int((starts % 32 + part - 1).max()) // 32 + 1
    aligned = np.zeros((*symbols.shape[:3], 32 * span), np.int8)
    for index in range(filters):
        first = int(starts[index * groups // filters]) % 32
        aligned[index, ..., first : first + part] = symbols[index]
    weight = step.constant("bits", _pack_words(aligned == 1))
    (height, width), *_ = window = step.window()
    per_filter = height * width * span
    masked = groups > 1 or not symbols.all()
    mask = step.constant("kept", _pack_words(aligned != 0)) if masked else ""
    at = f"(r * {columns} + c) * {word_count(channels)}"
    if groups > 1:
        at += f" + f / {filters // groups} * {part} / 32"
    place = f"(size_t)f * {per_filter} + (i * {width} + j) * {span}"
    kept = f"            const uint32_t *m = {mask} + {place};\n" if masked else ""
    add = "popcount(m[k]) - 2 * popcount((in[k] ^ w[k]) & m[k])" if masked else "- 2 * popcount(in[k] ^ w[k])"
    after = "" if masked else f"            sum += {part};\n"
    add_pixels(
        step,
        f"""\
    int sum = 0; /* twice the equal bits, minus all: what XNOR and popcount give */
{window_loops(window, (rows, columns))}
            const uint32_t *in = {step.pointer("IN")} + {at};
            const uint32_t *w = {weight} + {place};
{kept}            for (int k = 0; k < {span}; k++) sum += {add};
{after}        }}
    }}
    float v = (float)sum;
""",
    )


def _bit(step: CStep, name: str, ones: NDArray[np.bool_], at: str) -> str:
    """Add rows of bits as a constant; return the C expression of bit ``at`` of filter ``f``."""
    row = f"{step.constant(name, _pack_words(ones))}[(size_t)f * {word_count(ones.shape[1])} + ({at} >> 5)]"
    return f"{row} >> ({at} & 31) & 1u"


def conv_signed(step: CStep) -> None:
    """Floats by binary weights: each number is added or subtracted; pruned ones are left out."""
    symbols, filters, part = _symbols(step)
    flat = symbols.reshape(filters, -1)
    plus = _bit(step, "bits", flat == 1, "at")
    if not symbols.all():
        kept = _bit(step, "kept", flat != 0, "at")
        _convolve(step, part, f"if (!({kept})) continue;\n                sum += {plus} ? in : -in;")
    elif step.program.is_real(step["IN"]) and (part % 32 == 0 or 32 % part == 0):
        _add_whole_words(step, part, plus.removesuffix(" & 1u"))
    else:
        _convolve(step, part, f"sum += {plus} ? in : -in;")


def _add_whole_words(step: CStep, part: int, word: str) -> None:
    """Add a convolution with binary weights whose channels fill words, or share one: each word is read once."""
    run = min(part, 32)
    _sum_windows(
        step,
        f"""\
            const float *in = &{step.pixel("IN", "r", "c", _first_channel(step, part))};
            for (int k = 0; k < {part}; k += {run}) {{
                const int at = (i * {step.window()[0][1]} + j) * {part} + k;
                uint32_t word = {word};
                for (int b = 0; b < {run}; b++, word >>= 1) sum = word & 1u ? sum + in[k + b] : sum - in[k + b];
            }}
""",
    )


def _sum_windows(step: CStep, inner: str) -> None:
    """Add a convolution of floats; ``inner`` adds one pixel of a window to ``sum``."""
    loops = window_loops(step.window(), step.shape("IN")[1:])
    add_pixels(step, f"    float sum = 0.0f;\n{loops}\n{inner}        }}\n    }}\n    float v = sum;\n")


def _first_channel(step: CStep, part: int) -> str:
    """Return the C expression of the first channel of a filter's group."""
    return f"f / {step.made[0] // step['GROUPS']} * {part}" if step["GROUPS"] > 1 else "0"


def conv_real(step: CStep) -> None:
    """Floats by float or int8 weights."""
    (height, width), given, part = step.window()[0], step.tensor("WEIGHT"), step.shape("IN")[0] // step["GROUPS"]
    laid = given.reshape(len(given), part, height, width).transpose(0, 2, 3, 1)
    weight = step.constant("weight", laid)
    _convolve(step, part, f"sum += in * (float){weight}[(size_t)f * {part * height * width} + at];")


def _convolve(step: CStep, part: int, add: str) -> None:
    """Add a convolution of floats; ``add`` adds connection ``at`` of filter ``f`` with the number ``in``."""
    channel = f"({_first_channel(step, part)} + k)" if step["GROUPS"] > 1 else "k"
    _sum_windows(
        step,
        f"""\
            for (int k = 0; k < {part}; k++) {{
                const int at = (i * {step.window()[0][1]} + j) * {part} + k;
                const float in = {step.pixel("IN", "r", "c", channel)};
                {add}
            }}
""",
    )


def linear_bytes(step: CStep) -> None:
    """Add a linear layer whose input is rounded to 8 bits: whole numbers, added or subtracted by binary weights."""
    symbols, _, part = _symbols(step)
    flat = symbols[:, 0, 0]
    plus = _bit(step, "bits", flat == 1, "k")
    keep = "" if symbols.all() else f"if ({_bit(step, 'kept', flat != 0, 'k')}) "
    read, number = step.pointer("IN"), step.number
    step.program.functions.append(f"static float unit_{number}; /* of the rounded numbers */\n")
    step.program.ram_bytes += 4
    add_pixels(
        step,
        f"""\
    int32_t sum = 0;
    for (int k = 0; k < {part}; k++) {keep}sum += {plus} ? bytes[k] : -bytes[k];
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
