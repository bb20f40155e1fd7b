"""Measure what training a binary ResNet-18 costs beside the real one: time of a step, peak memory, and the losses.

    python benchmarks/training_cost.py RESULT.json --seconds 520    # one call on a GPU, under 9 minutes

It prints one table, a row for each way: ms per step, peak memory, both over those of the real net at the same speed,
and how far the losses of 200 steps are from those of the plain path. A way is a net, its switches and a speed.

* real: the same network with real weights and ReLU blocks; 1w1a: bi-half weights and the sign of the inputs. "small"
  computes its convolutions again in the backward pass, "again100" those whose outputs have at least 100 values per
  weight, "never" none (``equalbits.nn.fused_norm.RECOMPUTE_FROM``). "small" also updates latents in the backward
  pass, unless it is "kept"; "early" does so alone (``equalbits.training.optimizer.UPDATES_IN_BACKWARD``). "8bits"
  keeps inputs of fused norms in 8 bits (``nn.fused_norm.KEEP_IN_8_BITS``), "pool" a byte per output of the stem's max
  pool, and "averages" averages of shortcuts alone (``models.pooling``).
* best: the net of the recipe ``cifar10-resnet18-best``, with RSign and RPReLU; "unfused" computes its norms,
  activations and signs one by one, "taught" adds the loss of a real teacher.
* captured: bfloat16, compiled, each step one CUDA graph. plain: eager, bfloat16 autocast.
* imagenet: 224×224 images at batch 256. live: the largest allocations at the peak, by the line that made them.

"equal" compares the first loss with that of 1w1a, or best, to the bit; losses of best are compared with those of best
unfused, plain. Captured steps should compute convolutions again by default from the least number of values at which a
step is at most 1.05 × as slow. Ways run in the order of their importance until the time is over, alternating.
"""

import argparse
import functools
import gc
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import gpu_step
import torch
from live_memory import allocate_workspaces, live_at_peak
from torch import Tensor, nn

from equalbits.data import Loader, load_dataset
from equalbits.models import create_model, pooling, residual_blocks
from equalbits.nn import SignActivation, fused_norm, recompute_convolutions_
from equalbits.training import DistillConfig, TrainConfig, make_optimizer, optimizer
from equalbits.training.cuda_graph import CudaGraphSteps
from equalbits.training.evaluation import Meter
from equalbits.training.loop import TrainStep
from equalbits.training.losses import training_loss

PARTS = ("ways", "imagenet")
CAPTURED = "real|1w1a|1w1a early|1w1a 8bits|1w1a small|1w1a small 8bits|1w1a 8bits early|1w1a again20"
CAPTURED += "|best|best unfused|best taught|best small"
PLAIN = "real|1w1a|best|best unfused|best small|1w1a small|1w1a never"
WAYS = [f"{net}, captured" for net in CAPTURED.split("|")]
WAYS += [f"{net}, plain" for net in PLAIN.split("|")]
LARGE_WAYS = "real|1w1a|1w1a averages|1w1a averages 8bits pool early|1w1a small averages 8bits pool|real pool"
IMAGENET = [f"{net}, captured" for net in LARGE_WAYS.split("|")] + ["real, plain", "1w1a, plain"]
LOSS_STEPS = 200
DEVICE = "cuda"
allocate_workspaces_once = functools.cache(allocate_workspaces)
DEFAULTS = dict(fused_norm.RECOMPUTE_FROM)
CAN_FUSE = residual_blocks.can_fuse


class Case(NamedTuple):
    """A net and data: CIFAR's shape at batch 128, or ImageNet's at batch 256."""

    net: str
    classes: int
    side: int
    batch: int

    def loader(self, steps: int) -> Loader:
        """Return random images of this shape, on the device."""
        name = f"synthetic:3x{self.side}x{self.side}:{self.classes}:{self.batch * steps}"
        data = load_dataset(name, split="train", device=DEVICE)
        return Loader(data, batch_size=self.batch, shuffle=True, augment=self.side == 32)


CIFAR, LARGE = Case("resnet18", 10, 32, 128), Case("imagenet_resnet18", 1000, 224, 256)


def act_as(way: str) -> None:
    """Set the switches that a way names, and the others to their defaults."""
    residual_blocks.can_fuse = (lambda *_: False) if "unfused" in way else CAN_FUSE
    fused_norm.RECOMPUTE_FROM = dict(DEFAULTS)
    optimizer.UPDATES_IN_BACKWARD = () if "kept" in way else ("normal", "small") if "early" in way else ("small",)
    fused_norm.KEEP_IN_8_BITS = "8bits" in way
    pooling.POOLS_IN_BYTES, pooling.AVERAGED_SHORTCUTS = "pool" in way, "averages" in way
    for word in way.split(",")[0].split()[1:]:
        if word == "never" or word.startswith("again"):
            least = math.inf if word == "never" else float(word.removeprefix("again"))
            fused_norm.RECOMPUTE_FROM = dict.fromkeys(DEFAULTS, least)


