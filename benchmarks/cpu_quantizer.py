"""Compare selection with sorting on a CPU over all 16 binary layers of a CIFAR ResNet-18, and training steps of bi-half
with those of sign.

    python benchmarks/cpu_quantizer.py result.json [--rounds 15] [--threads 2]

The variants alternate within each round, so that other load slows them alike; the result is the ratio within a round.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from cpu_inference import processor
from torch import Tensor

from equalbits.data import Loader, load_dataset
from equalbits.functional import transport_by_sorting, transport_symbols
from equalbits.models import create_model
from equalbits.training import TrainConfig, make_optimizer
from equalbits.training.evaluation import Meter
from equalbits.training.loop import TrainStep
from equalbits.training.losses import label_loss

RESNET18 = (
    [(64, 576)] * 4 + [(128, 576)] + [(128, 1152)] * 3 + [(256, 1152)] + [(256, 2304)] * 3 + [(512, 2304)]
    + [(512, 4608)] * 3
)  # fmt: skip

STEPS = {"conv2": 128, "conv4": 128, "resnet18": 32}  # net and batch

WAYS: dict[str, Callable[[Tensor], object]] = {
    "stable sort": lambda weights: weights.sort(dim=1, stable=True),
    "sort and scatter": transport_by_sorting,
    "selection": transport_symbols,
}


def milliseconds(way: Callable[[Tensor], object], layers: list[Tensor]) -> float:
    start = time.perf_counter()
    for weights in layers:
        way(weights)
    return (time.perf_counter() - start) * 1e3


def measure(rounds: int) -> dict[str, list[float]]:
    layers = [torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.05 for shape in RESNET18]
    for weights in layers:
        assert torch.equal(transport_symbols(weights), transport_by_sorting(weights))
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, way in WAYS.items():
            times[name].append(milliseconds(way, layers))
    return times


def take_steps(net: str, batch: int, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of whole training steps in float32, alternating sign and bi-half."""
    loader = Loader(load_dataset(f"synthetic:3x32x32:10:{batch}", split="train"), batch_size=batch)
    images = next(loader.epoch(0))
    steps = {}
    for method in ("sign", "bihalf"):
        config = TrainConfig(epochs=1, speed="plain", precision="fp32")
        model = create_model(net, num_classes=10, weight_quantizer=method).train()
        optimizer = make_optimizer(model, config.optimizer)
        steps[method] = TrainStep(model, optimizer, label_loss(config), config, Meter(torch.device("cpu")))
        steps[method](*images)
    times: dict[str, list[float]] = {method: [] for method in steps}
    for _ in range(rounds):
        for method, step in steps.items():
            start = time.perf_counter()
            step(*images)
            times[method].append((time.perf_counter() - start) * 1e3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    times = measure(chosen.rounds)
    rows = {}
    print(f"{'way':18}{'ms, median':>12}{'least':>9}{'most':>9}{'× quicker than a stable sort':>32}")
    for name, taken in times.items():
        ratios = [sort / own for sort, own in zip(times["stable sort"], taken, strict=True)]
        low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
        rows[name] = {"milliseconds": taken, "ratio": {"median": middle, "least": low, "most": high}}
        spread = f"{middle:.2f} ({low:.2f} to {high:.2f})"
        print(f"{name:18}{statistics.median(taken):12.1f}{min(taken):9.1f}{max(taken):9.1f}{spread:>32}")
    steps = {}
    for net, batch in STEPS.items():
        taken = take_steps(net, batch, chosen.rounds)
        ratios = [own / sign for sign, own in zip(taken["sign"], taken["bihalf"], strict=True)]
        low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
        steps[net] = {"batch": batch, "milliseconds": taken, "ratio": {"median": middle, "least": low, "most": high}}
        medians = " and ".join(f"{method} {statistics.median(found):.0f} ms" for method, found in taken.items())
        print(f"a step of {net}, batch {batch}: {medians}, {middle:.3f} ({low:.3f} to {high:.3f}) times the sign's")
    made_with = {"torch": torch.__version__, "threads": chosen.threads, "processor": processor()}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(
        json.dumps({"made_with": made_with, "layers": RESNET18, "ways": rows, "steps": steps}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
