"""Measure an optimizer step on a GPU: the released code's method, full precision, sign and bi-half, alternating.

    python benchmarks/gpu_step.py [RESULT.json] [--nets conv2,resnet18-1w1a] [--rounds 7] [--ways bihalf,mpt]

* released: our re-implementation of the released code: sort on the device; the template of ±1 and the zeros that it is
  scattered into are made on the host and copied at every forward pass; float32 with TF32 allowed, eager, plain SGD. Its
  time depends on the host as well as on the GPU.
* the others: bfloat16 autocast, channels_last, compiled; the whole step with its batch and augmentation is one CUDA
  graph. "real" is the same network with real weights (and, for 1w1a, real activations), captured the same way.
"""

import argparse
import gc
import json
import platform
import statistics
import sys
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equalbits.data import Loader, load_dataset
from equalbits.models import create_model
from equalbits.nn import WeightQuantizer
from equalbits.training import TrainConfig, make_optimizer
from equalbits.training.cuda_graph import CudaGraphSteps
from equalbits.training.evaluation import Meter
from equalbits.training.loop import CompiledForward, TrainStep
from equalbits.training.losses import label_loss

#: Network, with its options after +, and its input quantizer.
NETS: dict[str, tuple[str, str | None]] = {
    **{name: (name, None) for name in ("conv2", "conv4", "conv6", "conv8")},
    **{
        f"{name}-{bits}": (name, "sign" if bits == "1w1a" else None)
        for name in ("resnet18", "resnet34")
        for bits in ("1w1a", "1w32a")
    },
    **{f"{name}-best": (f"{name}+rprelu", "rsign") for name in ("resnet18", "vgg_small")},
}
WAYS = ("released", "real", "sign", "bihalf")
PRUNED = ("pruned-bihalf", "pruned-sign", "mpt")  # half of the weights pruned; only on request
STEPS = 20  # between two CUDA events


class ReleasedBiHalf(WeightQuantizer):
    """Set half of each filter to +1 as the released code does."""

    def symbols(self, latents: Tensor) -> Tensor:
        """Sort; scatter a template of ±1 into zeros, both made on the host and copied."""
        rows = latents.detach().flatten(1)
        filters, connections = rows.shape
        order = rows.sort(dim=1).indices
        halves = -torch.ones(filters, connections // 2), torch.ones(filters, connections - connections // 2)
        template = torch.cat(halves, dim=1).to(rows.device)
        symbols = torch.zeros(filters, connections).to(rows.device).scatter_(1, order, template)
        return symbols.view(latents.shape)


def batches() -> Loader:
    """Return random images of CIFAR-10's shape, on the device."""
    data = load_dataset(f"synthetic:3x32x32:10:{128 * (STEPS + 1)}", split="train", device="cuda")
    return Loader(data, batch_size=128, shuffle=True, augment=True)


def ways(net: str, inputs: str | None, loader: Loader, wanted: list[str]) -> dict[str, Callable[[], None]]:
    """Return a function for each variant that runs STEPS steps."""
    makers = {
        "released": lambda: eager(net, ReleasedBiHalf(), inputs, loader),
        "real": lambda: captured(net, None, nn.Identity() if inputs else None, loader),
        "sign": lambda: captured(net, "sign", inputs, loader),
        "bihalf": lambda: captured(net, "bihalf", inputs, loader),
        **{way: partial(captured, net, way, inputs, loader) for way in PRUNED},
    }
    return {way: makers[way]() for way in wanted}


def make_step(
    net: str, weights: object, inputs: object, config: TrainConfig, compiled: CompiledForward | None = None
) -> TrainStep:
    torch.manual_seed(0)
    name, *options = net.split("+")
    quantizers: dict[str, Any] = {"weight_quantizer": weights, "input_quantizer": inputs}
    model = create_model(name, num_classes=10, **quantizers, **dict.fromkeys(options, True)).cuda()
    if config.speed != "plain":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = make_optimizer(model, config.optimizer, capture=config.speed == "captured")
    return TrainStep(model.train(), optimizer, label_loss(config), config, Meter(torch.device("cuda")), compiled)


def eager(net: str, weights: object, inputs: object, loader: Loader) -> Callable[[], None]:
    step = make_step(net, weights, inputs, TrainConfig(epochs=1, speed="plain", precision="tf32"))
    batch = next(loader.epoch(0))

    def run() -> None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        for _ in range(STEPS):
            step(*batch)

    return run


def captured(net: str, weights: object, inputs: object, loader: Loader) -> Callable[[], None]:
    step = make_step(net, weights, inputs, TrainConfig(epochs=1, speed="captured", precision="bf16"))
    steps = CudaGraphSteps([step], [loader])

    def run() -> None:
        steps.counter.zero_()
        for _ in range(STEPS):
            steps.graph.replay()

    return run


def named(text: str, known: Collection[str]) -> list[str]:
    """Parse comma-separated names; exit on an unknown one."""
    names = text.split(",")
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"{Path(sys.argv[0]).stem}: unknown {', '.join(map(repr, unknown))}; choose from {', '.join(known)}")
    return names


def milliseconds(run: Callable[[], None]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", nargs="?", help="JSON file to write")
    parser.add_argument("--nets", default=",".join(NETS), help=f"from {', '.join(NETS)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ways", default=",".join(WAYS), help=f"from {', '.join((*WAYS, *PRUNED))}")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_step: there is no CUDA device to measure")
    loader = batches()
    made = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "python": platform.python_version()}
    facts = {"what": "ms per optimizer step, batch 128", **made, "steps": STEPS, "rounds": options.rounds, **SAID}
    rows: dict[str, dict[str, dict[str, object]]] = {}
    wanted, nets = named(options.ways, (*WAYS, *PRUNED)), named(options.nets, NETS)
    print(f"{'ms a step':<16}" + "".join(f"{way:>14}" for way in wanted) + "   released/ours  ours/real")
    for name in nets:
        rows[name] = measured(ways(*NETS[name], loader, wanted), options.rounds)
        middle = rows[name]["median_ms"]
        ratios = [f"{middle[a] / middle[b]:.3f}" if {a, b} <= set(wanted) else "" for a, b in RATIOS]
        print(f"{name:<16}" + "".join(f"{middle[way]:>14.3f}" for way in wanted) + "".join(f"{r:>14}" for r in ratios))
        sys.stdout.flush()
        if options.result:  # after each network, since each takes minutes
            Path(options.result).write_text(json.dumps({**facts, "nets": rows}, indent=1, ensure_ascii=False) + "\n")


RATIOS = (("released", "bihalf"), ("bihalf", "real"))
SAID = {
    "released": "sort on the device, ±1 and zeros made on the host and copied over at every forward; "
    "float32 with TF32, eager",
    "ours": "bfloat16, channels_last, compiled, the whole step with its batch and augmentation one CUDA graph",
}


def measured(runs: dict[str, Callable[[], None]], rounds: int) -> dict[str, dict[str, object]]:
    """Return the median and all times of each variant, alternating."""
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {way: [] for way in runs}
    for _ in range(rounds):
        for way, run in runs.items():
            times[way].append(milliseconds(run))
    runs.clear()
    gc.collect()
    torch.cuda.empty_cache()
    return {"median_ms": {way: statistics.median(found) for way, found in times.items()}, "all_ms": dict(times)}


if __name__ == "__main__":
    main()
