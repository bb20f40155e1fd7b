"""Count the peak memory of eager training steps of a ResNet-18, real and binary, on a CPU: a second per way.

    python benchmarks/counted_eager_memory.py [--batch 128] [--ways "real|1w1a|1w1a small"] [--live 20]; needs Triton

A step runs the code of a GPU on the CPU, up to its Triton kernels, which do nothing, as in ``eager_host_time.py``;
torch's convolutions only allocate what they return. So torch allocates what it would allocate on a GPU, beside the
workspaces of cuDNN and cuBLAS. ``--live`` lists what is allocated at the peak, by the lines that did it.
"""

import argparse
import bisect
import json
import math
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import eager_host_time
import torch
import training_ways
from counted_memory import MIB, use_products_of_a_gpu
from torch import Tensor

from equalbits.training import loop

WAYS = "real|1w1a|1w1a small|1w1a never|best|best small"


def act_as_on_a_gpu() -> None:
    """Make eager code take the paths of a GPU, and convolutions do nothing but allocate."""
    eager_host_time.run_as_on_a_gpu()
    use_products_of_a_gpu()
    training_ways.CAN_FUSE = eager_host_time.can_fuse
    training_ways.DEVICE = "cpu"
    loop.math = SimpleNamespace(isfinite=lambda _: True)  # type: ignore[attr-defined, assignment]  # values have no meaning
    fused = torch.optim.SGD
    torch.optim.SGD = lambda *given, **settings: fused(*given, **{**settings, "fused": True})  # type: ignore[assignment, misc]
    for name, function in (("convolution", convolve), ("convolution_backward", gradients)):
        LIBRARY.impl(name, function, "CPU")


LIBRARY = torch.library.Library("aten", "IMPL")


def convolve(
    x: Tensor, weight: Tensor, _: Tensor | None, stride: Sequence[int], padding: Sequence[int], *__: Any
) -> Tensor:
    form, kernel = layout(x, weight), weight.shape[2:]
    x, weight = x.contiguous(memory_format=form), weight.contiguous(memory_format=form)
    size = ((n + 2 * p - k) // s + 1 for n, p, k, s in zip(x.shape[2:], padding, kernel, stride, strict=True))
    return torch.empty((len(x), len(weight), *size), dtype=x.dtype, memory_format=form)


def gradients(g: Tensor, x: Tensor, weight: Tensor, *settings: Any) -> tuple[Tensor | None, Tensor | None, None]:
    (of_x, of_weight, _), form = settings[-1], layout(x, weight)
    g = g.contiguous(memory_format=form)
    x, weight = (each.contiguous(memory_format=form) for each in (x, weight))
    return torch.empty_like(x) if of_x else None, torch.empty_like(weight) if of_weight else None, None


def layout(*tensors: Tensor) -> torch.memory_format:
    """Return the memory format that cuDNN chooses."""
    strided = any(not t.is_contiguous() and t.is_contiguous(memory_format=torch.channels_last) for t in tensors)
    return torch.channels_last if strided else torch.contiguous_format


def peak_of(way: str, batch: int, *, lines: bool = False) -> tuple[int, Counter[tuple[int, str]]]:
    """Return the peak bytes of the second step, and what was allocated then: sizes, lines and their numbers."""
    case = training_ways.CIFAR._replace(batch=batch)
    loader = case.loader(2)
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, profile_memory=True, with_stack=lines) as profile:
        training_ways.Run(f"{way}, plain", case, loader)
    with tempfile.TemporaryDirectory() as folder:
        profile.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
    changes = [(e["ts"], e["args"]["Addr"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]"]
    calls = sorted((e["ts"], e["ts"] + e["dur"], e["name"]) for e in events if e.get("ph") == "X" and "dur" in e)
    live: dict[int, tuple[int, float]] = {}
    now = most = 0
    for at, address, size in sorted(changes):
        if size > 0:
            live[address] = size, at
            now += size
        else:
            now -= live.pop(address, (0, 0))[0]
        if now > most:
            most, kept = now, list(live.values())
    return most, Counter((size, place_of(calls, at)) for size, at in kept if lines)


def place_of(calls: list[tuple[float, float, str]], at: float) -> str:
    """Return the innermost line of this package that was running, and the operator."""
    first = bisect.bisect_right(calls, (at, math.inf, ""))
    names = [name for _, end, name in calls[max(0, first - 4000) : first] if end >= at]
    lines = [Path(name).name for name in names if "equalbits/" in name]
    return " < ".join((names[-1:] + lines[:-3:-1]) or ["before"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=training_ways.CIFAR.batch)
    parser.add_argument("--ways", default=WAYS, help="separated by |")
    parser.add_argument("--live", type=int, default=0, help="number of groups of tensors to list at each peak")
    options = parser.parse_args()
    act_as_on_a_gpu()
    real = 0
    print(f"{'plain, MiB':<28}{'peak':>8}{'x real':>8}")
    for way in options.ways.split("|"):
        peak, live = peak_of(way, options.batch, lines=options.live > 0)
        real = real or peak
        print(f"{way:<28}{peak / MIB:8.1f}{peak / real:8.3f}", flush=True)
        largest = sorted(live.items(), key=lambda item: -item[0][0] * item[1])[: options.live]
        for (size, place), count in largest:
            print(f"  {size / MIB:8.2f} x {count:3}  {place}")


if __name__ == "__main__":
    main()
