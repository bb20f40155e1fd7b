"""Run an exported network on an emulated Cortex-M: bare metal, no operating system; logits come back as bits."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from equalbits.runtime import Network, PackedModel, export_c

COMPILER, EMULATOR = "arm-none-eabi-gcc", "qemu-system-arm"
MISSING = [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]
#: Emulated board and compiler flags by processor: a Cortex-M7 with floats in hardware, a Cortex-M3 without.
BOARDS = {
    "cortex-m7": ("mps2-an500", ("-mcpu=cortex-m7", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16")),
    "cortex-m3": ("mps2-an385", ("-mcpu=cortex-m3", "-mthumb")),
}

#: Both boards have 4 MiB of memory for code and 4 MiB for data.
_LINK = """
MEMORY { code : ORIGIN = 0, LENGTH = 4M
         data : ORIGIN = 0x20000000, LENGTH = 4M }
SECTIONS { .text : { KEEP(*(.vectors)) *(.text*) *(.rodata*) *(.ARM.*) } > code
           .data : { *(.data*) } > data
           .bss : { *(.bss*) *(COMMON) } > data }
"""

_MAIN = """
#include "net.h"
#include <string.h>

static void host(unsigned call, const void *argument) {
    register unsigned r0 __asm__("r0") = call;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}

static void print(uint32_t bits) {
    static char line[10] = "00000000\\n";
    for (int digit = 0; digit < 8; digit++) line[7 - digit] = "0123456789abcdef"[bits >> 4 * digit & 15];
    host(4, line);
}

#define SYSTICK(offset) ((volatile uint32_t *)(0xE000E010 + offset))

static const PIXEL images[COUNT][EQUALBITS_CHANNELS * EQUALBITS_ROWS * EQUALBITS_COLUMNS] = {
#include "images.h"
};

static void start(void) {
    *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* the floating-point unit */
    __asm__ volatile("dsb\\nisb");
    static float logits[EQUALBITS_OUTPUTS];
    for (int clock = 5; clock > 0; clock -= 4) { /* the processor's, then a slow one, which does not wrap around */
        *SYSTICK(4) = 0xFFFFFF;
        *SYSTICK(0) = clock;
        uint32_t begin = *SYSTICK(8), loops = 1000000;
        __asm__ volatile("1: subs %0, #1\\nbne 1b" : "+r"(loops));
        print((begin - *SYSTICK(8)) & 0xFFFFFF);
        begin = *SYSTICK(8);
        equalbits_run(images[0], logits);
        print((begin - *SYSTICK(8)) & 0xFFFFFF);
    }
    for (int image = 0; image < COUNT; image++) {
        if (equalbits_run(images[image], logits)) break;
        for (int i = 0; i < EQUALBITS_OUTPUTS; i++) {
            uint32_t bits;
            memcpy(&bits, logits + i, 4);
            print(bits);
        }
    }
    host(0x18, (const void *)0x20026);
    for (;;) {}
}

__attribute__((section(".vectors"), used)) static const void *const vectors[2] = {(void *)0x20400000, (void *)start};
"""


def build(network: Network, images: np.ndarray, folder: Path, flags: tuple[str, ...]) -> Path:
    """Write a program that classifies ``images``, and compile it."""
    export_c(PackedModel(network, engine="numpy"), folder / "net.c")
    kind = "uint8_t" if images.dtype == np.uint8 else "float"
    (folder / "main.c").write_text(f"#define PIXEL {kind}\n#define COUNT {len(images)}\n{_MAIN}")
    number = str if kind == "uint8_t" else lambda value: f"{value:.9g}"
    rows = ("{" + ",".join(map(number, image.reshape(-1))) + "}" for image in images)
    (folder / "images.h").write_text(",\n".join(rows))
    (folder / "board.ld").write_text(_LINK)
    strict = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-O2")
    objects = []
    for name in ("net", "main"):
        objects.append(folder / f"{name}.o")
        command = [COMPILER, *flags, *strict, "-c", folder / f"{name}.c", "-o", objects[-1]]
        subprocess.run(command, check=True)
    program = folder / "net.elf"
    subprocess.run([COMPILER, *flags, "-nostartfiles", "-T", folder / "board.ld", *objects, "-o", program], check=True)
    return program


@dataclass(frozen=True)
class Measured:
    """Logits of all images, executed instructions of the first, bytes of flash (constants and code) and of RAM."""

    logits: np.ndarray
    instructions: int
    flash: int
    ram: int


def run(network: Network, images: np.ndarray, folder: Path, processor: str = "cortex-m7") -> Measured:
    """Run images on the emulated board, whose clock advances by a fixed time per instruction."""
    board, flags = BOARDS[processor]
    program = build(network, images, folder, flags)
    machine = ["-M", board, "-icount", "shift=0", "-nographic", "-semihosting", "-kernel", program]
    printed = subprocess.run([EMULATOR, *machine], capture_output=True, timeout=1200).stderr
    two_million, ticks, slow_two_million, slow_ticks, *words = [
        int(line, 16) for line in printed.decode().split("\n") if line
    ]
    instructions, wrap = ticks * 2_000_000 / two_million, 2**24 * 2_000_000 / two_million
    instructions += wrap * round((slow_ticks * 2_000_000 / slow_two_million - instructions) / wrap)
    logits = np.array(words, np.uint32).view(np.float32).reshape(len(images), -1)
    size = subprocess.run(["arm-none-eabi-size", folder / "net.o"], check=True, capture_output=True, text=True).stdout
    text, data, bss, *_ = map(int, size.split("\n")[1].split()[:3])
    return Measured(logits, round(instructions), text + data, data + bss)
