"""``equalbits bench``: measure the speed of a packed file. Needs torch only for ``--torch``."""

import argparse
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equalbits.cli.arguments import add_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from equalbits.runtime import Network

Call = Callable[[], object]
_MAX_SECONDS = 3600  # more is likely a typing error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``bench``."""
    parser.add_argument("file", metavar="FILE", help="a packed file, written by equalbits pack")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="number of threads (default: 1)")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="batch size (default: 1)")
    parser.add_argument(
        "--engine", choices=("auto", "avx512", "avx2", "neon", "portable", "numpy"), default="auto",
        help="the native engine with its fastest kernels (auto, default) or those of one instruction set, or numpy",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=2.0, metavar="S", help="duration of the measurement (default: 2)"
    )
    parser.add_argument("--layers", action="store_true", help="print the time of each step on one thread")
    parser.add_argument("--torch", action="store_true", help="measure the same network in torch, alternately")
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Print time per image, throughput, file size and peak memory."""
    from equalbits.runtime import MAX_THREADS

    for name, least in (("threads", 1), ("batch", 1), ("seconds", 0)):
        if not getattr(options, name) >= least:
            raise ValueError(f"--{name} {getattr(options, name)} must be at least {least}")
    if options.threads > MAX_THREADS:
        raise ValueError(f"--threads {options.threads} must be 1 to {MAX_THREADS}")
    if options.seconds > _MAX_SECONDS:
        raise ValueError(f"--seconds {options.seconds:g} must be 0 to {_MAX_SECONDS:,}")
    try:
        _measure(options)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate" not in str(error):  # torch raises RuntimeError
            raise
        raise ValueError(f"--batch {options.batch} does not fit into memory: lower --batch") from None


def _measure(options: argparse.Namespace) -> None:
    import numpy as np

    from equalbits.runtime import read_network

    path = Path(options.file)
    network = read_network(path)
    try:
        images = np.random.default_rng(0).standard_normal((options.batch, *network.input_shape)).astype(np.float32)
    except ValueError:  # more elements than numpy can index
        raise MemoryError from None
    engine, call = _make_call(network, images, options)
    if options.layers and not engine.startswith("native"):
        raise ValueError("--layers needs the native engine, but numpy would run: omit --layers")
    free = _free_cores() if options.torch else 0.0  # before we start threads
    call()
    facts: dict[str, Any] = {"file": str(path), "bytes": path.stat().st_size, "engine": engine}
    facts |= {"threads": options.threads, "batch": options.batch, "peak_memory_bytes": _peak_memory()}
    calls = {"ms_per_image": call}
    if options.torch:
        from equalbits.cli.bench_torch import torch_call

        calls["torch_ms_per_image"] = torch_call(network, images, options.threads)
    for name, times in _measure_alternately(calls, options.seconds).items():
        facts[name] = {"median": statistics.median(times) / options.batch, "least": min(times) / options.batch}
    if options.torch:
        unsteady = any(facts[name]["median"] > 2 * facts[name]["least"] for name in calls)
        facts["busy"] = free < options.threads or unsteady
    facts["images_per_second"] = 1e3 / facts["ms_per_image"]["median"]
    facts["rounds"] = len(times)
    if options.layers:
        facts["layers"] = _time_layers(network, images[0], engine, options.seconds)
    print(json.dumps(facts) if options.json else _as_text(facts))


def _make_call(network: "Network", images: "NDArray[np.float32]", options: argparse.Namespace) -> tuple[str, Call]:
    """Return the name of the engine, and a function that runs the batch once."""
    from equalbits.runtime import NativeEngine, PackedModel, native

    if options.engine in ("auto", "numpy"):
        model = PackedModel(network, threads=options.threads, engine=options.engine)
        return model.engine, lambda: model(images)
    available = [] if native.BUILT is None else native.BUILT.instruction_sets()
    if options.engine not in available:
        raise ValueError(f"--engine {options.engine}: this machine supports {', '.join(['auto', *available, 'numpy'])}")
    engine = NativeEngine(network, options.engine)
    return f"native ({options.engine})", lambda: engine(images, options.threads)


def _measure_alternately(calls: dict[str, Call], seconds: float) -> dict[str, list[float]]:
    """Return the milliseconds of each call, alternating for ``seconds``: one warm-up round, then at least three."""
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[next(iter(calls))]) < 3:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - start) * 1e3)
    return times


def _time_layers(network: "Network", image: "NDArray[np.float32]", engine: str, seconds: float) -> list[dict[str, Any]]:
    """Return the milliseconds of each step on one thread: the minimum over rounds, since noise only adds time."""
    from equalbits.runtime import NativeEngine

    plan = NativeEngine(network, engine[len("native (") : -1])
    rounds: list[list[float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(rounds) < 3:
        rounds.append(plan.time_steps(image))
    least = [1e3 * min(times) for times in zip(*rounds, strict=True)]
    return [{"step": name, "ms": ms} for name, ms in zip(_step_names(network, plan.step_kinds), least, strict=True)]


#: Operands of a step with binary weights.
_OPERANDS = {"CONV_BITS": "1×1 bit", "CONV_SIGNED": "1×32 bit", "LINEAR_BYTES": "1×8 bit"}


def _step_names(network: "Network", kinds: list[str]) -> list[str]:
    """Return the name of each step: its layer if it has weights, else its kind."""
    weighted = iter(i for i, operation in enumerate(network.operations) if operation.kind in ("conv", "linear"))
    found = []
    for kind in kinds:
        if kind.startswith("CONV") or kind == "LINEAR_BYTES":
            operands = _OPERANDS.get(kind, "32×32 bit")
            found.append(f"{network.layer_name(next(weighted))} ({operands})")
        else:
            found.append(kind.lower())
    return found


def _peak_memory() -> int | None:
    """Return the peak memory of this process in bytes; None where it cannot be read.

    On Linux getrusage includes the peak of the parent process, so /proc is read first.
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        status = ""
    if found := re.search(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE):
        return 1024 * int(found[1])
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _as_text(facts: dict[str, Any]) -> str:
    ms = facts["ms_per_image"]
    lines = [
        f"{facts['file']}: {facts['bytes']:,} bytes, {facts['engine']}, threads {facts['threads']}, "
        f"batch {facts['batch']}, {facts['rounds']} rounds",
        f"{ms['median']:.3f} ms per image (median; minimum {ms['least']:.3f}), "
        f"{facts['images_per_second']:,.0f} images/s",
    ]
    if facts["peak_memory_bytes"]:
        lines.append(f"peak memory {facts['peak_memory_bytes'] / 1e6:,.0f} MB, Python included")
    if other := facts.get("torch_ms_per_image"):
        lines.append(_compare_with_torch(ms, other, busy=facts["busy"], threads=facts["threads"]))
    return "\n".join([*lines, *_table(facts.get("layers", []))])


