"""docs/results.md, drawn from the ledgers in results/: no number in it is typed by hand."""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equalbits._plotting import method_name
from equalbits.paper.claims import score_of
from equalbits.paper.item import get_item, list_items
from equalbits.paper.keep import renew, take
from equalbits.paper.outcomes import falls_short, outcomes
from equalbits.paper.published import TABLE_2
from equalbits.paper.tables.tab2_convnets import COMPARED, by_method
from equalbits.paper.trained import cost
from equalbits.recipes import clear_up

_MARKER = "<!-- drawn by python -m equalbits.paper.results_page -->"
_END = "<!-- drawn to here -->"

_HEAD = """# Results

Drawn from the ledgers in `results/` by `python -m equalbits.paper.results_page`; every number was measured.
A score is the share of all test images that the model of the **last** epoch gets right, mean ± sample standard
deviation over seeds.
"""

_MEMORY = """
## Memory while training

The peak that torch allocates while it trains a CIFAR ResNet-18 (`benchmarks/training_memory.py`). The net with binary
weights *and* activations takes more than the real one: a sign in front of each convolution keeps its output and the
mask of its gradient besides, and its blocks add a PReLU. Captured, most of that is gone: norm, PReLU and sign are one
operation then, which keeps a bit for each output. Binary weights alone cost nothing.
"""

_STEP = """
## Speed of training

Milliseconds for one optimizer step, batch 128, 32×32 images, median of interleaved rounds (`benchmarks/gpu_step.py`).
*Real* is the same net in full precision, made to run the same way. The *released way* is re-created in our own words
from what the authors' code does; what it takes hangs on the host's processor too.
"""

_PRUNED = """
What pruning costs while training, in milliseconds for the same step of {net}, half of its weights 0: bi-half with
all weights takes {dense:.3f}, without its middle ranks {rank:.3f}, sign without its smallest weights {sign:.3f},
Multi-Prize Tickets {mpt:.3f} ({made}).
"""

_STACK = """
Nets side by side (`benchmarks/gpu_stack.py`): {what}, by the number of streams they are dealt out to; symbols
are ranked ahead, as in training. What the host takes to launch them passes while the device works.
"""

_LOW_BITS = """
Would 8-bit products of ±1 with ±1 pay? Microseconds for one layer's forward pass in a binary ResNet-18, batch {batch}
(`benchmarks/gpu_low_bits.py`). torch has 8-bit matrix products and no 8-bit convolutions, so the patches must be laid
out first. With that the bfloat16 convolution, which training uses, is the quicker one on {won} of {layers}
layers; {exact}.
"""

_RANKING = """
On a CPU (`benchmarks/cpu_quantizer.py`; {processor}, {threads} threads, torch {torch}, n = {rounds}) the ranking of a
ResNet-18's weights takes {selected:.0f} ms where a full sort takes {sorted:.0f}, a ratio of {ratio:.1f} ({least:.1f} to
{most:.1f}). A whole training step by bi-half takes {steps} times as long as by sign.
"""

_INFERENCE = """
## Speed of inference on a CPU

An ImageNet ResNet-18, one image of 224×224, one thread, CPU time, engines in turns (`benchmarks/cpu_inference.py`). The
first column is the median with its quartiles; the others say how many times as long an engine takes as ours. Each table
is one run; the runs of one kind show how far such a machine lets them be repeated.
"""


def results_page(folder: Path) -> str:
    """The page, from the items and the ledgers in ``folder``."""
    return _HEAD + outcomes(folder) + _speed(folder) + _memory(folder)


def readme_table(folder: Path) -> str:
    """What the README shows: a row for each net, once more with tuned settings where that was measured, and the cost.

    Only what was measured as the paper did, with all seeds, stands beside it; nets and methods may lack.
    """
    parts = []
    for name, words in (
        ("tab2", []),
        ("tab2-tuned", ["With settings that were tuned on held-out training images:", ""]),
    ):
        path = folder / f"{name}.json"
        kept = json.loads(path.read_text()) if path.exists() else None
        if kept is not None and not falls_short(get_item(name), kept):
            table = _beside_the_papers(kept["measured"]["nets"])
            parts.append("\n".join([*words, *table, "", f"{cost(kept)}.{_longer(kept['measured'])}"]))
    return "\n\n".join(parts)


