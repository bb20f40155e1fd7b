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


def repeated_vectors(count: int) -> Network:
    """Two numbers of the file that each of many operations repeats over a long value."""
    build = NetworkBuilder((1, 1, 1))
    x = build.add("pad", build.image, before=(0, 0, 0), after=(0, 0, (1 << 20) - 1))
    x = build.add("reshape", x, shape=(1, 1, 1, 1 << 20))
    for _ in range(count):
        x = build.add("affine", x, gain_shift=np.ones((2, 1), np.float32), name="a")
    return build.finish()


def concatenations(count: int) -> Network:
    """Operations of 64 copies each."""
    build = NetworkBuilder((1, 1, 1))
    for _ in range(count):
        build.add("concat", *[build.image] * 64)
    return build.finish()


def numpy_alone(rows: int) -> Network:
    """A function of a large value, in a file that the native engine cannot run for its axes."""
    build = NetworkBuilder((1, 1, 1))
    x = build.add("pad", build.image, before=(0, 0, 0), after=(0, rows - 1, 8191))
    x = build.add("reshape", x, shape=(2,) * 7 + (rows * 64,))
    x = build.add("permute", x, axes=(6, 4, 2, 0, 1, 3, 5, 7))
    build.add("gelu", x)
    return build.finish()


def embeddings(count: int) -> Network:
    """Tokens of a table, each as wide as a row of it."""
    build = NetworkBuilder((1, 1, count))
    ids = build.add("reshape", build.image, shape=(count,))
    table = np.zeros((2, 8192), np.float16)
    build.add("flatten", build.add("slice", build.add("embedding", ids, table=table), **_first(2)))
    return build.finish()


def rounded_rows(rows: int) -> Network:
    """A binary linear layer that rounds each of many rows to 8 bits."""
    build = NetworkBuilder((1, rows, 1024))
    symbols = np.where(np.random.default_rng(0).integers(0, 2, (1024, 1024)), 1, -1)
    x = build.add_binary("linear", build.image, symbols, input_bits=8)
    build.add("flatten", build.add("slice", x, **_first(3)))
    return build.finish()


def _first(axes: int) -> dict[str, object]:
    return {"start": (0,) * axes, "stop": (1,) * axes, "step": (1,) * axes}


def main() -> None:
    """Print a line for each file."""
    cases = [
        ("values alive at a time", alive_values(7, 6_100), "run"),
        ("layouts of one weight", layouts(10_000), "run"),
        ("borders of a wide kernel", borders(360_000), "load"),
        ("attention of many tokens", attention(11_500), "run"),
        ("attention of more tokens", attention(16_000), "run"),
        ("vectors repeated over a value", repeated_vectors(60), "run"),
        ("vectors repeated more often", repeated_vectors(118), "run"),
        ("concatenations, few", concatenations(1_000), "run"),
        ("concatenations, many", concatenations(16_000), "run"),
        ("a large value in numpy alone", numpy_alone(2_000), "run"),
        ("a larger one", numpy_alone(4_000), "run"),
        ("embedding of many tokens", embeddings(30_000), "run"),
        ("rows rounded to 8 bits", rounded_rows(60_000), "run"),
    ]
    with tempfile.TemporaryDirectory() as home:
        for name, network, how in cases:
            path = Path(home) / "net.ebits"
            write_network(network, path)
            done = subprocess.run([sys.executable, "-c", LOAD, path, how], capture_output=True, text=True, timeout=600)
            print(f"{name}, {path.stat().st_size} bytes: {done.stdout.strip() or done.stderr[-300:]}", flush=True)


if __name__ == "__main__":
    main()
