"""``equalbits report``."""

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``report`` takes."""
    parser.add_argument("folder", metavar="DIR", help="the folder of a run, a sweep, a comparison, an item, or several")
    parser.add_argument("--out", metavar="FILE", help="the page to write (default: report.html in DIR)")


def run(options: argparse.Namespace) -> None:
    """Write the page, and say where it lies."""
    from equalbits.report import write_report  # here, so that --help need not wait for torch

    path = write_report(
        Path(options.folder),
        Path(options.out) if options.out else None,
        log=lambda line: print(f"equalbits report: {line}", file=sys.stderr),
    )
    print(f"page: {path}")
