"""Measure the memory of one training step on a GPU: what is there when it begins, and what is allocated at its peak."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

#: Channels in and out, kernel, stride and side of the inputs of ResNet-18's convolutions for small images.
CONVOLUTIONS = [(64, 64, 3, 1, 32), (64, 128, 3, 2, 32), (128, 128, 3, 1, 16), (128, 256, 3, 2, 16)]
CONVOLUTIONS += [(256, 256, 3, 1, 8), (256, 512, 3, 2, 8), (512, 512, 3, 1, 4)]
MIB = 2**20


class StepMemory:
    """Inside ``with``, records what a step allocates: one that is captured, or all after :meth:`begin`.

    It begins with the capture, when kernels are compiled and compared. Both take memory that no later step needs.
    """

    def __init__(self, models: Sequence[nn.Module], optimizer: torch.optim.Optimizer) -> None:
        self.models, self.optimizer = models, optimizer
        self.found: dict[str, Any] = {"peak": 0, "parts": {}, "live": []}
        self.allocated, self.enter_capture = 0, torch.cuda.graph.__enter__
        self.started = torch.cuda.memory_allocated() - self._lasting() if torch.cuda.is_available() else 0

    def __enter__(self) -> "StepMemory":
        def begin_and_enter(capture: Any) -> None:
            self.begin()
            self.enter_capture(capture)

        torch.cuda.graph.__enter__ = begin_and_enter
        return self

    def begin(self) -> None:
        """Begin to record."""
        self.optimizer.zero_grad(set_to_none=True)
        if not torch.cuda.is_available():
            return
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        lasting, self.allocated = self._lasting(), torch.cuda.memory_allocated() - self.started
        self.found["parts"] = {"parameters and optimizer": _mib(lasting), "workspaces": _mib(self.allocated - lasting)}
        torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python")

    def __exit__(self, *_: object) -> None:
        torch.cuda.graph.__enter__ = self.enter_capture
        if not torch.cuda.is_available():
            return
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - self.started
        traces = torch.cuda.memory._snapshot()["device_traces"]
        torch.cuda.memory._record_memory_history(None)
        torch.cuda.empty_cache()
        self.found["parts"] |= {"step": _mib(peak - self.allocated), "reserved": _mib(torch.cuda.memory_reserved())}
        self.found |= {"peak": peak, "live": live_at_peak([event for trace in traces for event in trace])}

    def _lasting(self) -> int:
        """Return the bytes of parameters, buffers and the optimizer's state."""
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        tensors = [each for model in self.models for each in (*model.parameters(), *model.buffers())]
        return sum(each.nbytes for each in (*tensors, *states) if isinstance(each, Tensor))


def _mib(size: int) -> float:
    return round(size / MIB, 1)


def convolution_workspaces(batch: int) -> list[str]:
    """Return the workspace that cuDNN allocates for each convolution of ResNet-18: forward, of inputs, of weights."""
    return [
        f"{shape}: " + " ".join(f"{size / MIB:.1f}" for size in _workspaces(batch, *shape)) for shape in CONVOLUTIONS
    ]


def _workspaces(batch: int, inputs: int, outputs: int, kernel: int, stride: int, side: int) -> Iterator[int]:
    settings: tuple[Any, ...] = [stride] * 2, [kernel // 2] * 2, [1, 1], False, [0, 0], 1
    made = (
        torch.ones(s, device="cuda", dtype=torch.bfloat16)
        for s in ((batch, inputs, side, side), (outputs, inputs, kernel, kernel))
    )
    x, weight = (each.contiguous(memory_format=torch.channels_last) for each in made)
    y = torch.convolution(x, weight, None, *settings)
    backward = torch.ops.aten.convolution_backward
    for number in range(3):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        if number == 0:
            found = torch.convolution(x, weight, None, *settings)
        else:
            found = backward(y, x, weight, None, *settings, [number == 1, number == 2, False])[number - 1]
        yield torch.cuda.max_memory_allocated() - before - found.nbytes


def live_at_peak(events: list[dict[str, Any]]) -> list[str]:
    """Return the largest groups of allocations at the peak: MiB, their number and the line that made them."""
    live: dict[int, tuple[int, str]] = {}
    now = most = 0
    kept: dict[int, tuple[int, str]] = {}
    for event in events:
        if event["action"] == "alloc":
            live[event["addr"]] = event["size"], place_of(event.get("frames", []))
            now += event["size"]
            if now > most:
                most, kept = now, dict(live) if now > 1.002 * most else kept
        elif event["action"] == "free_requested" and event["addr"] in live:
            now -= live.pop(event["addr"])[0]
    groups: dict[tuple[int, str], int] = {}
    for entry in kept.values():
        groups[entry] = groups.get(entry, 0) + 1
    largest = sorted(groups.items(), key=lambda group: -group[0][0] * group[1])[:16]
    return [f"{size / 2**20:8.2f} MiB x {count:3}  {place}" for (size, place), count in largest]


def place_of(frames: list[dict[str, Any]]) -> str:
    """Return the innermost frame of this package or of compiled code, else the innermost one."""
    ours = [frame for frame in frames if "equalbits" in frame["filename"] or "torchinductor" in frame["filename"]]
    return " < ".join(f"{Path(f['filename']).name}:{f['line']}" for f in (ours or frames)[:2])
