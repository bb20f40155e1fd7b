"""Sections of docs/results.md on speed and memory, rendered from templates/benchmarks.md."""

import json
import statistics
from pathlib import Path

_FILES = ("gpu-step", "gpu-step-pruned", "gpu-stack", "gpu-low-bits", "cpu-quantizer", "training-memory")


def benchmark_sections(folder: Path) -> str:
    """Render the benchmark results in ``folder`` as Markdown."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("equalbits.paper.results")
    templates = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    templates.filters["median"] = statistics.median
    templates.tests["our_engine"] = lambda name: name.startswith("equalbits") and "portable" not in name
    results = {name.replace("-", "_"): json.loads((folder / f"{name}.json").read_text()) for name in _FILES}
    layers = results["gpu_low_bits"]["layers"].values()
    pairs = [(layer["bf16 convolution"]["median_us"], layer["fp8 with patches"]["median_us"]) for layer in layers]
    page = templates.get_template("benchmarks.md").render(
        results,
        cpu_inference=[json.loads(path.read_text()) for path in sorted(folder.glob("cpu-inference-*.json"))],
        faster_in_bf16=sum(bf16 < fp8 for bf16, fp8 in pairs),
        inexact=sum(not variant["exact"] for layer in layers for variant in layer.values()),
    )
    return f"{page}\n"
