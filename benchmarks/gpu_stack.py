"""Measure a training step of several networks in one CUDA graph, by the number of streams they are distributed over.

    python benchmarks/gpu_stack.py [RESULT.json] [--net conv2] [--nets 16] [--lanes 1,2,4,8,16] [--rounds 7]

For each number: ms per step of one network, and ms that the host needs to launch the graph. Where the two are close,
training is bound by the host. ``ahead`` is True if symbols are ranked ahead of the step on separate streams;
``kernels`` is the number of kernels per step of one network.
"""

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from pathlib import Path

import torch
from gpu_profile import kernels_of
from gpu_step import STEPS, batches, make_step, milliseconds

from equalbits.training import TrainConfig
from equalbits.training.cuda_graph import CudaGraphSteps
from equalbits.training.loop import compile_forward

LAUNCHES = 3  # few enough that the launch queue never fills


def host_milliseconds(steps: CudaGraphSteps) -> float:
    """Return the milliseconds that the host needs to launch the graph once, with the device idle."""
    torch.cuda.synchronize()
    steps.counter.zero_()
    began = time.perf_counter()
    for _ in range(LAUNCHES):
        steps.graph.replay()
    took = 1000 * (time.perf_counter() - began) / LAUNCHES
    torch.cuda.synchronize()
    return took


def measured(steps: CudaGraphSteps, rounds: int) -> dict[str, float]:
    def run() -> None:
        steps.counter.zero_()
        for _ in range(STEPS):
            steps.graph.replay()

    run()
    nets = len(steps.steps)
    kernels = kernels_of(run, passes=1)
    return {
        "ms": statistics.median(milliseconds(run) for _ in range(rounds)) / nets,
        "host_ms": statistics.median(host_milliseconds(steps) for _ in range(rounds)) / nets,
        "kernels": round(sum(count for _, count in kernels.values()) / nets, 1),
        "kernels_ms": sum(took for took, _ in kernels.values()) / 1000 / nets,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", nargs="?", help="JSON file to write")
    parser.add_argument("--net", default="conv2")
    parser.add_argument("--nets", type=int, default=16, help="number of networks")
    parser.add_argument("--lanes", default="1,2,4,8,16")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_stack: there is no CUDA device to measure")
    config = TrainConfig(epochs=1, speed="captured", precision="bf16")
    loader = batches()
    compiled = compile_forward(config)
    steps = [make_step(options.net, "bihalf", None, config, compiled) for _ in range(options.nets)]
    rankers = [step.ranker for step in steps]
    facts = {
        "what": f"ms for one net's step, batch 128, {options.nets} {options.net} side by side",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "steps": STEPS,
        "rounds": options.rounds,
    }
    rows = []
    for ahead in (True, False):
        for step, ranker in zip(steps, rankers, strict=True):
            step.ranker = ranker if ahead else None
        for lanes in map(int, options.lanes.split(",")):
            captured = CudaGraphSteps(steps, [loader] * len(steps), lanes=lanes)
            rows.append({"ahead": ahead, "lanes": lanes, **measured(captured, options.rounds)})
            del captured
            gc.collect()
            print("  ".join(f"{name} {value:.4g}" for name, value in rows[-1].items()), flush=True)
            if options.result:
                Path(options.result).write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
