"""Measure what training a binary ResNet-18 costs beside the real one: time of a step, peak memory, and the losses.

    python benchmarks/training_cost.py RESULT.json --seconds 240    # one call on a GPU with 16 cores

It prints one table, a row for each way: ms per step, peak memory, both over those of the real net at the same speed,
and how far the losses of 200 steps are from those of the plain path. A way is a net, its switches and a speed
(``training_ways.py``).

Each way has a process of its own. They compile at the same time, each with a few threads: that takes most of the time,
on the host alone. Then each trains 200 steps for its losses, and last all take turns to be timed, one at a time. The
file is written after each row and each round. The peak is that of one step, once its kernels are compiled: parameters
and optimizer state, workspaces of cuBLAS, and what the step allocates, with those of cuDNN, which are listed, too.

"equal" compares the first loss with that of 1w1a, or best, to the bit; losses of best are compared with those of best
in plain steps. Without a GPU, ``--dry-run`` runs all of it on tiny eager nets.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import gpu_step
import torch
import training_ways
from live_memory import convolution_workspaces
from training_ways import CIFAR, LARGE, Run
from workers import Worker, replies, take_turns_at_autotuning

#: In the order of their value: the last ones are left out where the time is short.
CAPTURED = "real|1w1a|1w1a 8bits early|1w1a small|1w1a again20 8bits early|1w1a again20 early|best|best taught"
MORE = "1w1a small 8bits|1w1a again100 8bits early|1w1a 8bits|1w1a early|best small|best unfused"
PLAIN = "real|1w1a|1w1a small|best"
LARGE_WAYS = "real|1w1a averages 8bits pool early|1w1a again20 averages 8bits pool early|1w1a|1w1a averages|real pool"
WAYS = [f"{net}, captured" for net in CAPTURED.split("|")] + [f"{net}, plain" for net in PLAIN.split("|")]
WAYS += [f"{net} 224, captured" for net in LARGE_WAYS.split("|")]
WAYS += [f"{net}, captured" for net in MORE.split("|")] + ["real 224, plain", "1w1a averages 224, plain"]
ROUNDS = 7


def work(way: str) -> None:
    """Build one way and print its row as JSON; then obey the words ``losses`` and ``ms``, one a line."""
    answer = replies()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    began, case = time.monotonic(), LARGE if " 224" in way else CIFAR
    if training_ways.DEVICE == "cuda":
        take_turns_at_autotuning()
    else:
        torch.set_num_threads(1)
        case = case._replace(batch=2, side=32)
    loader = case.loader(4 if " 224" in way else gpu_step.STEPS + 1)
    loaded = time.monotonic()
    run = Run(way, case, loader)
    built = run.memory.found | {"load_s": round(loaded - began, 1), "build_s": round(time.monotonic() - loaded, 1)}
    compiling = torch._dynamo.utils.calculate_time_spent()
    answer(built | {"compile_s": {phase: round(each, 1) for phase, each in compiling.items() if each > 0.5}})
    if run.graph is None and " 224" not in way:  # back to the state before the first step
        run = Run(way, case, loader)
    for word in sys.stdin:
        answer(run.losses() if word == "losses\n" else run.milliseconds())


def measure(
    names: list[str], at_once: int, end: float, dry: bool, rows: dict[str, Any], save: Callable[[], None]
) -> None:
    """Fill the rows: build all ways at the same time, then take their losses, then time them in turns."""
    start, workers = time.monotonic(), dict[str, Worker]()
    build_end, losses_end = (start + share * (end - start) for share in (0.6, 0.8))

    def build(way: str) -> Any:
        if time.monotonic() > start + 0.4 * (end - start):
            return {"failed": "not started: the time was short"}
        workers[way] = Worker(__file__, "--work", way, *(["--dry-run"] if dry else []))
        return workers[way].ask("", build_end) or {"failed": workers[way].last_error()}

    try:
        with ThreadPoolExecutor(at_once) as pool:
            for future in as_completed(asked := {pool.submit(build, way): way for way in names}):
                way = asked[future]
                rows[way] = future.result()
                save()
                facts = rows[way].get("failed") or (
                    f"{rows[way]['peak'] / 2**20:.0f} MiB, built in {rows[way]['build_s']} s"
                )
                print(f"{time.monotonic() - start:5.0f} s  {way}: {facts}", flush=True)
            ready = [way for way in names if "failed" not in rows[way]]
            small = [way for way in ready if " 224" not in way]
            found = pool.map(lambda way: workers[way].ask("losses", losses_end), small)
            for way, losses in zip(small, found, strict=True):
                rows[way]["losses"] = losses
            save()
        for number in range(ROUNDS + 1):  # the first to warm up
            for way in ready:
                ms = workers[way].ask("ms", end)
                if ms is not None and number:
                    times = rows[way].setdefault("all_ms", [])
                    times.append(ms)
                    rows[way]["ms"] = statistics.median(times)
            save()
    finally:
        for worker in workers.values():
            worker.process.kill()


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Return the table of all ways."""
    lines = [f"{'way':<48}{'ms':>8}{'x real':>8}{'MiB':>8}{'x real':>8}  first loss   losses off plain by"]
    for way, row in rows.items():
        if "failed" in row:
            continue
        net, speed = way.split(", ")
        size = " 224" if " 224" in net else ""
        twin = "best" if net.startswith("best") else "1w1a"
        real, base = rows.get(f"real{size}, {speed}", {}), rows.get(f"{twin}, {speed}", {})
        reference, line = rows.get(f"{twin}, plain", {}).get("losses"), f"{way:<48}"
        for key, unit in (("ms", 1), ("peak", 2**20)):
            if row.get(key) and real.get(key):
                row[f"{key}_of_real"] = row[key] / real[key]
                line += f"{row[key] / unit:8.{0 if unit > 1 else 3}f}{row[f'{key}_of_real']:8.3f}"
            else:
                line += 16 * " "
        if row.get("losses") and reference and not way.startswith("real") and "taught" not in way:
            row["first_equal"] = (base.get("losses") or [None])[0] == row["losses"][0]
            pairs = zip(row["losses"][1:], reference[1:], strict=True)
            row["losses_off"] = max(abs(mine - plain) / plain for mine, plain in pairs)
            line += f"  {'equal' if row['first_equal'] else 'NOT equal':<13}{row['losses_off']:.4f}"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", nargs="?", help="JSON file to write")
    parser.add_argument("--seconds", type=float, default=240, help="time for everything")
    parser.add_argument("--ways", default="|".join(WAYS), help="separated by |")
    parser.add_argument("--at-once", type=int, default=14, help="number of processes that compile at the same time")
    parser.add_argument("--dry-run", action="store_true", help="run tiny eager nets on the CPU")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.dry_run:
        training_ways.DEVICE, training_ways.LOSS_STEPS, gpu_step.STEPS = "cpu", 2, 2
    elif not torch.cuda.is_available():
        sys.exit("training_cost: there is no CUDA device to measure; --dry-run needs none")
    if options.work:
        work(options.work)
        return
    end, rows = time.monotonic() + options.seconds, dict[str, dict[str, Any]]()
    found: dict[str, Any] = {
        "what": "cost of training ResNet-18, binary and real",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "command": " ".join(["python", *sys.argv]),
    }
    found |= {"device": platform.machine() if options.dry_run else torch.cuda.get_device_name(), "ways": rows}

    def save() -> None:
        if options.result:
            table(rows)  # computes the ratios
            Path(options.result).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")

    measure(options.ways.split("|"), options.at_once, end - 10, options.dry_run, rows, save)
    print(table(rows), flush=True)
    if not options.dry_run:
        found["workspaces"] = convolution_workspaces(CIFAR.batch)
        print("\n".join(["workspaces of cuDNN, MiB:", *found["workspaces"]]))
    save()
    for way in ("real, captured", "1w1a 8bits early, captured", "1w1a small, captured", "1w1a, plain"):
        row = rows.get(way, {"failed": ""})
        if "failed" not in row:
            print(f"{way}: {row['parts']}; largest at the peak of the step:", *row["live"][:10], sep="\n  ")


if __name__ == "__main__":
    main()