def _longer(measured: Mapping[str, Any]) -> str:
    """Which tuned nets took other epochs than the paper's."""
    tuned = measured.get("tuning", {})
    epochs = {net: {case["picked"].get("epochs", 100) for case in methods.values()} for net, methods in tuned.items()}
    others = [f"{net.capitalize()} {' or '.join(map(str, sorted(n)))}" for net, n in epochs.items() if n != {100}]
    return f" Epochs: {', '.join(others)}; else 100, as the paper's." if others else ""


def _beside_the_papers(nets: Mapping[str, Any]) -> list[str]:
    """Two columns for each method that was trained: the paper's score and ours."""
    found = {net: by_method(cases) for net, cases in nets.items()}
    trained = [method for method in COMPARED if any(method in methods for methods in found.values())]
    head = [f"{method_name(method)}, paper | equalbits" for method in trained]
    lines = [f"| | {' | '.join(head)} |", f"|---|{'---|' * 2 * len(trained)}"]
    for net, methods in found.items():
        scores = {method: score_of(case).replace(" %", "") for method, case in methods.items()}
        papers = {method: TABLE_2[net, method] for method in trained}
        cells = [f"{paper.mean:.2f} ± {paper.spread:.2f} | {scores.get(of, '–')}" for of, paper in papers.items()]
        lines.append(f"| {net.capitalize()} | {' | '.join(cells)} |")
    return lines


def with_table(readme: str, table: str) -> str:
    """The README with what is drawn between its two marks replaced."""
    before, begin, rest = readme.partition(_MARKER)
    if not begin or _END not in rest:
        raise ValueError(f"the README must have {_MARKER} and {_END} around what is drawn: write both where it belongs")
    return f"{before}{_MARKER}\n{table}\n\n{_END}{rest.partition(_END)[2]}"


def _memory(folder: Path) -> str:
    """Peak memory of training, full precision first."""
    measured = json.loads((folder / "training-memory.json").read_text())
    ways = list(next(iter(measured["peak_bytes"].values())))
    lines = [f"| MiB at the peak | {' | '.join(ways)} |", f"|---|{'---:|' * len(ways)}"]
    for net, peaks in measured["peak_bytes"].items():
        lines.append(f"| {net} | {' | '.join(f'{peaks[way] / 2**20:,.0f}' for way in ways)} |")
    made = f"{measured['device']}; torch {measured['torch']}; batch {measured['batch']}, {measured['steps']} steps."
    return _MEMORY + "\n" + "\n".join(lines) + f"\n\n{made}\n"


def _speed(folder: Path) -> str:
    """Training on a GPU and inference on a CPU."""
    steps = _steps(json.loads((folder / "gpu-step.json").read_text()))
    pruned = _pruned_steps(json.loads((folder / "gpu-step-pruned.json").read_text()))
    stack = _stack(json.loads((folder / "gpu-stack.json").read_text()))
    low_bits = _low_bits(json.loads((folder / "gpu-low-bits.json").read_text()))
    ranking = _ranking(json.loads((folder / "cpu-quantizer.json").read_text()))
    return _STEP + steps + pruned + stack + low_bits + ranking + _INFERENCE + _inference(folder)


def _pruned_steps(measured: Mapping[str, Any]) -> str:
    ((net, found),) = measured["nets"].items()
    times = found["median_ms"]
    return _PRUNED.format(
        net=net,
        dense=times["bihalf"],
        rank=times["pruned-bihalf"],
        sign=times["pruned-sign"],
        mpt=times["mpt"],
        made=f"{measured['device']}; torch {measured['torch']}; n = {measured['rounds']} rounds of {measured['steps']}",
    )


def _stack(measured: Mapping[str, Any]) -> str:
    """What a net's step costs among others, by the number of streams they are dealt out to."""
    lines = ["| streams | ms | of the host |", "|---:|---:|---:|"]
    lines += [
        f"| {row['lanes']} | {row['ms']:.3f} | {row['host_ms']:.3f} |" for row in measured["rows"] if row["ahead"]
    ]
    made = f"{measured['device']}; torch {measured['torch']}; n = {measured['rounds']} rounds of {measured['steps']}."
    return _STACK.format(what=measured["what"]) + "\n" + "\n".join(lines) + f"\n\n{made}\n"


