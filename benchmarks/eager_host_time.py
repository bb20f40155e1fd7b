"""Count what the host does in eager training steps, binary and real: microseconds, operators, Python calls, launches.

    python benchmarks/eager_host_time.py RESULT.json            # a minute on a CPU; needs Triton, no GPU

A step of a small net on a GPU waits for Python. This script runs such steps on a CPU, on tensors so small that their
arithmetic takes almost no time, and prints microseconds per layer: the medians of ROUNDS alternating steps. "as on a
GPU" runs the code of a GPU up to the launch of each Triton kernel, which then does nothing: the values are not defined,
and a launch by CUDA itself takes some microseconds more. Operators are those that Python and autograd call, without
the ones these call. Convolutions take as long as they take on the CPU, in the real nets too.
"""

import argparse
import json
import math
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from equalbits.functional import fused_prelu, fused_rprelu, packed_bits, ranking
from equalbits.functional.kernels import norm_add_rprelu_sign, pack_bits, prelu_norm_add_sign, rank_rows
from equalbits.models import create_model, residual_blocks
from equalbits.nn import BinaryConv2d, BinaryLinear, SignActivation
from equalbits.nn import fused_norm as nn_fused_norm

LAYERS, ROUNDS, WARMUP = 20, 40, 5
SIGN: dict[str, Any] = {"input_quantizer": SignActivation()}
NO_BIAS: dict[str, Any] = {"padding": 1, "bias": False}


class NoKernel:
    """A compiled kernel that does nothing but count its launches."""

    launches = 0
    function, packed_metadata = 0, ()

    def launch_metadata(self, *_: object) -> None:
        """Return nothing, as without profiling hooks."""

    def run(self, *_: object) -> None:
        """Count a launch."""
        NoKernel.launches += 1


class NoDriver:
    """A driver of a GPU that is not there."""

    def get_current_device(self) -> int:
        """Return the number of the device."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Return the default stream."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """Return an H200's architecture."""
        return GPUTarget("cuda", 90, 32)


def compile_nothing(self: Any, key: str, signature: Any, device: int, *_: Any) -> NoKernel:
    kernel = self.device_caches[device][0][key] = NoKernel()
    return kernel


def run_as_on_a_gpu() -> None:
    """Make the code choose its GPU branches on a CPU, without launching kernels."""
    driver.set_active(NoDriver())
    JITFunction._do_compile = compile_nothing
    fused_prelu.PRELU.kernels = lambda _: prelu_norm_add_sign  # type: ignore[assignment, method-assign]
    fused_rprelu.RPRELU.kernels = lambda _: norm_add_rprelu_sign  # type: ignore[assignment, method-assign]
    for module, kernels in ((ranking, rank_rows), (packed_bits, pack_bits)):
        module._gpu_for = lambda _, kernels=kernels: kernels  # type: ignore[attr-defined]


def can_fuse(inputs: Tensor, *norms: nn.Module) -> bool:
    """Answer as :func:`equalbits.nn.can_fuse` on a GPU."""
    return nn_fused_norm.can_recompute(inputs, *norms)


class Case(NamedTuple):
    """A net, its inputs, and how it is run."""

    model: nn.Module
    inputs: Tensor
    recompute_from: float | None = None  # None: separate operations


