"""``equalbits bench``: how fast a packed file runs here. Needs numpy; torch only to be measured beside it."""

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

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from equalbits.runtime import Network

Call = Callable[[], object]
_LONGEST = 3600  # seconds; more would be a slip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``bench`` takes."""
    parser.add_argument("file", metavar="FILE", help="a packed file, made by equalbits pack")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of the engine (default: 1)")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="images at a time (default: 1)")
    parser.add_argument(
        "--engine", choices=("auto", "avx512", "avx2", "neon", "portable", "numpy"), default="auto",
        help="what runs: the best there is (default), the kernels of one instruction set, or numpy",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S", help="how long to measure (default: 2)")
    parser.add_argument("--layers", action="store_true", help="show where the time goes on one thread, step by step")
    parser.add_argument("--torch", action="store_true", help="measure the same network in torch, taking turns")
    parser.add_argument("--json", action="store_true", help="print as one JSON object")


def run(options: argparse.Namespace) -> None:
    """Print milliseconds an image, images a second, the file's bytes and the memory it took."""
    from equalbits.runtime import MAX_THREADS

    for name, least in (("threads", 1), ("batch", 1), ("seconds", 0)):
        if not getattr(options, name) >= least:
            raise ValueError(f"--{name} {getattr(options, name)}: give at least {least}")
    if options.threads > MAX_THREADS:
        raise ValueError(f"--threads {options.threads} must be 1 to {MAX_THREADS}")
    if options.seconds > _LONGEST:
        raise ValueError(f"--seconds {options.seconds:g} must be 0 to {_LONGEST:,}")
    try:
        _measure(options)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate" not in str(error):  # torch's is a RuntimeError
            raise
        raise ValueError(f"--batch {options.batch} does not fit into memory: lower --batch") from None


def _measure(options: argparse.Namespace) -> None:
    import numpy as np

    from equalbits.runtime import read_network

    path = Path(options.file)
    network = read_network(path)
    try:
        images = np.random.default_rng(0).standard_normal((options.batch, *network.input_shape)).astype(np.float32)
    except ValueError:  # more than numpy can count
        raise MemoryError from None
    name, call = _engine(network, images, options)
    if options.layers and not name.startswith("native"):
        raise ValueError("--layers: the steps are those of the native engine, and numpy would run: leave --layers out")
    free = _free_cores() if options.torch else 0.0  # before any thread of ours runs
    call()
    facts: dict[str, Any] = {"file": str(path), "bytes": path.stat().st_size, "engine": name}
    facts |= {"threads": options.threads, "batch": options.batch, "peak_memory_bytes": _peak_memory()}
    calls = {"ms_per_image": call}
    if options.torch:
        from equalbits.cli.bench_torch import torch_call

        calls["torch_ms_per_image"] = torch_call(network, images, options.threads)
    for what, taken in _take_turns(calls, options.seconds).items():
        facts[what] = {"median": statistics.median(taken) / options.batch, "least": min(taken) / options.batch}
    if options.torch:
        facts["busy"] = free < options.threads or any(
            facts[what]["median"] > 2 * facts[what]["least"] for what in calls
        )
    facts["images_per_second"] = 1e3 / facts["ms_per_image"]["median"]
    facts["rounds"] = len(taken)
    if options.layers:
        facts["layers"] = _layers(network, images[0], name, options.seconds)
    print(json.dumps(facts) if options.json else _as_text(facts))


def _engine(network: "Network", images: "NDArray[np.float32]", options: argparse.Namespace) -> tuple[str, Call]:
    """The engine's name, and a call that answers the images once."""
    from equalbits.runtime import NativeEngine, PackedModel, native

    if options.engine in ("auto", "numpy"):
        model = PackedModel(network, threads=options.threads, engine=options.engine)
        return model.engine, lambda: model(images)
    known = [] if native.BUILT is None else native.BUILT.instruction_sets()
    if options.engine not in known:
        raise ValueError(f"--engine {options.engine}: this machine has {', '.join(['auto', *known, 'numpy'])}")
    engine = NativeEngine(network, options.engine)
    return f"native ({options.engine})", lambda: engine(images, options.threads)


def _take_turns(calls: dict[str, Call], seconds: float) -> dict[str, list[float]]:
    """The milliseconds of every call, in turns until the time is over; three rounds at least, after one to warm up."""
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


def _layers(network: "Network", image: "NDArray[np.float32]", engine: str, seconds: float) -> list[dict[str, Any]]:
    """The milliseconds of each step on one thread: the least of many rounds, since all that disturbs adds to them."""
    from equalbits.runtime import native
    from equalbits.runtime.lower import lower

    assert native.BUILT is not None
    recipe, answer = lower(network, native.BUILT.FIELDS, native.BUILT.KINDS)
    values, steps, tensors = recipe.tables()
    plan = native.BUILT.Plan(values, steps, tensors, answer, engine[len("native (") : -1])
    rounds: list[list[float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(rounds) < 3:
        rounds.append(plan.time(image.reshape(-1)))
    least = [1e3 * min(taken) for taken in zip(*rounds, strict=True)]
    return [{"step": name, "ms": ms} for name, ms in zip(_names(network, steps), least, strict=True)]


#: What a step multiplies, where its weights are bits.
_WEIGHTS = {"CONV_BITS": "bits by bits", "CONV_SIGNED": "bits by reals", "LINEAR_BYTES": "bits by bytes"}


def _names(network: "Network", steps: "NDArray[np.int64]") -> list[str]:
    """What each step is: its layer's name where it has weights, else its kind."""
    from equalbits.runtime import native
    from equalbits.runtime.audit import layer_name

    assert native.BUILT is not None
    kinds = {number: name for name, number in native.BUILT.KINDS.items()}
    weighted = iter(i for i, operation in enumerate(network.operations) if operation.kind in ("conv", "linear"))
    found = []
    for row in steps:
        kind = kinds[int(row[native.BUILT.FIELDS["KIND"]])]
        if kind.startswith("CONV") or kind == "LINEAR_BYTES":
            by = _WEIGHTS.get(kind, "real weights")
            found.append(f"{layer_name(network, next(weighted))} ({by})")
        else:
            found.append(kind.lower())
    return found


def _peak_memory() -> int | None:
    """The most bytes this process has held at once; None where the system does not say.

    What getrusage says on Linux is no less than whoever started this process had.
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
        f"{ms['median']:.3f} ms an image (median; least {ms['least']:.3f}), {facts['images_per_second']:,.0f} a second",
    ]
    if facts["peak_memory_bytes"]:
        lines.append(f"{facts['peak_memory_bytes'] / 1e6:,.0f} MB of memory at most, Python and all")
    if other := facts.get("torch_ms_per_image"):
        lines.append(_beside(ms, other, busy=facts["busy"], threads=facts["threads"]))
    return "\n".join([*lines, *_table(facts.get("layers", []))])


def _beside(
    ours: dict[str, float], torch: dict[str, float], *, busy: bool, threads: int = 1, cores: int | None = None
) -> str:
    """Torch's times, and how they compare: by the least where the machine has other work, which medians then hold.

    Torch's threads spin while they wait. They stay so: asleep they take up to twice as long on a quiet machine. But
    where others take their cores even the least of their times may be a hundred times too long.
    """
    ratio = torch["least"] / ours["least"] if busy else torch["median"] / ours["median"]
    cores = cores or os.cpu_count() or 1
    crowd = f"{threads} threads share {cores} core{'s' * (cores > 1)}, so lower --threads"
    why = crowd if threads > cores else "the machine is busy, so measure again when it is not"
    by = f" by the least: {why}" if busy else ""
    times = f"{torch['median']:.3f} ms (median; least {torch['least']:.3f})"
    return f"torch, the same network in float32: {times}, {ratio:.1f} times as long{by}"


def _free_cores(loadavg: Path = Path("/proc/loadavg"), cores: int | None = None) -> float:
    """How many cores nobody else uses just now, this process's own among them; endless where the system is silent."""
    others = []
    for _ in range(5):
        try:
            others.append(int(loadavg.read_text().split()[3].partition("/")[0]) - 1)  # 1 is this process itself
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
