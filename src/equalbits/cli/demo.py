"""``equalbits demo``."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from equalbits.paper.demo_measure import Measured


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``demo`` takes."""
    parser.add_argument("--out", metavar="DIR", default="runs/demo", help="where it all goes (default: runs/demo)")
    parser.add_argument("--epochs", type=int, default=4, metavar="N", help="epochs a method (default: 4)")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, or auto")
    parser.add_argument("--json", action="store_true", help="print what was measured as one JSON object")


def run(options: argparse.Namespace) -> int:
    """Train, draw, print the table and what it says."""
    # Imported here, so that --help need not wait for torch.
    from equalbits.cli.progress import ProgressBar
    from equalbits.paper import run_demo
    from equalbits.paper.demo_measure import demo_recipe, is_measured
    from equalbits.paper.demo_pack import pack_run
    from equalbits.paper.demo_report import verdict
    from equalbits.training import InterruptedTraining

    out, recipe = Path(options.out), demo_recipe(epochs=options.epochs)
    finished = is_measured(out)
    with ProgressBar(title="demo", quiet=options.json) as bar:
        try:
            measured = run_demo(out, recipe=recipe, device=options.device, reporters_for=bar.begun)
        except InterruptedTraining as stopped:
            bar.close()
            kept = "methods that are done are kept, the one under way begins anew"
            print(f"equalbits demo: stopped; {kept}: run the same command to go on", file=sys.stderr)
            return 128 + stopped.signal_number
    if options.json:
        print(json.dumps([vars(each) for each in measured]))
        return 0
    _print_table(measured)
    for line in verdict(measured):
        print(line)
    print(pack_run(out / "bihalf", out / "bihalf.ebits"))
    print(f"picture: {out / 'demo.png'}    page: {out / 'report.html'}")
    if finished:
        print(f"nothing was left to train: {out} held the finished demo already")
    return 0


def _print_table(measured: "list[Measured]") -> None:
    from rich.console import Console
    from rich.table import Table

    from equalbits.paper.demo_report import table

    rows = table(measured)
    shown = Table(box=None, pad_edge=False)
    for name in rows[0]:
        shown.add_column(name, justify="left" if name == "method" else "right", overflow="fold")  # no digit is cut off
    for row in rows:
        shown.add_row(*row.values())
    width = None if sys.stdout.isatty() else 160
    Console(highlight=False, width=width).print(shown)