def _low_bits(measured: Mapping[str, Any]) -> str:
    layers = measured["layers"]
    ways = list(next(iter(layers.values())))
    lines = [f"| | {' | '.join(ways)} |", f"|---|{'---:|' * len(ways)}"]
    for layer, found in layers.items():
        cells = [f"{found[way]['median_us']:.1f}" for way in ways]
        lines.append(f"| {layer} | {' | '.join(cells)} |")
    inexact = sum(not way["exact"] for found in layers.values() for way in found.values())
    words = _LOW_BITS.format(
        batch=measured["what"].rpartition(" ")[2],
        won=sum(
            found["bf16 convolution"]["median_us"] < found["fp8 with patches"]["median_us"] for found in layers.values()
        ),
        layers=len(layers),
        exact=f"{inexact} of the ways are not exact" if inexact else "all ways give the same numbers",
    )
    made = f"{measured['device']}; torch {measured['torch']}; n = {measured['rounds']}."
    return words + "\n" + "\n".join(lines) + f"\n\n{made}\n"


def _ranking(measured: Mapping[str, Any]) -> str:
    ways, made = measured["ways"], measured["made_with"]
    taken = {way: found["milliseconds"] for way, found in ways.items()}
    return _RANKING.format(
        threads=made["threads"],
        processor=made["processor"],
        torch=made["torch"],
        rounds=len(taken["selection"]),
        selected=statistics.median(taken["selection"]),
        sorted=statistics.median(taken["stable sort"]),
        ratio=ways["selection"]["ratio"]["median"],
        least=ways["selection"]["ratio"]["least"],
        most=ways["selection"]["ratio"]["most"],
        steps=", ".join(
            f"{found['ratio']['median']:.2f} ({net}, batch {found['batch']})"
            for net, found in measured["steps"].items()
        ),
    )


def _steps(measured: Mapping[str, Any]) -> str:
    lines = [
        "| | released way | real | bi-half | released / bi-half | bi-half / real |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for net, found in measured["nets"].items():
        released, real, ours = (found["median_ms"][way] for way in ("released", "real", "bihalf"))
        times = f"{released:.2f} | {real:.3f} | {ours:.3f}"
        lines.append(f"| {net} | {times} | {released / ours:.1f} | {ours / real:.3f} |")
    made = f"{measured['device']}; torch {measured['torch']}; n = {measured['rounds']} rounds of {measured['steps']}."
    ways = f"Released: {measured['released']}. The others: {measured['ours']}."
    return "\n" + "\n".join(lines) + f"\n\n{made} {ways}\n"


def _inference(folder: Path) -> str:
    return "".join(_engines(json.loads(path.read_text())) for path in sorted(folder.glob("cpu-inference-*.json")))


def _engines(measured: Mapping[str, Any]) -> str:
    """A table of engines, quickest first."""
    made, engines = measured["made_with"], measured["resnet18"]
    ours = [name for name in engines if name.startswith("equalbits") and "portable" not in name]
    lines = [f"| | ms | {' | '.join(f'÷ {name}' for name in ours)} |", f"|---|---:|{'---:|' * len(ours)}"]
    for name, found in sorted(engines.items(), key=lambda item: item[1]["ms"]["median"]):
        time, ratios = found["ms"], [found["times_as_long_as"][mine]["median"] for mine in ours]
        spread = f"{time['median']:.1f} ({time['lower_quartile']:.1f}–{time['upper_quartile']:.1f})"
        lines.append(f"| {name} | {spread} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |")
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    seen = f"hidden from all: {made['hidden']}" if "hidden" in made else "every engine uses what the processor has"
    machine = f", {made['machine']}" if "machine" in made else ""
    where = f"{made['processor']}{machine}; {seen}; n = {made['rounds']}; {versions}."
    return "\n" + "\n".join(lines) + f"\n\n{where}\n"


def main(words: Sequence[str] | None = None) -> int:
    """Take in what was measured elsewhere, where folders are named, and draw every page anew."""
    parser = argparse.ArgumentParser(prog="python -m equalbits.paper.results_page", description=main.__doc__)
    parser.add_argument(
        "--take", metavar="DIR", type=Path, action="append", default=[], help="the folder of an item that was measured"
    )
    results, docs, readme = Path("results"), Path("docs"), Path("README.md")
    folders, failed = parser.parse_args(words).take, False
    if not (results.is_dir() and docs.is_dir()):
        print("results_page: no results/ and docs/ here: go to the folder of README.md first", file=sys.stderr)
        return 1
    clear_up(results)
    clear_up(docs)
    for folder in folders:
        try:
            print(f"{folder}: kept as {take(folder, results, docs, log=print)}")
        except ValueError as error:  # the others are taken, and the pages show them
            failed = True
            print(f"results_page: {' '.join(str(error).split())}", file=sys.stderr)
    for path in [results / f"{name}.json" for name in list_items()]:
        if path.exists():
            renew(path)
    (docs / "results.md").write_text(results_page(results))
    readme.write_text(with_table(readme.read_text(), readme_table(results)))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