def make_model(way: str, case: Case = CIFAR) -> nn.Module:
    torch.manual_seed(0)
    quantizers: dict[str, Any] = {"weight_quantizer": None}
    if way.startswith("best"):
        quantizers = {"weight_quantizer": "bihalf", "input_quantizer": "rsign", "rprelu": True}
    elif not way.startswith("real"):
        quantizers = {"weight_quantizer": "bihalf", "input_quantizer": SignActivation()}
    model = create_model(case.net, num_classes=case.classes, **quantizers)
    recompute_convolutions_(model, "small" in way)
    return model


class Run:
    """The training steps of one way, ready to run."""

    def __init__(self, way: str, case: Case, loader: Loader) -> None:
        self.way, self.loader = way, loader
        self.batch: tuple[Tensor, Tensor] | None = None
        act_as(way)
        speed = way.split(", ")[1]
        distill = DistillConfig(weight=0.9, temperature=4.0) if "taught" in way else DistillConfig()
        memory: Any = "small" if "small" in way else "normal"
        config = TrainConfig(epochs=1, speed=speed, precision="bf16", memory=memory, distill=distill)  # type: ignore[arg-type]
        model = make_model(way, case).to(DEVICE)
        if speed == "captured":
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        made = make_optimizer(model, config.optimizer, capture=speed == "captured")
        for group in made.param_groups:
            group["lr"] = group["lr"] * 0.2  # so that 200 steps on noise stay finite
        self.meter = Meter(torch.device(DEVICE))
        teacher = make_model("real", case).to(DEVICE) if "taught" in way else None
        self.ended = ExitStack()  # never left: it would put the teacher back into training mode
        loss = self.ended.enter_context(training_loss(model, teacher, config))
        self.step = TrainStep(model.train(), made, loss, config, self.meter)
        self.graph = CudaGraphSteps([self.step], [loader]) if speed == "captured" else None

    def steps(self, count: int) -> None:
        """Take the first ``count`` batches of the loader's first epoch."""
        if self.graph is not None:
            self.graph.counter.zero_()
            for _ in range(count):
                self.graph.graph.replay()
            return
        act_as(self.way)
        for number, batch in enumerate(self.loader.epoch(0)):
            if number == count:
                return
            self.step(*batch)

    def timed(self) -> None:
        """Take STEPS steps, eager ones without the time to make batches."""
        if self.graph is not None:
            self.steps(gpu_step.STEPS)
            return
        act_as(self.way)
        self.batch = self.batch or next(iter(self.loader.epoch(0)))
        for _ in range(gpu_step.STEPS):
            self.step(*self.batch)

    def losses(self) -> list[float]:
        """Return the loss of the first step, and the mean of every 20 steps."""
        self.steps(1)
        first = self.meter.sums.tolist()
        rows = [first]
        for _ in range(LOSS_STEPS // gpu_step.STEPS):
            self.steps(gpu_step.STEPS)
            rows.append(self.meter.sums.tolist())
        return [mean_loss([0.0] * 4, first)] + [mean_loss(a, b) for a, b in pairwise(rows)]


def mean_loss(before: list[float], after: list[float]) -> float:
    """Return the mean loss between two readings of a meter: correct, images, correct in the top 5, and loss."""
    return (after[3] - before[3]) / (after[1] - before[1])


def build(way: str, case: Case, loader: Loader) -> tuple[Run, int, list[str]]:
    """Return the run, its peak bytes with a few steps and workspaces, and the largest allocations at the peak."""
    workspaces = allocate_workspaces_once()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python")
    run = Run(way, case, loader)
    if run.graph is None:
        run.steps(3)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before + (workspaces if run.graph is None else 0)
    traces = torch.cuda.memory._snapshot()["device_traces"]
    torch.cuda.memory._record_memory_history(None)
    if run.graph is None:  # back to the state before the first step
        run = Run(way, case, loader)
    return run, peak, live_at_peak([event for trace in traces for event in trace])


def measure_ways(names: list[str], rounds: int, seconds: float) -> dict[str, Any]:
    """Build as many ways as the time allows, then time them alternating."""
    loader, end = CIFAR.loader(gpu_step.STEPS + 1), time.monotonic() + 0.8 * seconds
    runs: dict[str, Callable[[], None]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for way in names:
        if time.monotonic() > end:
            break
        began = time.monotonic()
        try:
            run, peak, live = build(way, CIFAR, loader)
            losses = run.losses()
        except Exception as error:  # one way must not end the others
            rows[way] = {"failed": f"{type(error).__name__}: {error}"[:400]}
            print(f"{way}: {rows[way]['failed']}", flush=True)
            continue
        rows[way] = {"peak": peak, "losses": losses, "live": live, "build_s": round(time.monotonic() - began, 1)}
        runs[way] = run.timed
        print(f"{way}: {peak / 2**20:.0f} MiB, built in {rows[way]['build_s']} s", flush=True)
    for way, times in gpu_step.measured(runs, rounds)["all_ms"].items():
        rows[way] |= {"ms": statistics.median(times), "all_ms": times}  # type: ignore[type-var]
    return rows


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Return the table of all ways."""
    lines = [f"{'way':<38}{'ms':>8}{'x real':>8}{'MiB':>8}{'x real':>8}  first loss   losses off plain by"]
    for way, row in rows.items():
        speed = way.split(", ")[1]
        net, twin = ("best", "best unfused") if way.startswith("best") else ("1w1a", "1w1a")
        real, base = rows.get(f"real, {speed}", {}), rows.get(f"{net}, {speed}", {})
        reference = rows.get(f"{twin}, plain", {}).get("losses")
        if "failed" in row or "ms" not in row or "ms" not in real:
            continue
        row["ms_of_real"], row["peak_of_real"] = row["ms"] / real["ms"], row["peak"] / real["peak"]
        row["first_equal"] = base.get("losses", [None])[0] == row["losses"][0]
        numbers = f"{row['ms']:8.3f}{row['ms_of_real']:8.3f}{row['peak'] / 2**20:8.0f}{row['peak_of_real']:8.3f}"
        off = ""
        if reference and not way.startswith("real") and "taught" not in way:
            pairs = zip(row["losses"][1:], reference[1:], strict=True)
            row["losses_off"] = max(abs(mine - plain) / plain for mine, plain in pairs)
            off = f"{'equal' if row['first_equal'] else 'NOT equal':<13}{row['losses_off']:.4f}"
        lines.append(f"{way:<38}{numbers}  {off}")
    return "\n".join(lines)


def measure_large(seconds: float) -> dict[str, Any]:
    """Return peak bytes and ms per step for images of ImageNet's size."""
    loader, end, rows = LARGE.loader(4), time.monotonic() + seconds, {}
    for way in IMAGENET:
        if time.monotonic() > end:
            break
        try:
            run, peak, live = build(way, LARGE, loader)
            run.steps(3)
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(3):
                run.steps(3)
            stop.record()
            stop.synchronize()
            rows[way] = {"peak": peak, "live": live, "ms": start.elapsed_time(stop) / 9}
        except Exception as error:
            rows[way] = {"failed": f"{type(error).__name__}: {error}"[:400]}
            continue
        real = rows.get(f"real, {way.split(', ')[1]}")
        ratios = f"{rows[way]['ms'] / real['ms']:.3f} x, {peak / real['peak']:.3f} x of real" if real else ""
        print(f"224: {way:<30}{rows[way]['ms']:9.2f} ms{peak / 2**20:9.0f} MiB   {ratios}", flush=True)
        del run
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", nargs="?", help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=520, help="time for everything")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"from {', '.join(PARTS)}")
    parser.add_argument("--ways", default="|".join(WAYS), help="separated by |")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("training_cost: there is no CUDA device to measure")
    parts, end = gpu_step.named(options.parts, PARTS), time.monotonic() + options.seconds
    found: dict[str, Any] = {
        "what": "cost of training ResNet-18, binary and real",
        "device": torch.cuda.get_device_name(),
    }
    found |= {"torch": torch.__version__, "python": platform.python_version(), "rounds": options.rounds}
    found["workspaces"] = allocate_workspaces_once()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    for part in parts:
        left = end - time.monotonic()
        if part == "ways":
            found[part] = measure_ways(options.ways.split("|"), options.rounds, 0.75 * left)
            print(table(found[part]), flush=True)
            for way in ("real, captured", "1w1a, captured", "1w1a small, captured", "1w1a, plain"):
                largest = found[part].get(way, {}).get("live", [])[:8]
                print("\n  ".join([f"live at the peak of {way}:", *largest]), flush=True)
        else:
            found[part] = measure_large(left)
        if options.result:  # after each part, since each takes minutes
            Path(options.result).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
