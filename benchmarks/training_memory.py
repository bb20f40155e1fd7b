"""Measure the peak device memory of training CIFAR ResNet-18 at batch 128, binary and full precision.

    python benchmarks/training_memory.py [RESULT.json]

Counts torch's allocations from building the model to the last of a few steps, without the data set. Each network is
trained eagerly (float32, and bfloat16 autocast) and captured as one CUDA graph.
"""

import gc
import json
import platform
import sys
from pathlib import Path

import torch

from equalbits.data import Loader, load_dataset
from equalbits.models import create_model
from equalbits.training import TrainConfig, train_stack

NETS = {
    "full precision": (None, None),
    "1w32a, bi-half": ("bihalf", None),
    "1w1a, bi-half": ("bihalf", "sign"),
    "1w1a, sign": ("sign", "sign"),
}
WAYS = {"plain fp32": ("plain", "fp32"), "plain bf16": ("plain", "bf16"), "captured bf16": ("captured", "bf16")}
BATCH, STEPS = 128, 4


def peak_bytes(loader: Loader, weights: str | None, inputs: str | None, speed: str, precision: str) -> int:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model = create_model("resnet18", num_classes=10, weight_quantizer=weights, input_quantizer=inputs).cuda()
    config = TrainConfig(epochs=1, speed=speed, precision=precision)
    train_stack([model], [loader], [config])
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("training_memory: there is no CUDA device to measure")
    loader = Loader(
        load_dataset(f"synthetic:3x32x32:10:{BATCH * STEPS}", split="train", device="cuda"),
        batch_size=BATCH,
        shuffle=True,
        augment=True,
    )
    found: dict[str, dict[str, int]] = {}
    print(f"{'peak MiB':<18}" + "".join(f"{way:>16}" for way in WAYS))
    for net, (weights, inputs) in NETS.items():
        print(f"{net:<18}", end="", flush=True)
        found[net] = {}
        for way, (speed, precision) in WAYS.items():
            found[net][way] = peak_bytes(loader, weights, inputs, speed, precision)
            print(f"{found[net][way] / 2**20:>16,.0f}", end="", flush=True)
        print()
    result = {
        "what": "peak bytes allocated while training CIFAR ResNet-18",
        "batch": BATCH,
        "steps": STEPS,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "peak_bytes": found,
    }
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
