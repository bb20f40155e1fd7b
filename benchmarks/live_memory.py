"""Find what is allocated at the peak of a recorded history of CUDA memory, and the size of cuBLAS's workspaces."""

from pathlib import Path
from typing import Any

import torch


def allocate_workspaces() -> int:
    """Return the bytes of cuBLAS's workspaces for the default stream, of this thread and that of backward passes.

    They are allocated once in a process, so only the first net would be seen to need them. On a new stream, as a graph
    is captured on, each net allocates its own.
    """
    before = torch.cuda.memory_allocated()
    weight = torch.ones(64, 64, device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        loss = (torch.ones(64, 64, device="cuda") @ weight).sum()
    loss.backward()
    del weight, loss
    return torch.cuda.memory_allocated() - before


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
