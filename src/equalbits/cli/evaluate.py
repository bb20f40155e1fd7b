"""``equalbits evaluate``."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from equalbits.cli.arguments import add_data, add_device, add_json, add_which


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``evaluate``."""
    parser.add_argument("run", metavar="DIR", help="output directory of a run")
    add_which(parser)
    add_data(parser, default="where the run found them, else $EQUALBITS_DATA, else ~/.cache/equalbits")
    add_device(parser)
    add_json(parser, text="print the counts as one JSON object")


def run(options: argparse.Namespace) -> None:
    """Evaluate the run and print its score."""
    from equalbits.recipes import evaluate_run, unfinished_epoch

    root = Path(options.data) if options.data else None
    score = evaluate_run(Path(options.run), root=root, device=options.device, which=options.which)
    unfinished = unfinished_epoch(Path(options.run))
    if options.json:
        shares = {"accuracy": score.accuracy, "accuracy_top5": score.accuracy_top5}
        print(json.dumps({**asdict(score), **shares, "finished": unfinished is None}))
        return
    note = f"; not finished: epoch {unfinished[0]} of {unfinished[1]}" if unfinished else ""
    print(f"{options.run} ({options.which} epoch{note}): {score}; top 5 {score.accuracy_top5:.2f} %")
