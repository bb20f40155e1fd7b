"""``equalbits report``."""

import argparse
import json
from pathlib import Path

from equalbits.cli.arguments import add_json
from equalbits.cli.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        metavar="DIR",
        help="output directory of train, sweep, compare or reproduce, or one that holds several",
    )
    parser.add_argument("--out", metavar="FILE", help="the HTML file to write (default: report.html in DIR)")
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Write the report and print its path."""
    from equalbits.report import write_report

    path = write_report(
        Path(options.folder),
        Path(options.out) if options.out else None,
        log=lambda line: say(f"equalbits report: {line}", error=True),
    )
    say(json.dumps({"report": str(path)}) if options.json else f"report: {path}")
