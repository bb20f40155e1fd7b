"""Compare ResNet-18 with binary weights and inputs of 32, 8, 4 and 1 bits with the real network in other engines.

    python benchmarks/low_bit_activations.py results/low-bit-activations.json [--rounds 30] [--models DIR] [--sets avx2]

One image of 224², one thread. The networks are untrained. With rounded inputs and AVX-512 the few real weights are
int8, and so are images. The engines alternate within each round, as in ``cpu_inference.py``, whose peers these are.
"""

import argparse
import json
import platform
import sys
import tempfile
from pathlib import Path

import numpy as np
from cpu_engines import Engine, file_engines, make_models, packed_engines, seen_sets, versions
from cpu_inference import compare, measure, processor, report
from packed_resnet import resnet18

#: Instruction set: bits of our inputs: dtype of the peers, and the speed-up over the best of them that is aimed at.
AIMS = {
    "avx512": {8: ("int8", 1.0), 4: ("int8", 2.0), 1: ("int8", 3.0), 32: ("float32", 1.3)},
    "avx2": {8: ("int8", 1.3), 4: ("int8", 2.0), 1: ("int8", 3.5), 32: ("float32", 1.3)},
}


def engines(chosen: argparse.Namespace, folder: Path) -> dict[str, Engine]:
    """Return our engines and those of the peers whose model files are there."""
    image = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    found = {}
    for name in chosen.sets or seen_sets()[:1]:
        for bits in (32, 8, 4, 1):
            stored = "int8" if name == "avx512" and bits < 32 else "float32"  # int8 products are faster with VNNI alone
            (engine,) = packed_engines(resnet18(input_bits=bits, stored=stored), image, [name]).values()
            found[f"equalbits, {name}, W1A{bits}"] = engine
    for line in make_models(folder):
        print(line, file=sys.stderr)
    return found | file_engines(folder, image)


def reached(times: dict[str, list[float]]) -> dict[str, dict[str, object]]:
    """Return, for each of our engines, the median over rounds of its speed-up over the best peer, and the aim."""
    found: dict[str, dict[str, object]] = {}
    for ours, taken in times.items():
        if not ours.startswith("equalbits"):
            continue
        name, bits = ours.removeprefix("equalbits, ").split(", W1A")
        dtype, aim = AIMS[name][int(bits)]
        peers = [peer for peer in times if not peer.startswith("equalbits") and dtype in peer]
        if int(bits) == 32:
            peers = [peer for peer in peers if peer.startswith("ONNX Runtime")]
        if peers:
            best = min(peers, key=lambda peer: float(np.median(times[peer])))
            ratio = float(np.median(np.array(times[best]) / np.array(taken)))
            found[ours] = {"best": best, "aim": aim, "measured": ratio}
            print(f"{ours}: {ratio:.2f} × {best}, aim {aim}")
    return found


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--models", type=Path, help="directory of model files to keep (default: a temporary one)")
    parser.add_argument("--sets", nargs="+", choices=AIMS, help="instruction sets of our engine (default: the best)")
    parser.add_argument("--hidden", default="", help="description of hidden instruction sets, stored in the result")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        times = measure(engines(chosen, chosen.models or Path(folder)), chosen.rounds)
    rows = compare(times)
    report(rows)
    made_with = {
        "processor": processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "rounds": chosen.rounds,
        "threads": 1,
        "versions": versions(),
        "hidden": chosen.hidden,
    }
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    found = {"made_with": made_with, "resnet18": rows, "aims": reached(times)}
    chosen.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
