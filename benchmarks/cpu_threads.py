"""How much two threads gain, and a batch of eight: ResNet-18 W1A1 at 224² and a 12-layer, 768-wide decoder W1A8.

    python benchmarks/cpu_threads.py results/cpu-threads.json --models DIR [--rounds 11]

DIR is that of ``decoder.py --make``. Time on the clock, so nothing else may run; the ways alternate within each round,
and a ratio is the median of those within a round. A way runs twice, and the second time counts: caches are its own. The
calling thread is pinned to one core and all others to the next: on a busy machine a scheduler may leave both on one.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from packed_resnet import resnet18

from equalbits.runtime import Decoder, PackedModel, load_packed


def ways(folder: Path) -> dict[str, Callable[[], object]]:
    """Return the work of each way, as a function without arguments."""
    random, network = np.random.default_rng(0), resnet18()
    image, batch = (random.standard_normal((count, 3, 224, 224)).astype(np.float32) for count in (1, 8))
    tokens = random.integers(4096, size=256).tolist()
    found: dict[str, Callable[[], object]] = {}

    def add(threads: int) -> None:
        model = PackedModel(network, threads=threads)
        decoder = Decoder(load_packed(folder / "int8.ebits", threads=threads))

        def read(count: int, size: int) -> None:
            decoder.reset()
            for start in range(0, count, size):
                decoder.extend(tokens[start : start + size])

        found[f"ResNet-18, image, {threads}"] = lambda: model(image)
        found[f"ResNet-18, 8 images, {threads}"] = lambda: model(batch)
        found[f"decoder, prefill 256, {threads}"] = lambda: read(256, 256)
        found[f"decoder, decode 32, {threads}"] = lambda: read(32, 1)

    for threads in (1, 2):
        add(threads)
    return found


def pin_threads() -> None:
    """Pin the calling thread to the first core and all other threads to the second."""
    first, second, *_ = sorted(os.sched_getaffinity(0))
    for thread in (int(path.name) for path in Path("/proc/self/task").iterdir()):
        os.sched_setaffinity(thread, {first if thread == os.getpid() else second})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    found = ways(options.models)
    taken: dict[str, list[float]] = {name: [] for name in found}
    for work in found.values():
        work()  # starts its threads
    pin_threads()
    for turn in range(options.rounds + 1):
        for name, work in found.items():
            work()
            started = time.perf_counter()
            work()
            if turn:  # the first round warms up
                taken[name].append(1e3 * (time.perf_counter() - started))

    def ratio(one: str, other: str, factor: float = 1.0) -> float:
        return round(statistics.median(factor * a / b for a, b in zip(taken[one], taken[other], strict=True)), 3)

    works = [name.removesuffix(", 1") for name in found if name.endswith(", 1")]
    gains = {f"{name}: two threads": ratio(f"{name}, 1", f"{name}, 2") for name in works}
    for threads in (1, 2):
        name = f"ResNet-18: images per second of a batch of 8 to those of one, {threads} threads"
        gains[name] = ratio(f"ResNet-18, image, {threads}", f"ResNet-18, 8 images, {threads}", 8)
    report = {
        "rounds": options.rounds,
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "median_ms": {name: round(statistics.median(times), 3) for name, times in taken.items()},
        "gains": gains,
    }
    options.result.write_text(json.dumps(report, indent=1) + "\n")
    for name, gain in gains.items():
        print(f"{gain:5.2f}  {name}")


if __name__ == "__main__":
    main()
