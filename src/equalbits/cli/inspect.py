"""``equalbits inspect``."""

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``inspect`` takes."""
    parser.add_argument("run", metavar="DIR", help="the folder of a run")
    parser.add_argument(
        "--which", choices=("last", "best"), default="last", help="the last epoch (default) or the best"
    )
    parser.add_argument("--json", action="store_true", help="print as one JSON object")


def run(options: argparse.Namespace) -> None:
    """Print the layers, then the proof of their ratios."""
    # Imported here, so that --help need not wait for torch.
    from equalbits.analysis import audit, summarize
    from equalbits.recipes import Images, load_run

    out = Path(options.run)
    recipe, model = load_run(out, which=options.which)
    images = Images.read(out / "model.json")
    summary = summarize(model, (1, images.channels, images.size, images.size))
    report = audit(model)
    if options.json:
        print(json.dumps({"recipe": recipe.as_dict(), "summary": summary.as_dict(), "audit": report.as_dict()}))
    else:
        print(f"{recipe.name}: {recipe.model.name}, {recipe.model.weight_quantizer}\n\n{summary}\n\n{report}")