def make_cases(gpu: bool) -> dict[str, Case]:
    def stack(make: Callable[[], nn.Module]) -> nn.Sequential:
        return nn.Sequential(*(make() for _ in range(LAYERS))).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def block(conv: nn.Module) -> nn.Sequential:
        return nn.Sequential(conv, nn.BatchNorm2d(8), nn.PReLU(8))

    def resnet(**quantizers: Any) -> nn.Module:
        net = create_model("resnet18", num_classes=10, width=0.125, image_size=16, **quantizers)
        return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    rows = torch.randn(2, 8)
    maps, images = (
        torch.randn(*shape).to(memory_format=torch.channels_last) for shape in ((2, 8, 4, 4), (4, 3, 16, 16))
    )
    binary: dict[str, Any] = {"weight_quantizer": "bihalf", **SIGN}
    cases = {
        "ResNet-18, real": Case(resnet(weight_quantizer=None), images),
        "ResNet-18, 1w1a, separate operations": Case(resnet(**binary), images),
        "ResNet-18, 1w1a, fused": Case(resnet(**binary), images, math.inf),
        "ResNet-18, 1w1a, fused and recomputed": Case(resnet(**binary), images, 0.0),
        "convolution, norm, PReLU, real": Case(stack(lambda: block(nn.Conv2d(8, 8, 3, **NO_BIAS))), maps),
        "convolution, norm, PReLU, 1w32a": Case(stack(lambda: block(BinaryConv2d(8, 8, 3, **NO_BIAS))), maps),
        "convolution, norm, PReLU, 1w1a": Case(stack(lambda: block(BinaryConv2d(8, 8, 3, **NO_BIAS, **SIGN))), maps),
        "linear, real": Case(stack(lambda: nn.Linear(8, 8)), rows),
        "linear, 1w32a": Case(stack(lambda: BinaryLinear(8, 8)), rows),
        "linear, 1w1a": Case(stack(lambda: BinaryLinear(8, 8, **SIGN)), rows),
    }
    return {name: case for name, case in cases.items() if gpu or case.recompute_from is None}


def forward(case: Case) -> Tensor:
    residual_blocks.can_fuse = can_fuse if case.recompute_from is not None else lambda *_: False  # type: ignore[attr-defined]
    nn_fused_norm.RECOMPUTE_FROM = {"eager": case.recompute_from or 0.0}
    with torch.autocast("cpu", torch.bfloat16):
        return case.model(case.inputs).float().sum()  # type: ignore[no-any-return]


def timed(case: Case) -> tuple[float, float]:
    start = time.perf_counter()
    loss = forward(case)
    middle = time.perf_counter()
    loss.backward()  # type: ignore[no-untyped-call]
    end = time.perf_counter()
    case.model.zero_grad()
    return middle - start, end - middle


def counted(case: Case) -> dict[str, float]:
    """Return operators, Python calls and kernel launches of a step, per layer."""
    calls, NoKernel.launches = 0, 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        forward(case).backward()  # type: ignore[no-untyped-call]
    launches = NoKernel.launches
    sys.setprofile(count)
    forward(case).backward()  # type: ignore[no-untyped-call]
    sys.setprofile(None)
    is_operator = lambda event: event is not None and event.name.startswith("aten::")  # noqa: E731
    operators = sum(is_operator(event) and not is_operator(event.cpu_parent) for event in profile.events())
    return {"operators": operators / LAYERS, "calls": calls / LAYERS, "launches": launches / LAYERS}


def measure(gpu: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    cases, times = make_cases(gpu), dict[str, list[tuple[float, float]]]()
    for _ in range(ROUNDS + WARMUP):
        for name, case in cases.items():
            times.setdefault(name, []).append(timed(case))
    rows = {}
    for name, case in cases.items():
        ahead, back = (statistics.median(each[WARMUP:]) * 1e6 / LAYERS for each in zip(*times[name], strict=True))
        rows[name] = {"forward_us": ahead, "backward_us": back} | counted(case)
        rows[name]["of_real"] = (ahead + back) / sum(
            list(rows[f"{name.split(', 1w')[0].removesuffix(', real')}, real"].values())[:2]
        )
        print(f"{name:<40}" + "".join(f"{value:9.2f}" for value in rows[name].values()), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", nargs="?", help="JSON file to write")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line).split(": ")[1]
    found: dict[str, Any] = {"what": "host time of eager training steps, counted on a CPU", "cpu": cpu}
    found |= {"torch": torch.__version__, "python": platform.python_version(), "rounds": ROUNDS}
    for place in ("on a CPU", "as on a GPU"):
        if place == "as on a GPU":
            run_as_on_a_gpu()
        print(f"{place + ', per layer:':<40}   forward backward operator    calls launches  of real")
        found[place] = measure(place == "as on a GPU")
    if options.result:
        Path(options.result).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
