"""``equalbits evaluate``."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``evaluate`` takes."""
    parser.add_argument("run", metavar="DIR", help="the folder of a run")
    parser.add_argument(
        "--which", choices=("last", "best"), default="last", help="the last epoch (default) or the best"
    )
    parser.add_argument(
        "--data", metavar="DIR",
        help="where data sets lie (else where train was told to look, $EQUALBITS_DATA, ~/.cache/equalbits)",
    )  # fmt: skip
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto (default)")
    parser.add_argument("--json", action="store_true", help="print the counts as one JSON object")


def run(options: argparse.Namespace) -> None:
    """Score the run and print it."""
    # Imported here, so that --help need not wait for torch.
    from equalbits.recipes import epoch_under_way, evaluate_run

    root = Path(options.data) if options.data else None
    score = evaluate_run(Path(options.run), root=root, device=options.device, which=options.which)
    under_way = epoch_under_way(Path(options.run))
    if options.json:
        shares = {"accuracy": score.accuracy, "accuracy_top5": score.accuracy_top5}
        print(json.dumps({**asdict(score), **shares, "finished": under_way is None}))
        return
    so_far = f"; not finished: epoch {under_way[0]} of {under_way[1]}" if under_way else ""
    print(f"{options.run} ({options.which} epoch{so_far}): {score}; top five {score.accuracy_top5:.2f} %")
