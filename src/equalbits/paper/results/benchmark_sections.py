"""Sections of docs/results.md on the language model, speed and memory, rendered from templates/benchmarks.md."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from equalbits._statistics import Difference, Sample, holm, welch

_FILES = (
    *("gpu-step", "gpu-step-pruned", "gpu-stack", "gpu-low-bits", "cpu-quantizer"),
    *("decoder", "training-cost", "eager-host-time", "char-gpt"),
)


def benchmark_sections(folder: Path) -> str:
    """Render the benchmark results in ``folder`` as Markdown."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("equalbits.paper.results")
    templates = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    templates.filters |= {"mean": statistics.fmean, "median": statistics.median}
    templates.tests["our_engine"] = lambda name: name.startswith("equalbits") and "portable" not in name
    results = {name.replace("-", "_"): json.loads((folder / f"{name}.json").read_text()) for name in _FILES}
    layers = results["gpu_low_bits"]["layers"].values()
    pairs = [(layer["bf16 convolution"]["median_us"], layer["fp8 with patches"]["median_us"]) for layer in layers]
    page = templates.get_template("benchmarks.md").render(
        results,
        losses=list(_compared_losses(results["char_gpt"]["runs"])),
        cpu_inference=[json.loads(path.read_text()) for path in sorted(folder.glob("cpu-inference-*.json"))],
        faster_in_bf16=sum(bf16 < fp8 for bf16, fp8 in pairs),
        inexact=sum(not variant["exact"] for layer in layers for variant in layer.values()),
    )
    return f"{page}\n"


def _compared_losses(runs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Sample, Difference | None, float]]:
    """Yield each method's held-out losses, how they differ from bi-half's, and the p value corrected by Holm."""
    methods = dict.fromkeys(run["method"] for run in runs)
    samples = {name: Sample.of([run["loss"] for run in runs if run["method"] == name]) for name in methods}
    tests = {name: welch(sample, samples["bihalf"]) for name, sample in samples.items() if name != "bihalf"}
    corrected = dict(zip(tests, holm([found.p for found in tests.values() if found]), strict=True))
    for name, sample in samples.items():
        yield name, sample, tests.get(name), corrected.get(name, 1.0)
