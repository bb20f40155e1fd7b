"""Measure what training a binary ResNet-18 costs beside the real one: time of a step, peak memory, and the losses.

    python benchmarks/training_cost.py [RESULT.json] [--rounds 7] [--parts time,memory,imagenet,losses]
    python benchmarks/training_cost.py --kept        # on any machine: bytes kept for the backward pass

* real: the same network with real weights and ReLU blocks; 1w1a: bi-half weights and the sign of the inputs. "floats"
  is 1w1a that keeps its inputs as torch does, "small" computes its convolutions again in the backward pass.
* captured: bfloat16, compiled, each step one CUDA graph. plain: eager, bfloat16 autocast.
* time: ms per step at batch 128 on 32×32 images, all ways alternating. memory: peak of torch's allocations, without the
  data. imagenet: the same for 224×224 images at batch 256. losses: the mean of every 20 of 200 steps, by way.
"""

import argparse
import gc
import json
import platform
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import gpu_step
import torch
from torch import Tensor, nn

from equalbits.data import Loader, load_dataset
from equalbits.models import create_model
from equalbits.nn import SignActivation, recompute_convolutions_
from equalbits.training import TrainConfig, make_optimizer, train_stack
from equalbits.training.cuda_graph import CudaGraphSteps
from equalbits.training.evaluation import Meter
from equalbits.training.loop import TrainStep
from equalbits.training.losses import label_loss

PARTS = ("time", "memory", "imagenet", "losses")
NETS = ("real", "1w1a", "1w1a floats", "1w1a small")
WAYS = [f"{net}, {speed}" for speed in ("captured", "plain") for net in NETS]


class FloatSign(SignActivation):
    """The sign of a class that does not state ``returns_signs``: its layer keeps ±1 as floats."""


def make_model(way: str, net: str = "resnet18", classes: int = 10) -> nn.Module:
    torch.manual_seed(0)
    if way.startswith("real"):
        return create_model(net, num_classes=classes, weight_quantizer=None)
    inputs = FloatSign() if "floats" in way else SignActivation()
    return create_model(net, num_classes=classes, weight_quantizer="bihalf", input_quantizer=inputs)


def make_config(way: str, epochs: int = 1) -> TrainConfig:
    speed, memory = way.split(", ")[1], "small" if "small" in way else "normal"
    return TrainConfig(epochs=epochs, speed=speed, precision="bf16", memory=memory)  # type: ignore[arg-type]


def cifar_like(steps: int) -> Loader:
    data = load_dataset(f"synthetic:3x32x32:10:{128 * steps}", split="train", device="cuda")
    return Loader(data, batch_size=128, shuffle=True, augment=True)


def imagenet_like(steps: int) -> Loader:
    data = load_dataset(f"synthetic:3x224x224:1000:{256 * steps}", split="train", device="cuda")
    return Loader(data, batch_size=256, shuffle=True)


def make_run(way: str, loader: Loader) -> Callable[[], None]:
    """Return a function that trains STEPS steps."""
    config, model = make_config(way), make_model(way).cuda()
    recompute_convolutions_(model, config.memory == "small")
    if config.speed == "captured":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = make_optimizer(model, config.optimizer, capture=config.speed == "captured")
    step = TrainStep(model.train(), optimizer, label_loss(config), config, Meter(torch.device("cuda")))
    if config.speed == "plain":
        batch = next(loader.epoch(0))
        return lambda: [step(*batch) for _ in range(gpu_step.STEPS)] and None
    steps = CudaGraphSteps([step], [loader])

    def run() -> None:
        steps.counter.zero_()
        for _ in range(gpu_step.STEPS):
            steps.graph.replay()

    return run


def peak_bytes(way: str, loader: Loader, net: str, classes: int) -> int:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    train_stack([make_model(way, net, classes).cuda()], [loader], [make_config(way)])
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def losses(way: str, loader: Loader) -> list[float]:
    (history,) = train_stack([make_model(way).cuda()], [loader], [make_config(way, epochs=10)])
    return [record.train.loss for record in history.epochs]


def kept_bytes(way: str, images: Tensor) -> dict[str, int]:
    """Return the bytes that a forward pass keeps for the backward pass, by dtype."""
    model = make_model(way)
    recompute_convolutions_(model, "small" in way)
    held: dict[int, Tensor] = {}
    with (
        torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: held.setdefault(tensor.untyped_storage().data_ptr(), tensor) is None or tensor,
            lambda tensor: tensor,
        ),
        torch.autocast(images.device.type, torch.bfloat16),
    ):
        model(images)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[str, int] = {}
    for place, tensor in held.items():
        if place not in own:
            dtype = str(tensor.dtype).removeprefix("torch.")
            found[dtype] = found.get(dtype, 0) + tensor.untyped_storage().nbytes()
    return found


def ratios(found: dict[str, float]) -> dict[str, float]:
    """Return each way's figure over that of the real net at the same speed."""
    return {way: round(value / found["real, " + way.split(", ")[1]], 4) for way, value in found.items()}


def measure(part: str, rounds: int) -> dict[str, object]:
    if part == "time":
        loader = cifar_like(gpu_step.STEPS + 1)
        times = gpu_step.measured({way: make_run(way, loader) for way in WAYS}, rounds)
        middle = {way: statistics.median(times["all_ms"][way]) for way in WAYS}  # type: ignore[arg-type]
        return {"what": "ms per step", "batch": 128, "median": middle, "of_real": ratios(middle), **times}
    if part == "losses":
        return {"what": "mean loss of every 20 steps", "losses": {way: losses(way, cifar_like(20)) for way in WAYS}}
    large = part == "imagenet"
    loader, net = (imagenet_like(3), "imagenet_resnet18") if large else (cifar_like(4), "resnet18")
    peaks: dict[str, float] = {way: peak_bytes(way, loader, net, 1000 if large else 10) for way in WAYS}
    return {"what": "peak bytes", "batch": 256 if large else 128, "peak": peaks, "of_real": ratios(peaks)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", nargs="?", help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"from {', '.join(PARTS)}")
    parser.add_argument("--kept", action="store_true", help="bytes kept for the backward pass, batch 8, no GPU needed")
    options = parser.parse_args()
    if options.kept:
        for net in NETS:
            kept = kept_bytes(net, torch.randn(8, 3, 32, 32))
            print(f"{net:<12} {sum(kept.values()) / 2**20:8.2f} MiB  {kept}", flush=True)
        return
    if not torch.cuda.is_available():
        sys.exit("training_cost: there is no CUDA device to measure")
    found: dict[str, object] = {
        "what": "cost of training ResNet-18, binary and real",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "rounds": options.rounds,
    }
    for part in gpu_step.named(options.parts, PARTS):
        found[part] = figures = measure(part, options.rounds)
        shown = figures.get("of_real", figures.get("losses"))
        print(part, json.dumps(shown, indent=1), flush=True)
        if options.result:  # after each part, since each takes minutes
            Path(options.result).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
