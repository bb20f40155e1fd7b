"""Read and run mutated files, and count what becomes of them: ``python tests/runtime/fuzz.py FIRST COUNT``.

Prints one JSON object. Ends with an error, and names the seed, where a file is neither refused in one line nor answered
alike by numpy and the native engine. Memory is limited; a file that hangs is stopped by whoever waits for this program.
"""

import json
import os
import resource
import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from mutations import mutated

from equalbits.runtime import OPS, FormatError, LimitError, Network, PackedModel, at_length, native
from equalbits.runtime.format import from_bytes

#: What a file may claim, and what is run here at all: products, and numbers of values.
MEMORY, MOST_WORK, MOST_NUMBERS = 3 << 30, 20_000_000, 2_000_000


#: Operations with sums of real numbers, which engines add in an order of their own.
SUMS = ("conv", "linear", "matmul", "softmax", "layer_norm", "rms_norm")


def outcome(seed: int) -> str:
    """Outcome of one file; raises if it is not allowed."""
    try:
        network = from_bytes(mutated(seed))
    except FormatError as error:
        message = str(error)
        if "\n" in message or not 0 < len(message) < 500:
            raise AssertionError(f"seed {seed}: not a line: {message!r}") from None
        return "refused by the reader"
    try:
        engine = PackedModel(network, engine="native" if native.BUILT else "numpy")
    except LimitError:
        return "refused for what it costs"
    except ValueError:
        return "refused by the native engine"
    except MemoryError:
        return "too large for the memory"
    if not _is_small(network):
        return "read, and too large to run here"
    if network.lengths is None:
        return _run(seed, network, engine)
    try:
        short = at_length(network, network.lengths.least + seed % (network.lengths.most + 1 - network.lengths.least))
        engine = PackedModel(short, engine="native" if native.BUILT else "numpy")
    except LimitError:
        return "refused for what it costs"
    except ValueError as error:
        if "\n" in str(error):
            raise AssertionError(f"seed {seed}: not a line: {error}") from None
        return "refused at a length"
    return _run(seed, short, engine) if _is_small(short) else "read, and too large to run here"


def _run(seed: int, network: Network, engine: PackedModel) -> str:
    images = np.random.default_rng(seed).integers(-8, 9, (2, *network.input_shape)).astype(np.float32) / 8
    if network.inputs:  # ids of tokens
        images = np.abs(images * 8) % max(1, min(network.inputs[0].below, 6))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        truth, found = PackedModel(network, engine="numpy").run_batch(images), engine.run_batch(images)
    if not np.isfinite(truth).all():
        return "answered, with numbers beyond float32"
    if np.array_equal(truth, found):
        return "answered alike to the last bit"
    if np.abs(truth - found).max() <= 1e-4 * np.abs(truth).max() + 1e-6:
        return "answered alike but for rounding"
    if _rounds_before_a_sign(network):
        return "answered alike but for signs that rounding decides"
    if _has_huge_values(network, images):
        return "answered, with sums near the end of float32"
    raise AssertionError(f"seed {seed}: numpy and native differ by {np.abs(truth - found).max()}")


def _rounds_before_a_sign(network: Network) -> bool:
    """Return whether a sign reads, at any distance, a sum of real products, whose order engines may choose.

    Numbers rounded to 8 bits have edges as a sign has one.
    """
    rounded: set[int] = set()
    for place, operation in enumerate(network.operations):
        edges = operation.kind in ("sign", "quantize") or operation.settings.get("input_bits") == 8
        if rounded.intersection(operation.inputs) and edges:
            return True
        if operation.kind in SUMS or rounded.intersection(operation.inputs):
            rounded.add(place + 1)
    return False


def _has_huge_values(network: Network, images: np.ndarray) -> bool:
    """Return whether a value exceeds 10³⁰: there a sum may be finite in one order and infinite in another."""
    values = [images]
    with np.errstate(all="ignore"):
        for operation in network.operations:
            values.append(network.run_operation(operation, dict(enumerate(values))))
    return any(not np.abs(value).max() <= 1e30 for value in values)


def _is_small(network: Network) -> bool:
    total = 0
    for place, operation in enumerate(network.operations):
        inputs = tuple(network.shapes[i] for i in operation.inputs)
        total += OPS[operation.kind].work(
            network.shapes[place + 1], inputs, operation.settings, network.arrays(operation)
        )
    return total <= MOST_WORK and sum(int(np.prod(shape)) for shape in network.shapes) <= MOST_NUMBERS


def peak_mib() -> int:
    """Peak memory of this process. On Linux getrusage includes the memory of the parent process."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) // 1024


def main(first: int, count: int, mark: str = "") -> None:
    """Count the outcomes of ``count`` files; the seed at hand is written to the file ``mark``."""
    if "asan" not in os.environ.get("LD_PRELOAD", ""):  # the sanitizer claims more than any limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    marked = os.open(mark, os.O_WRONLY | os.O_CREAT) if mark else None
    outcomes: Counter[str] = Counter()
    for seed in range(first, first + count):
        if marked is not None:
            os.pwrite(marked, f"{seed:12d}".encode(), 0)
        outcomes[outcome(seed)] += 1
    peak = peak_mib()
    print(json.dumps({"files": count, "peak_mib": peak, **dict(outcomes.most_common())}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:4])
