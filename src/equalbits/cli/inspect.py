"""``equalbits inspect``."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``inspect`` takes."""
    parser.add_argument("run", metavar="DIR|FILE", help="the folder of a run, or a packed file")
    parser.add_argument(
        "--which", choices=("last", "best"), default="last", help="of a run: the last epoch (default) or the best"
    )
    parser.add_argument("--json", action="store_true", help="print as one JSON object")


def run(options: argparse.Namespace) -> None:
    """Print the layers, then the proof of their ratios."""
    path = Path(options.run)
    if not path.exists():
        raise ValueError(f"{path} is not there: give a packed file, or the folder of a run")
    if path.is_file():
        if options.which != "last":
            raise ValueError(f"--which {options.which}: {path} is a packed file, of one epoch; leave --which away")
        _inspect_packed(path, as_json=options.json)
    else:
        _inspect_run(path, options)


def _inspect_run(out: Path, options: argparse.Namespace) -> None:
    # Imported here, so that --help need not wait for torch.
    from equalbits.analysis import Audit, audit, summarize
    from equalbits.nn import BinaryLayer
    from equalbits.recipes import ImageSpec, load_run

    recipe, model = load_run(out, which=options.which)
    images = ImageSpec.read(out / "model.json")
    summary = summarize(model, (1, images.channels, images.size, images.size))
    binary = any(isinstance(layer, BinaryLayer) for layer in model.modules())
    report = audit(model) if binary else Audit(())
    if options.json:
        print(json.dumps({"recipe": recipe.as_dict(), "summary": summary.as_dict(), "audit": report.as_dict()}))
    else:
        method = recipe.model.weight_quantizer or "real weights"
        verdict = report if binary else "no layer of it is binary: there is no share of +1 to hold"
        print(f"{recipe.name}: {recipe.model.name}, {method}\n\n{summary}\n\n{verdict}")


def _inspect_packed(path: Path, *, as_json: bool) -> None:
    """A packed file, by numpy alone."""
    from equalbits.runtime import read_network
    from equalbits.runtime.audit import audit, summarize

    network = read_network(path)
    summary, report, size = summarize(network), audit(network), path.stat().st_size
    facts: dict[str, Any] = {
        "bytes": size,
        "input": list(network.input_shape),
        "classes": list(network.classes),
        "notes": dict(network.notes),
        "holds": report.holds,
    }
    if as_json:
        counted = [
            {"layer": layer.name, "connections": layer.connections, "p_pos": layer.p_pos, "wrong_filters": layer.wrong}
            | {part: getattr(layer, part).tolist() for part in ("positive", "negative", "pruned")}
            for layer in report.layers
        ]
        print(json.dumps({**facts, "layers": [asdict(layer) for layer in summary.layers], "audit": counted}))
        return
    shape = "×".join(map(str, network.input_shape))
    named = f", {len(network.classes)} classes" if network.classes else ""
    print(f"{path}: {size:,} bytes, images of {shape}{named}\n")
    print(f"{summary}\n\n{report}")
