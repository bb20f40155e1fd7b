"""Measure the time to binarize all layers of a network on a GPU: our kernels, other rankings, and lower bounds.

    python benchmarks/gpu_quantizer.py result.json [--rounds 30]

Timed by CUDA events. The variants alternate within each round, once eager and once replayed from a CUDA graph, where
launches cost almost nothing. A variant that synchronizes with the host cannot be captured.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equalbits.functional import transport_by_sorting, transport_symbols

NETS = {
    "512x4608": [(512, 4608)],
    "256x16384": [(256, 16384)],
    "1x4194304": [(1, 256 * 16384)],  # a whole layer, as pruning ranks it
    "Conv2": [(64, 27), (64, 576), (256, 16384), (256, 256), (10, 256)],
    "Conv8": [
        (64, 27), (64, 576), (128, 576), (128, 1152), (256, 1152), (256, 2304), (512, 2304), (512, 4608),
        (256, 2048), (256, 256), (10, 256),
    ],
    "ResNet-18": (
        [(64, 576)] * 4 + [(128, 576)] + [(128, 1152)] * 3 + [(256, 1152)] + [(256, 2304)] * 3 + [(512, 2304)]
        + [(512, 4608)] * 3
    ),
}  # fmt: skip
INNER = 10  # calls between two events


def released(weights: Tensor) -> Tensor:
    """Sort on the device; build the ±1 in sorted order on the host and copy them, as the released code does."""
    filters, connections = weights.shape
    order = weights.sort(dim=1).indices
    template = np.ones((filters, connections))
    template[:, : connections // 2] = -1
    return torch.zeros_like(weights).scatter_(1, order, torch.from_numpy(template).float().to(weights.device))


def device_sort(weights: Tensor) -> Tensor:
    """Do the same without the host: a stable sort, with the ±1 built on the device."""
    filters, connections = weights.shape
    order = weights.sort(dim=1, stable=True).indices
    template = torch.ones(connections, device=weights.device)
    template[: connections // 2] = -1
    return torch.empty_like(weights).scatter_(1, order, template.expand(filters, connections))


def by_kthvalue(weights: Tensor) -> Tensor:
    """Take the threshold from ``torch.kthvalue``; miscounts rows with ties at the threshold."""
    threshold = weights.kthvalue(weights.shape[1] // 2, dim=1, keepdim=True).values
    return torch.where(weights > threshold, 1.0, -1.0)


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "released": released,
    "device sort": device_sort,
    "kthvalue": by_kthvalue,
    "ours": transport_symbols,
    "sign": lambda weights: torch.where(weights >= 0, 1.0, -1.0),
    "copy": torch.clone,
}


def captured(way: Callable[[Tensor], Tensor], layers: list[Tensor]) -> Callable[[], object] | None:
    """Return a graph replay of one pass over all layers, or None if the variant synchronizes with the host."""
    if way is released:
        return None
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for weights in layers:
                way(weights)
    except RuntimeError:  # some torch versions synchronize inside sort
        torch.cuda.synchronize()
        return None
    return graph.replay


def microseconds(call: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(INNER):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3 / INNER


def measure(shapes: list[tuple[int, int]], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the microseconds of one pass over all layers for each variant, eager and captured."""
    layers = [torch.randn(shape, device="cuda") * 0.05 for shape in shapes]
    calls: dict[tuple[str, str], Callable[[], object]] = {}
    for name, way in WAYS.items():
        calls[name, "eager"] = lambda way=way: [way(weights) for weights in layers]
        for _ in range(3):
            calls[name, "eager"]()
        torch.cuda.synchronize()
        if (replay := captured(way, layers)) is not None:
            calls[name, "captured"] = replay
    times: dict[str, dict[str, list[float]]] = {name: {} for name in WAYS}
    for _ in range(rounds):
        for (name, how), call in calls.items():
            times[name].setdefault(how, []).append(microseconds(call))
    return times


def exact_on_ties(way: Callable[[Tensor], Tensor]) -> bool:
    rows = torch.randn(64, 576, device="cuda").mul(2).round()
    return torch.equal(way(rows), transport_by_sorting(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    chosen = parser.parse_args()
    results = {net: measure(shapes, chosen.rounds) for net, shapes in NETS.items()}
    exact = {name: exact_on_ties(way) for name, way in WAYS.items() if name not in ("sign", "copy")}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: microseconds, median")
    for how in ("eager", "captured"):
        print(f"\n{how:12}" + "".join(f"{name:>13}" for name in WAYS))
        for net, times in results.items():
            cells = (
                f"{statistics.median(times[name][how]):13.1f}" if how in times[name] else f"{'-':>13}" for name in WAYS
            )
            print(f"{net:12}" + "".join(cells))
    print("\nexact on ties: " + ", ".join(f"{name} {'yes' if yes else 'no'}" for name, yes in exact.items()))
    made_with = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "rounds": chosen.rounds}
    record = {"made_with": made_with, "layers": NETS, "exact_on_ties": exact, "microseconds": results}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
