"""Measure the most that a small packed file may cost within the default limits.

Each file is made, then loaded in a process of its own. Prints its bytes, the seconds of ``load_packed``, and the peak
memory beyond that of the imports, after loading and, where an image takes seconds at most, after running one.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from equalbits.runtime import Network, NetworkBuilder, write_network

LOAD = """
import sys, time
from pathlib import Path
import numpy as np
from equalbits.runtime import LimitError, load_packed

def peak():
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024

imports, began = peak(), time.perf_counter()
try:
    model, end = load_packed(sys.argv[1]), "accepted"
except LimitError:
    model, end = None, "refused"
words = [end, f"{time.perf_counter() - began:.1f} s", f"{peak() - imports:.0f} MiB"]
if model is not None and sys.argv[2] == "run":
    began = time.perf_counter()
    model(np.ones((1, *model.input_shape), np.float32))
    words += [f"run {time.perf_counter() - began:.1f} s", f"{peak() - imports:.0f} MiB"]
print(", ".join(words))
"""


def alive_values(count: int, side: int) -> Network:
    """Large values that are all alive until the last operation reads a number of each."""
    build = NetworkBuilder((1, 1, 1))
    large = [build.add("pad", build.image, before=(0, i, 0), after=(0, side - i, side)) for i in range(count)]
    firsts = [build.add("slice", each, start=(0, 0, 0), stop=(1, 1, 1), step=(1, 1, 1)) for each in large]
    build.add("flatten", build.add("concat", *firsts))
    return build.finish()


def layouts(count: int) -> Network:
    """One weight that each of many convolutions lays out anew, since each has another padding."""
    build, weight = NetworkBuilder((32, 5, 5)), np.ones((32, 32, 5, 5), np.int8)
    for number in range(count):
        padding = tuple(number // 10**side % 10 for side in range(4))
        build.add("conv", build.image, weight=weight, name="tied", kernel=(5, 5), padding=padding)
    return build.finish()


def borders(width: int) -> Network:
    """A padded binary kernel as wide as the image: every column has a border of its own."""
    build = NetworkBuilder((1, 1, width))
    symbols = np.where(np.random.default_rng(0).integers(0, 2, (1, 1, 1, width)), 1, -1)
    build.add_binary("conv", build.add("sign", build.image), symbols, padding=(0, 0, width - 1, width - 1))
    return build.finish()


def attention(tokens: int) -> Network:
    """A softmax over the products of all pairs of tokens."""
    build = NetworkBuilder((1, tokens, 1))
    x = build.add("reshape", build.image, shape=(tokens, 1))
    scores = build.add("matmul", x, build.add("permute", x, axes=(1, 0)))
    build.add("flatten", build.add("matmul", build.add("softmax", scores, axis=1), x))
    return build.finish()


def main() -> None:
    """Print a line for each file."""
    cases = [
        ("values alive at a time", alive_values(7, 6_100), "run"),
        ("layouts of one weight", layouts(10_000), "run"),
        ("borders of a wide kernel", borders(360_000), "load"),
        ("attention of many tokens", attention(11_500), "run"),
        ("attention of more tokens", attention(16_000), "run"),
    ]
    with tempfile.TemporaryDirectory() as home:
        for name, network, how in cases:
            path = Path(home) / "net.ebits"
            write_network(network, path)
            done = subprocess.run([sys.executable, "-c", LOAD, path, how], capture_output=True, text=True, timeout=600)
            print(f"{name}, {path.stat().st_size} bytes: {done.stdout.strip() or done.stderr[-300:]}", flush=True)


if __name__ == "__main__":
    main()
