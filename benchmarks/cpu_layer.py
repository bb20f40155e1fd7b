"""Time and memory of binary layers in eval mode on a CPU, relative to torch's real layers.

    python benchmarks/cpu_layer.py result.json [--rounds 60] [--threads 1]

Binary and real models take turns within each round, so that other work on the machine slows both alike. Times are CPU
time; the claim is the median ratio of a round. Memory is what a model holds after its forward passes and did not hold
before, relative to its binary latents: real layers hold nothing more.
"""

import argparse
import ctypes
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from cpu_inference import processor
from torch import Tensor, nn

from equalbits.models import create_model
from equalbits.nn import BinaryLayer, BinaryLinear

MODES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "grad": torch.enable_grad,
}


def linear() -> tuple[nn.Module, nn.Module, Tensor]:
    return BinaryLinear(4096, 4096), nn.Linear(4096, 4096), torch.randn(1, 4096)


def resnet18() -> tuple[nn.Module, nn.Module, Tensor]:
    binary, real = (create_model("imagenet_resnet18", num_classes=1000, weight_quantizer=q) for q in ("bihalf", None))
    return binary, real, torch.randn(1, 3, 224, 224)


CASES = {"linear 4096x4096, batch 1": linear, "resnet18 224x224, batch 1": resnet18}


def milliseconds(model: nn.Module, inputs: Tensor, mode: str) -> float:
    with MODES[mode]():
        start = time.process_time()
        model(inputs)
        return (time.process_time() - start) * 1e3


def measure(make: Callable[[], tuple[nn.Module, nn.Module, Tensor]], rounds: int) -> dict[str, object]:
    binary, real, inputs = make()
    latents = sum(layer.weight.nbytes for layer in binary.modules() if isinstance(layer, BinaryLayer))
    models = {"binary": binary.eval(), "real": real.eval()}
    memory = {name: held_by_forward(model, inputs) for name, model in models.items()}
    rows: dict[str, object] = {
        "latent_bytes": latents,
        "extra_bytes": memory,
        "extra_over_latents": memory["binary"] / latents,
        "extra_resident_over_latents": resident_by_forward(binary, inputs) / latents,
    }
    for mode in MODES:
        times: dict[str, list[float]] = {name: [] for name in models}
        for model in models.values():
            milliseconds(model, inputs, mode)
        for _ in range(rounds):
            for name, model in models.items():
                times[name].append(milliseconds(model, inputs, mode))
        ratios = sorted(own / other for own, other in zip(times["binary"], times["real"], strict=True))
        low, middle, high = statistics.quantiles(ratios, n=4)
        rows[mode] = {
            "ms": {name: statistics.median(taken) for name, taken in times.items()},
            "ratio": {"median": middle, "lower_quartile": low, "upper_quartile": high},
        }
    return rows


def held_by_forward(model: nn.Module, inputs: Tensor) -> int:
    """Return the bytes of tensors that are alive after forward passes and were not before."""
    with torch.no_grad():
        before = dict(live_storages())
        for _ in range(3):
            model(inputs)
        return sum(size for address, size in dict(live_storages()).items() if address not in before)


def live_storages() -> Iterator[tuple[int, int]]:
    gc.collect()
    for found in gc.get_objects():
        if issubclass(type(found), Tensor):  # isinstance() would touch deprecated attributes of lazy modules
            yield found.untyped_storage().data_ptr(), found.untyped_storage().nbytes()


def resident_by_forward(model: nn.Module, inputs: Tensor) -> int:
    """Return by how much resident memory grows when the weight cache, cleared by ``eval()``, is filled again."""
    sizes = []
    for _ in range(2):
        model.eval()
        sizes.append(resident())
        with torch.no_grad():
            model(inputs)
        sizes.append(resident())
    return sizes[3] - sizes[2]


def resident() -> int:
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    cases = {name: measure(make, options.rounds) for name, make in CASES.items()}
    for name, rows in cases.items():
        print(f"{name}: {rows['extra_over_latents']:.3f} x its latents in memory, "
              f"{rows['extra_resident_over_latents']:.3f} resident")  # fmt: skip
        for mode in MODES:
            row = rows[mode]
            spread = f"{row['ratio']['lower_quartile']:.3f} to {row['ratio']['upper_quartile']:.3f}"
            print(f"  {mode:15} binary {row['ms']['binary']:8.2f} ms, real {row['ms']['real']:8.2f} ms, "
                  f"ratio {row['ratio']['median']:.3f} ({spread})")  # fmt: skip
    made_with = {
        "command": f"python benchmarks/cpu_layer.py result.json --rounds {options.rounds} --threads {options.threads}",
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "processor": processor(),
        "threads": options.threads,
        "n": options.rounds,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"made_with": made_with, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
