"""Export a packed network to one C99 file and its header: no dependencies, no allocation, weights as constant bits.

The C is generated from the steps of the native plan (:mod:`equalbits.runtime.lower`), so operations are fused as there,
and a value that only binary layers read is never stored as floats. Values whose lifetimes do not overlap share memory.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from equalbits.runtime.engine import PackedModel
from equalbits.runtime.export.c_program import CProgram
from equalbits.runtime.export.c_step import CStep
from equalbits.runtime.export.c_steps import C_STEPS
from equalbits.runtime.lengths import longest
from equalbits.runtime.network import Network

_POPCOUNT = """
static int popcount(uint32_t x) {
#if defined(__POPCNT__) || defined(__aarch64__)
    return __builtin_popcount(x);
#else
    x -= (x >> 1) & UINT32_C(0x55555555);
    x = (x & UINT32_C(0x33333333)) + ((x >> 2) & UINT32_C(0x33333333));
    x = (x + (x >> 4)) & UINT32_C(0x0f0f0f0f);
    return (int)((x * UINT32_C(0x01010101)) >> 24);
#endif
}
"""


@dataclass(frozen=True)
class CSizes:
    """Bytes of an exported C file: constants in ``flash``, static memory in ``ram``; the code comes on top."""

    flash: int
    ram: int

    def __str__(self) -> str:
        return f"{self.flash:,} bytes of constants in flash, {self.ram:,} bytes of static RAM"


def export_c(
    packed: PackedModel, path: str | os.PathLike[str], *, max_flash: int | None = None, max_ram: int | None = None
) -> CSizes:
    """Write ``path`` (net.c) and the header beside it (net.h); return the memory they take.

    ``equalbits_run`` takes the bytes of one image, channel by channel, or normalized floats where the file has no mean
    and std. An operation without a C form raises ValueError, and so do constants or static memory of more bytes than
    ``max_flash`` or ``max_ram``.
    """
    path = Path(path)
    source, header, sizes = c_source(longest(packed.network), path.with_suffix(".h").name, max_ram=max_ram)
    if max_flash is not None and sizes.flash > max_flash:
        raise ValueError(
            f"the constants need {sizes.flash:,} bytes of flash, more than --max-flash {max_flash:,}: use fewer filters"
        )
    path.write_text(source)
    path.with_suffix(".h").write_text(header)
    return sizes


def c_source(network: Network, header_name: str = "net.h", *, max_ram: int | None = None) -> tuple[str, str, CSizes]:
    """Return the C source and the header of a network, and the memory they take."""
    if network.inputs or network.outputs:
        names = ", ".join(port.name for port in (*network.inputs, *network.outputs))
        raise ValueError(f"C takes one image and gives its logits, not {names}: run the file with equalbits.runtime")
    program = CProgram(network)
    steps = [CStep(program, number) for number in range(len(program.plan.steps))]
    for step, (kind, _) in zip(steps, program.plan.steps, strict=True):
        if kind not in C_STEPS:
            raise ValueError(f"{step.layer} has no C form: export to onnx instead")
        program.functions.append(f"/* {step.layer}: {step.describe_sizes()} */\n")
        C_STEPS[kind](step)
    sizes = CSizes(program.flash_bytes, program.ram_bytes)
    if max_ram is not None and sizes.ram > max_ram:
        layer = steps[program.largest_step()].layer
        raise ValueError(
            f"{layer} needs {sizes.ram:,} bytes of RAM, more than --max-ram {max_ram:,}: "
            "use fewer channels or a smaller image"
        )
    parameters = f"const {program.pixel_type} *pixels, float *logits"
    popcount = _POPCOUNT if any("popcount(" in text for text in program.functions) else ""
    source = f"""\
/* A network packed by equalbits, as plain C99: no allocation, no dependencies.
 *
 * Flash: {sizes.flash:,} bytes of constants, and the code. RAM: {sizes.ram:,} bytes, static; so one run at a time.
 *
 * Each layer is a function step_N, in order; value_N makes one number of its output, at row y, column x and filter f.
 * Floats lie in memory as (row, column, channel), signs as words of 32 channels, lowest bit first, 1 for +1. Compile
 * with -std=c99, or -ffp-contract=off, so that every compiler and board rounds alike. */
#include "{header_name}"

#include <math.h>
#include <stddef.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* round as every other engine does */
#endif

{program.memory()}
{"".join(program.constants)}{popcount}
{"".join(program.functions)}
int equalbits_run({parameters}) {{
    if (!pixels || !logits) return 1;
    image = pixels;
{"".join(f"    step_{step.number}(); /* {step.layer} */{chr(10)}" for step in steps)}\
    for (int i = 0; i < {program.outputs}; i++) logits[i] = {program.name(program.answer)}[i];
    return 0;
}}
"""
    return source, _header(network, parameters, program.outputs, sizes), sizes


def _header(network: Network, parameters: str, outputs: int, sizes: CSizes) -> str:
    channels, rows, columns = network.input_shape
    names = ", ".join(_c_string(name) for name in network.classes)
    pixels = "bytes 0 to 255" if network.mean is not None else "floats, normalized as in training"
    return f"""\
/* A network packed by equalbits: {sizes.flash:,} bytes of constants, {sizes.ram:,} bytes of static RAM. */
#ifndef EQUALBITS_NET_H
#define EQUALBITS_NET_H

#include <stdint.h>

#define EQUALBITS_CHANNELS {channels}
#define EQUALBITS_ROWS {rows}
#define EQUALBITS_COLUMNS {columns}
#define EQUALBITS_OUTPUTS {outputs}
{f"#define EQUALBITS_CLASS_NAMES {{{names}}}" if names else "/* The file holds no class names. */"}

#ifdef __cplusplus
extern "C" {{
#endif

/* Classify one image. `pixels` holds EQUALBITS_CHANNELS planes of EQUALBITS_ROWS rows of EQUALBITS_COLUMNS pixels,
 * {pixels}; `logits` takes EQUALBITS_OUTPUTS numbers. Return 0, or 1 for a null pointer. */
int equalbits_run({parameters});

#ifdef __cplusplus
}}
#endif
#endif
"""


def _c_string(text: str) -> str:
    """Return a C string literal; anything but plain ASCII as octal escapes of its UTF-8 bytes."""
    plain = (chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}" for byte in text.encode())
    return f'"{"".join(plain)}"'
