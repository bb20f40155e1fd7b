"""Time and memory of binary layers in eval mode on a CPU, relative to torch's real layers.

    python benchmarks/cpu_layer.py result.json [--rounds 20] [--repeats 5] [--threads 1]

Binary and real models take turns within each round, so that other work on the machine slows both alike. Every repeat
creates both models anew, since their place in memory matters. Times are CPU time; the claim is the median ratio of a
round. Memory is what a model holds after its forward passes beyond what it held before, relative to its binary latents;
real layers hold nothing more.
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


def measure(make: Callable[[], tuple[nn.Module, nn.Module, Tensor]], rounds: int, repeats: int) -> dict[str, object]:
    times: dict[str, dict[str, list[float]]] = {mode: {"binary": [], "real": []} for mode in MODES}
    extra: list[float] = []
    resident: list[float] = []
    for _ in range(repeats):
        binary, real, inputs = make()
        models = {"binary": binary.eval(), "real": real.eval()}
        latents = sum(layer.weight.nbytes for layer in binary.modules() if isinstance(layer, BinaryLayer))
        assert held_by_forward(real, inputs) == 0
        extra.append(held_by_forward(binary, inputs) / latents)
        resident.append(resident_by_forward(binary, inputs) / latents)
        for mode, taken in times.items():
            for model in models.values():
                milliseconds(model, inputs, mode)
            for _ in range(rounds):
                for name, model in models.items():
                    taken[name].append(milliseconds(model, inputs, mode))
    return {
        "extra_over_latents": max(extra),
        "extra_resident_over_latents": max(resident),
        **{mode: summary(taken["binary"], taken["real"]) for mode, taken in times.items()},
    }


def summary(binary: list[float], real: list[float]) -> dict[str, object]:
    low, middle, high = statistics.quantiles([own / other for own, other in zip(binary, real, strict=True)], n=4)
    return {
        "n": len(binary),
        "ms": {"binary": statistics.median(binary), "real": statistics.median(real)},
        "ratio": {"median": middle, "lower_quartile": low, "upper_quartile": high},
    }


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
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    cases = {name: measure(make, options.rounds, options.repeats) for name, make in CASES.items()}
    for name, rows in cases.items():
        print(f"{name}: {rows['extra_over_latents']:.3f} x its latents in memory, "
              f"{rows['extra_resident_over_latents']:.3f} resident")  # fmt: skip
        for mode in MODES:
            row = rows[mode]
            spread = f"{row['ratio']['lower_quartile']:.3f} to {row['ratio']['upper_quartile']:.3f}"
            print(f"  {mode:15} binary {row['ms']['binary']:8.2f} ms, real {row['ms']['real']:8.2f} ms, "
                  f"ratio {row['ratio']['median']:.3f} ({spread})")  # fmt: skip
    made_with = {
        "command": f"python {' '.join(sys.argv)}",
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "processor": processor(),
        "threads": options.threads,
        "rounds": options.rounds,
        "repeats": options.repeats,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"made_with": made_with, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
