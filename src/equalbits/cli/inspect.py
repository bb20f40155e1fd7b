"""``equalbits inspect``."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import equalbits as eb
from equalbits.cli.arguments import add_json, add_which
from equalbits.cli.pack import check_source
from equalbits.cli.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="DIR|FILE", help="output directory of a run, a packed file, or zoo:NAME")
    add_which(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Print the layers, then the audit of their shares of +1."""
    path = eb.runtime.find_packed(options.source)
    check_source(path, options.which)
    if path.is_file():
        _inspect_packed(path, options.source, as_json=options.json)
    else:
        _inspect_run(path, options)


def _inspect_run(out: Path, options: argparse.Namespace) -> None:

    run = eb.recipes.load_run(out, which=options.which)
    recipe, model = run.recipe, run.model
    images = eb.recipes.DataSpec.read(out / "model.json")
    summary = eb.analysis.summarize(model, (1, images.channels, images.size, images.size))
    binary = any(isinstance(layer, eb.nn.BinaryLayer) for layer in model.modules())
    report = eb.audit(model) if binary else eb.analysis.Audit(())
    if options.json:
        print(json.dumps({"recipe": recipe.as_dict(), "summary": summary.as_dict(), "audit": report.as_dict()}))
    else:
        method = recipe.model.weight_quantizer or "real weights"
        verdict = report if binary else "no binary layer: no share of +1 to check"
        say(f"{recipe.name}: {recipe.model.name}, {method}\n\n{summary}\n\n{verdict}")


def _inspect_packed(path: Path, name: str, *, as_json: bool) -> None:
    """Inspect a packed file, without torch."""
    from equalbits.runtime import audit, read_network, summarize

    network, size = read_network(path), path.stat().st_size
    summary, report = summarize(network), audit(network)
    facts: dict[str, Any] = {
        "bytes": size,
        "input": list(network.input_shape),
        "classes": list(network.classes),
        "notes": dict(network.notes),
        "holds": report.exact,
    }
    if network.lengths is not None:
        facts["lengths"] = [network.lengths.least, network.lengths.most]
    if as_json:
        counts = [
            {"layer": layer.name, "connections": layer.connections, "p_pos": layer.p_pos}
            | {"wrong_filters": len(layer.inexact), "positive": layer.positive.tolist()}
            | {"negative": layer.negative.tolist(), "pruned": layer.zero.tolist()}
            for layer in report.layers
        ]
        print(json.dumps({**facts, "layers": [asdict(layer) for layer in summary.layers], "audit": counts}))
        return
    shape = "×".join(map(str, network.input_shape))
    classes = f", {len(network.classes)} classes" if network.classes else ""
    lengths = ", lengths {} to {}".format(*facts["lengths"]) if "lengths" in facts else ""
    say(f"{name}: {size:,} bytes, images of {shape}{lengths}{classes}\n")
    say(f"{summary}\n\n{report}")