def _compare_with_torch(
    ours: dict[str, float], torch: dict[str, float], *, busy: bool, threads: int = 1, cores: int | None = None
) -> str:
    """Return a line with torch's times and their ratio to ours: of medians, or of minima where the machine is busy.

    Torch's threads spin while they wait, which is left so: sleeping they take up to twice as long on an idle machine.
    But where other processes use the cores, even their minimum may be a hundred times too long.
    """
    ratio = torch["least"] / ours["least"] if busy else torch["median"] / ours["median"]
    cores = cores or os.cpu_count() or 1
    oversubscribed = f"{threads} threads share {cores} core{'s' * (cores > 1)}; lower --threads"
    reason = oversubscribed if threads > cores else "the machine is busy; measure again when it is idle"
    note = f" (ratio of minima: {reason})" if busy else ""
    times = f"{torch['median']:.3f} ms per image (median; minimum {torch['least']:.3f})"
    return f"same network in torch, float32: {times}, {ratio:.1f} times as long{note}"


def _free_cores(loadavg: Path = Path("/proc/loadavg"), cores: int | None = None) -> float:
    """Return the number of idle cores, this process's own included; infinity where /proc/loadavg is missing."""
    others = []
    for _ in range(5):
        try:
            others.append(int(loadavg.read_text().split()[3].partition("/")[0]) - 1)  # minus this process
        except (OSError, ValueError, IndexError):
            return float("inf")
        time.sleep(0.01)
    return (cores or os.cpu_count() or 1) - min(others)


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    from equalbits._text import escape_control_chars

    names = [escape_control_chars(row["step"]) for row in rows]
    width, total = max(map(len, names), default=0), sum(row["ms"] for row in rows) or 1.0
    return [
        f"{name:{width}} {row['ms']:9.3f} ms {row['ms'] / total:6.1%}" for name, row in zip(names, rows, strict=True)
    ]
