"""Profile a captured training step on a GPU by kernel: full precision, bi-half, and their difference.

    python benchmarks/gpu_profile.py [RESULT.json] [--nets resnet18-1w1a,conv2] [--ways real,bihalf] [--top 40]

Times are sums over the kernels of a step. Kernels on different streams overlap, so a step can take less than their
sum; ``gpu_step.py`` times whole steps.
"""

import argparse
import json
import platform
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import gpu_step
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

#: Categories by pattern; the first that matches the name of a kernel applies.
KINDS = (
    ("ranking", r"rank_rows|_short_rows|_digit_"),
    ("norm, PReLU or RPReLU, shortcut, sign", r"^(sum|combine|write)_(forward|backward)|batch_norm|native_batch"),
    ("convolution, forward", r"fprop"),
    ("convolution, gradient of inputs", r"dgrad"),
    ("convolution, gradient of weights", r"wgrad"),
    ("matrix product", r"nvjet|gemm|cutlass|splitK|cublas"),
    ("optimizer and running statistics", r"multi_tensor_apply|lerp"),
    ("pooling", r"pool"),
    ("memory set or copied", r"[Mm]em(set|cpy)"),
    ("compiled: casts, sums of gradients, loss, batch", r"^triton_"),
)


def kind_of(name: str) -> str:
    """Return the category of a kernel from its name."""
    return next((kind for kind, pattern in KINDS if re.search(pattern, name)), "other")


def kernels_of(run: Callable[[], None], passes: int = 3) -> dict[str, list[float]]:
    """Return µs and launches per step for each kernel name."""
    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as watched:
        for _ in range(passes):
            run()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = {}
    for event in watched.events():
        if event.device_type == DeviceType.CUDA:
            sums = found.setdefault(event.name, [0.0, 0.0])
            sums[0] += event.device_time / (passes * gpu_step.STEPS)
            sums[1] += 1 / (passes * gpu_step.STEPS)
    return found


def by_kind(kernels: dict[str, list[float]]) -> dict[str, float]:
    """Return µs per step for each category, largest first."""
    sums: Counter[str] = Counter()
    for name, (time, _) in kernels.items():
        sums[kind_of(name)] += time
    return dict(sums.most_common())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", nargs="?", help="JSON file to write")
    parser.add_argument("--nets", default="resnet18-1w1a", help=f"networks, from {', '.join(gpu_step.NETS)}")
    parser.add_argument("--ways", default="real,bihalf")
    parser.add_argument("--top", type=int, default=40, help="number of kernels to store for each")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_profile: there is no CUDA device to measure")
    wanted, loader = gpu_step.named(options.ways, gpu_step.WAYS), gpu_step.batches()
    made = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "python": platform.python_version()}
    facts = {"what": "µs of a step's kernels, batch 128; kernels on several streams overlap", **made}
    nets: dict[str, dict[str, object]] = {}
    for net in gpu_step.named(options.nets, gpu_step.NETS):
        nets[net] = {}
        for way, run in gpu_step.ways(*gpu_step.NETS[net], loader, wanted).items():
            kernels = kernels_of(run)
            step = sorted(gpu_step.milliseconds(run) for _ in range(5))[2] * 1000
            kinds = by_kind(kernels)
            most = sorted(kernels.items(), key=lambda entry: -entry[1][0])[: options.top]
            nets[net][way] = {
                "step_us": round(step, 1),
                "kernels_us": round(sum(kinds.values()), 1),
                "launches": round(sum(count for _, count in kernels.values())),
                "kinds_us": {kind: round(time, 1) for kind, time in kinds.items()},
                "kernels": [
                    {"name": name[:120], "us": round(t, 2), "launches": round(count)} for name, (t, count) in most
                ],
            }
            print(f"{net} {way}: a step takes {step:.0f} µs, its kernels {sum(kinds.values()):.0f} µs")
            print("\n".join(f"  {time:8.1f}  {kind}" for kind, time in kinds.items()), flush=True)
        if options.result:
            text = json.dumps({**facts, "nets": nets}, indent=1, ensure_ascii=False)
            Path(options.result).write_text(text + "\n")


if __name__ == "__main__":
    main()
