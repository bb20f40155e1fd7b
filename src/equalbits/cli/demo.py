"""``equalbits demo``."""

import argparse
import json
from pathlib import Path

import equalbits as eb
from equalbits.cli.arguments import add_device, add_json
from equalbits.cli.terminal import print_table, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="DIR", default="runs/demo", help="output directory (default: runs/demo)")
    parser.add_argument("--epochs", type=int, default=4, metavar="N", help="epochs per method (default: 4)")
    add_device(parser, default="cpu")
    add_json(parser, text="print the measurements as a JSON list")


def run(options: argparse.Namespace) -> int:
    """Train the methods, plot, and print the table."""
    out, recipe = Path(options.out), eb.paper.demo_recipe(epochs=options.epochs)
    with eb.training.ProgressBar(title="demo", quiet=options.json) as bar:
        try:
            measured = eb.paper.run_demo(out, recipe=recipe, device=options.device, reporters_for=bar.start_run)
        except eb.training.InterruptedTraining as interrupted:
            bar.close()
            kept = "finished methods are kept, the current one restarts"
            say(f"equalbits demo: interrupted; {kept}: run the same command to resume", error=True)
            return 128 + interrupted.signal_number
    packed = eb.paper.pack_demo(out)
    if options.json:
        print(json.dumps([vars(each) for each in measured]))
        return 0
    rows = eb.paper.demo_table(measured)
    print_table([*rows[0]], [[*row.values()] for row in rows], right=[*rows[0]][1:])
    for line in eb.paper.demo_summary(measured):
        say(line)
    say(packed)
    say(f"plot: {out / 'demo.png'}    report: {out / 'report.html'}    try it: {out / 'classifier.html'}")
    return 0
