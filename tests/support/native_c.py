"""Run an exported network as a program of its own on this machine."""

import subprocess
from pathlib import Path

import numpy as np

from equalbits.runtime import Network, PackedModel, export_c

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror")
SANITIZERS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

_MAIN = """
#include "net.h"
#include <stdio.h>

int main(void) {
    static PIXEL pixels[EQUALBITS_CHANNELS * EQUALBITS_ROWS * EQUALBITS_COLUMNS];
    float logits[EQUALBITS_OUTPUTS];
    while (fread(pixels, 1, sizeof pixels, stdin) == sizeof pixels) {
        if (equalbits_run(pixels, logits)) return 1;
        fwrite(logits, sizeof *logits, EQUALBITS_OUTPUTS, stdout);
    }
    return 0;
}
"""


def run(network: Network, images: np.ndarray, folder: Path, compiler: str, *flags: str) -> np.ndarray:
    """Compile the exported network with a compiler, and return the logits of images."""
    export_c(PackedModel(network, engine="numpy"), folder / "net.c")
    (folder / "main.c").write_text(f"#define PIXEL {'uint8_t' if images.dtype == np.uint8 else 'float'}\n{_MAIN}")
    program = folder / "main"
    subprocess.run([compiler, *STRICT, *flags, "-o", program, folder / "net.c", folder / "main.c"], check=True)
    ran = subprocess.run([program], input=images.tobytes(), capture_output=True, check=True)
    return np.frombuffer(ran.stdout, np.float32).reshape(len(images), *network.shapes[-1])
