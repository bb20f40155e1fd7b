"""Compare a packed ResNet-18 (224², one image, one thread) with the real network in other engines.

    python benchmarks/cpu_inference.py result.json [--rounds 40] [--models DIR] [--sets avx2 avx512] [--compiled]

Torch, ONNX Runtime and OpenVINO are measured if installed, each with its fastest instructions. Their model files are
made in DIR if ``onnx`` (and ``nncf``) are installed; elsewhere copy DIR from another machine. To compare AVX2 with AVX2
on a machine that supports more, hide the rest (``only_avx2.c``). The engines alternate within each round, so that other
load slows them alike; the result is the ratio of CPU times within a round.
"""

import argparse
import json
import platform
import statistics
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from cpu_engines import (
    Engine,
    file_engines,
    larq_engine,
    make_models,
    packed_engines,
    seen_sets,
    timed,
    torch_engines,
    versions,
)
from packed_resnet import resnet18

from equalbits.runtime import Network, NetworkBuilder

#: Target speed-up over eager torch, ONNX Runtime in float32, and the best int8 engine.
AIMS = {"torch, eager": 10, "ONNX Runtime, float32": 6, "int8": 3}


def network_engines(chosen: argparse.Namespace, folder: Path) -> dict[str, Engine]:
    image = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    found = packed_engines(resnet18(), image, chosen.sets or seen_sets())
    for line in make_models(folder):
        print(line, file=sys.stderr)
    if find_spec("torch"):
        found |= torch_engines(image, compiled=chosen.compiled)
    found |= file_engines(folder, image)
    if chosen.larq:
        found["Larq Compute Engine"] = larq_engine(*chosen.larq)
    return found


def linear(width: int, *, input_bits: int) -> Network:
    """Return a network of one linear layer with binary weights, and float32, int8 or binary inputs."""
    build = NetworkBuilder((width, 1, 1))
    x = build.add("flatten", build.image)
    symbols = np.random.default_rng(0).choice([-1, 1], (width, width))
    if input_bits == 1:
        build.add_binary("linear", build.add("sign", x), symbols)
    else:
        build.add_binary("linear", x, symbols, input_bits=input_bits)
    return build.finish()


def linear_engines(chosen: argparse.Namespace, width: int = 4096) -> dict[str, Engine]:
    """Return the engines for a linear layer with batch size 1, which is bound by memory bandwidth."""
    row = np.random.default_rng(0).standard_normal((1, width, 1, 1)).astype(np.float32)
    found = {}
    for bits in (32, 8, 1):
        engines = packed_engines(linear(width, input_bits=bits), row, (chosen.sets or seen_sets())[:1])
        found |= {f"{name}, W1A{bits}": engine for name, engine in engines.items()}
    if find_spec("torch"):
        import torch

        torch.set_num_threads(1)
        layer, given = torch.nn.Linear(width, width, bias=False), torch.from_numpy(row.reshape(1, width))
        found["torch, eager"] = timed(torch.inference_mode()(lambda: layer(given)))
    return found


def measure(found: dict[str, Engine], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in found}
    for number in range(rounds + 2):
        for name, run in found.items():
            taken = run()
            if number >= 2:
                times[name].append(taken)
    return times


def spread(numbers: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(numbers, n=4) if len(numbers) > 1 else numbers * 3
    return {"median": middle, "lower_quartile": low, "upper_quartile": high, "least": min(numbers)}


def compare(times: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Return the times of every engine, and their ratio to each of ours per round."""
    rows = {}
    for name, taken in times.items():
        ratios = {
            ours: spread([a / b for a, b in zip(taken, times[ours], strict=True)])
            | {"least": min(taken) / min(times[ours])}
            for ours in times
            if ours.startswith("equalbits")
        }
        rows[name] = {"ms": spread(taken), "times_as_long_as": ratios}
    return rows


def report(rows: dict[str, dict[str, Any]]) -> None:
    ours = [name for name in rows if name.startswith("equalbits") and "portable" not in name][:2]
    head = "".join(f"{'× ' + name.removeprefix('equalbits, '):>26}" for name in ours)
    print(f"{'CPU ms: median [quartiles] least':52}{head}")
    for name, row in rows.items():
        ms = row["ms"]
        line = f"{ms['median']:9.2f} [{ms['lower_quartile']:.2f} {ms['upper_quartile']:.2f}] {ms['least']:.2f}"
        line = f"{name:24}{line:28}"
        for other in ours:
            by = row["times_as_long_as"][other]
            spans = f"{by['median']:.2f} [{by['lower_quartile']:.2f} {by['upper_quartile']:.2f}] {by['least']:.2f}"
            line += f"{spans:>26}"
        print(line)


def aims(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Print, for each of our engines, the median speed-up and its target."""
    found: dict[str, dict[str, Any]] = {}
    for aim, wanted in AIMS.items():
        peers = [name for name in rows if not name.startswith("equalbits") and aim in name]
        for ours in (name for name in rows if name.startswith("equalbits") and "portable" not in name):
            ratios = [rows[peer]["times_as_long_as"][ours]["median"] for peer in peers]
            if ratios:
                found.setdefault(ours, {})[aim] = {"wanted": wanted, "measured": min(ratios)}
                print(f"{ours}: {min(ratios):.1f} times {aim if aim != 'int8' else 'the best int8'}, aim {wanted}")
    return found


def processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), "") or platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--models", type=Path, help="directory of model files to keep (default: a temporary one)")
    parser.add_argument("--sets", nargs="+", help="instruction sets of our engine (default: all supported)")
    parser.add_argument(
        "--compiled", action="store_true", help="also measure compiled torch (needs a minute and a compiler)"
    )
    parser.add_argument("--machine", default="", help="description of the machine, stored in the result")
    parser.add_argument("--hidden", default="", help="description of hidden instruction sets, stored in the result")
    parser.add_argument("--larq", type=Path, nargs=2, metavar=("PROGRAM", "MODEL"), help="lce_benchmark_model, .tflite")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        network = compare(measure(network_engines(chosen, chosen.models or Path(folder)), chosen.rounds))
    report(network)
    reached = aims(network)
    print("\nLinear 4096 × 4096, one row")
    layer = compare(measure(linear_engines(chosen), chosen.rounds))
    report(layer)
    made_with = {
        "processor": processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    made_with |= {"rounds": chosen.rounds, "threads": 1, "instruction_sets_seen": seen_sets(), "versions": versions()}
    made_with |= {name: said for name in ("machine", "hidden") if (said := getattr(chosen, name))}
    found = {"made_with": made_with, "resnet18": network, "aims": reached, "linear_4096": layer}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
