"""``equalbits bench``: measure the speed of a packed file. Needs torch only for ``--torch``."""

import argparse
import json
import math
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equalbits as eb
from equalbits._text import escape_control_chars
from equalbits.cli.arguments import add_json
from equalbits.cli.errors import is_out_of_memory
from equalbits.cli.terminal import say

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Call = Callable[[], object]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a packed file, written by equalbits pack, or zoo:NAME")
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
    for name, least, most in (("threads", 1, eb.runtime.MAX_THREADS), ("batch", 1, None), ("seconds", 0, 3600)):
        value = getattr(options, name)
        if not value >= least:
            raise ValueError(f"--{name} {value:g} must be at least {least}")
        if most and value > most:
            raise ValueError(f"--{name} {value:g} must be {least} to {most}")
    try:
        facts = _measure(options)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise ValueError(f"--batch {options.batch} does not fit into memory: lower --batch") from None
    say(json.dumps(facts) if options.json else _as_text(facts))


def _measure(options: argparse.Namespace) -> dict[str, Any]:

    path = eb.runtime.find_packed(options.file)
    network = eb.runtime.read_network(path)
    try:
        images = random_inputs(network, options.batch)
    except ValueError:  # more elements than numpy can index
        raise MemoryError from None
    engine, call = _make_call(network, images, options)
    if options.layers and not engine.startswith("native"):
        raise ValueError("--layers needs the native engine, but numpy would run: omit --layers")
    call()
    facts: dict[str, Any] = {"file": options.file, "bytes": path.stat().st_size, "engine": engine}
    facts |= {"threads": options.threads, "batch": options.batch, "peak_memory_bytes": _peak_memory()}
    calls = {"ms_per_image": call}
    if options.torch:
        from equalbits.cli.bench_torch import torch_call

        calls["torch_ms_per_image"] = torch_call(network, images, options.threads)
    for name, times in _measure_alternately(calls, options.seconds).items():
        facts[name] = {"median": statistics.median(times) / options.batch, "least": min(times) / options.batch}
    if options.torch:
        facts["busy"] = any(facts[name]["median"] > 2 * facts[name]["least"] for name in calls)
    facts["images_per_second"] = 1e3 / facts["ms_per_image"]["median"]
    facts["rounds"] = len(times)
    if options.layers:
        facts["layers"] = _time_layers(network, images[0], engine, options.seconds)
    return facts


def random_inputs(network: "eb.runtime.Network", count: int) -> "NDArray[np.float32]":
    """Return images, or named inputs end to end: ids in their range, and normal numbers."""

    import numpy as np

    random = np.random.default_rng(0)
    images = random.standard_normal((count, *network.input_shape)).astype(np.float32)
    start = 0
    for port in network.inputs:
        end = start + math.prod(port.shape)
        if port.below:
            images[..., start:end] = random.integers(0, port.below, (count, 1, 1, end - start))
        start = end
    return images


def _make_call(
    network: "eb.runtime.Network", images: "NDArray[np.float32]", options: argparse.Namespace
) -> tuple[str, Call]:
    """Return the name of the engine, and a function that runs the batch once."""
    if options.engine in ("auto", "numpy"):
        model = eb.runtime.PackedModel(network, threads=options.threads, engine=options.engine)
        return model.engine, lambda: model.run_batch(images) if network.inputs else model(images)
    available = [] if eb.runtime.native.BUILT is None else eb.runtime.native.BUILT.instruction_sets()
    if options.engine not in available:
        raise ValueError(f"--engine {options.engine}: this machine supports {', '.join(['auto', *available, 'numpy'])}")
    engine = eb.runtime.NativeEngine(network, options.engine)
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


#: Operands of a step with binary weights.
_OPERANDS = {"CONV_BITS": "1×1 bit", "CONV_SIGNED": "1×32 bit", "LINEAR_BYTES": "1×8 bit", "CONV_BYTES": "1×8 bit"}
_OPERANDS["CONV_INT8"] = "8×8 bit"


def _time_layers(
    network: "eb.runtime.Network", image: "NDArray[np.float32]", engine: str, seconds: float
) -> list[dict[str, Any]]:
    """Return the milliseconds of each step on one thread: the minimum over rounds, since noise only adds time.

    A step is named by its layer if it has weights, else by its kind.
    """
    plan = eb.runtime.NativeEngine(network, engine[len("native (") : -1])
    rounds: list[list[float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(rounds) < 3:
        rounds.append(plan.time_steps(image))
    weighted = iter(i for i, operation in enumerate(network.operations) if operation.kind in ("conv", "linear"))
    layers = []
    for kind, times in zip(plan.step_kinds, zip(*rounds, strict=True), strict=True):
        name = kind.lower()
        if kind.startswith("CONV") or kind == "LINEAR_BYTES":
            name = f"{network.layer_name(next(weighted))} ({_OPERANDS.get(kind, '32×32 bit')})"
        layers.append({"step": name, "ms": 1e3 * min(times)})
    return layers


def _peak_memory() -> int | None:
    """Return the peak memory of this process in bytes; None where there is no /proc.

    getrusage would include the peak of the parent process.
    """
    try:
        found = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return 1024 * int(found[1]) if found else None


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
    if torch := facts.get("torch_ms_per_image"):
        # Torch's threads spin while they wait: where other processes use the cores, its median says little.
        compared = "least" if facts["busy"] else "median"
        note = " (ratio of minima: the machine is busy; measure again when it is idle)" if facts["busy"] else ""
        times = f"{torch['median']:.3f} ms per image (median; minimum {torch['least']:.3f})"
        ratio = f"{torch[compared] / ms[compared]:.1f} times as long{note}"
        lines.append(f"same network in torch, float32: {times}, {ratio}")
    layers = [(escape_control_chars(layer["step"]), layer["ms"]) for layer in facts.get("layers", [])]
    width, total = max((len(name) for name, _ in layers), default=0), sum(ms for _, ms in layers) or 1.0
    lines += [f"{name:{width}} {ms:9.3f} ms {ms / total:6.1%}" for name, ms in layers]
    return "\n".join(lines)
