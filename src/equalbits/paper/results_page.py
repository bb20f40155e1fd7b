"""docs/results.md, drawn from the ledgers in results/: no number in it is typed by hand."""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equalbits.paper.compare_report import markdown
from equalbits.paper.keep import take
from equalbits.paper.outcomes import outcomes
from equalbits.paper.published import TABLE_2
from equalbits.recipes.compare import Comparison

_MARKER = "<!-- drawn by python -m equalbits.paper.results_page -->"

_HEAD = """# Results

Drawn from the ledgers in `results/` by `python -m equalbits.paper.results_page`; every number was measured.
A score is the share of all test images that the model of the **last** epoch gets right, mean ± sample standard
deviation over seeds. The best epoch, picked by the test images themselves and so flattering, stands beside it.
"""

_ALT = "accuracy, entropy, flips, exact filters, seconds and packed size of every method"

_MEMORY = """
## Memory while training

The peak that torch allocates while it trains a CIFAR ResNet-18 (`benchmarks/training_memory.py`). The net with binary
weights *and* activations takes more than the real one: a sign in front of each convolution keeps its output and the
mask of its gradient besides, and its blocks add a PReLU. Binary weights alone cost nothing. Measured before norm, PReLU
and sign became one operation that keeps a bit for each output.
"""

_STEP = """
## Speed of training

Milliseconds for one optimizer step, batch 128, 32×32 images, median of interleaved rounds (`benchmarks/gpu_step.py`).
*Real* is the same net in full precision, made to run the same way. The *released way* is re-created in our own words
from what the authors' code does; what it takes hangs on the host's processor too.
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

_TABLE_2 = """
## Conv nets on CIFAR-10 (the paper's table 2)

The paper's recipe: 100 epochs, batch 128, SGD with momentum 0.9, learning rate 0.1 with cosine decay, weight decay
1e-4, all layers binary. `torch` is PyTorch's own initialisation, which the released code uses; `kaiming` is the Kaiming
normal that the paper's text names. The published numbers are met with the first and missed with the second, for
both methods: its latents are 2.4 times as large, so each step crosses fewer ranks.
"""


def results_page(folder: Path) -> str:
    """The page, from the items and the ledgers in ``folder``."""
    tables = _TABLE_2 + "".join(_section(ledger) for ledger in _ledgers(folder))
    return _HEAD + outcomes(folder) + tables + _speed(folder) + _memory(folder)


def comparison_page(folder: Path) -> str:
    """docs/comparison.md: every method side by side on the embedded data."""
    comparison = Comparison.from_dict(json.loads((folder / "fashion-compare.json").read_text()))
    title, _, rest = markdown(comparison).partition("\n")
    command = "`equalbits compare --methods all --seeds 0-2`"
    return (
        f"{title}\n\nMade by {command}; drawn from `results/fashion-compare.json`.\n{rest}\n![{_ALT}](comparison.png)\n"
    )


def readme_table(folder: Path) -> str:
    """The few rows that the README shows: each net and method with torch's own start, against the paper."""
    lines = ["| | paper | equalbits |", "|---|---|---|"]
    for ledger in _ledgers(folder):
        net = ledger["recipe"].removeprefix("cifar10-")
        for case in ledger["cases"]:
            method = case["settings"]["model.weight_quantizer"]
            if case["settings"]["model.init"] != "torch" or (net, method) not in TABLE_2:
                continue
            last, published = _accuracies(case["runs"], "last"), TABLE_2[net, method]
            ours = f"{statistics.fmean(last):.2f} ± {statistics.stdev(last):.2f}"
            lines.append(f"| {net.capitalize()}, {method} | {published.mean:.2f} ± {published.spread:.2f} | {ours} |")
    return "\n".join(lines)


def with_table(readme: str, table: str) -> str:
    """The README with its table replaced."""
    before, marker, rest = readme.partition(_MARKER)
    return before + marker + "\n" + table + "\n\n" + rest.partition("\n\n")[2]


def _ledgers(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("cifar10-conv*.json"))]


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
    ranking = _ranking(json.loads((folder / "cpu-quantizer.json").read_text()))
    return _STEP + steps + ranking + _INFERENCE + _inference(folder)


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


def _section(ledger: Mapping[str, Any]) -> str:
    net = ledger["recipe"].removeprefix("cifar10-")
    rows = [_row(net, case) for case in ledger["cases"]]
    runs = [run for case in ledger["cases"] for run in case["runs"]]
    each = statistics.fmean(run["seconds"] for run in runs)
    made_on = f"{', '.join(ledger['devices'])}; {'; '.join(ledger['versions'])}"
    made = f"{made_on}; {runs[0]['stacked_with']} nets side by side, {each:.1f} s a net."
    head = "| method | start | last epoch | n | best epoch | paper | difference | within the paper's ± |"
    return f"\n### {net.capitalize()}\n\n{head}\n|---|---|---|---|---|---|---|---|\n{''.join(rows)}\n{made}\n"


def _row(net: str, case: Mapping[str, Any]) -> str:
    method, init = case["settings"]["model.weight_quantizer"], case["settings"].get("model.init", "torch")
    last, best = (_accuracies(case["runs"], which) for which in ("last", "best"))
    mean, spread = statistics.fmean(last), statistics.stdev(last)
    published = TABLE_2.get((net, method))
    against = "– | – | –"
    if published is not None:
        gap = mean - published.mean
        verdict = "yes" if abs(gap) <= published.spread else "no"
        against = f"{published.mean:.2f} ± {published.spread:.2f} | {gap:+.2f} | {verdict}".replace("-", "−")
    cells = f"{method} | {init} | {mean:.2f} ± {spread:.2f} | {len(last)} | {statistics.fmean(best):.2f} | {against}"
    return f"| {cells} |\n"


def _accuracies(runs: Sequence[Mapping[str, Any]], which: str) -> list[float]:
    return [100 * run[which]["correct"] / run[which]["total"] for run in runs]


def main(words: Sequence[str] | None = None) -> int:
    """Take in what was measured elsewhere, where folders are named, and draw every page anew."""
    parser = argparse.ArgumentParser(prog="python -m equalbits.paper.results_page", description=main.__doc__)
    parser.add_argument(
        "--take", metavar="DIR", type=Path, action="append", default=[], help="the folder of an item that was measured"
    )
    results, docs, readme = Path("results"), Path("docs"), Path("README.md")
    failed = False
    for folder in parser.parse_args(words).take:
        try:
            print(f"{folder}: kept as {take(folder, results, docs)}")
        except ValueError as error:  # the others are taken, and the pages show them
            failed = True
            print(f"results_page: {' '.join(str(error).split())}", file=sys.stderr)
    (docs / "results.md").write_text(results_page(results))
    (docs / "comparison.md").write_text(comparison_page(results))
    readme.write_text(with_table(readme.read_text(), readme_table(results)))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
