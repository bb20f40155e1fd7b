"""``equalbits reproduce``."""

import argparse
import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from equalbits._extras import require_matplotlib
from equalbits.cli.sweep import parse_seeds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``reproduce`` takes."""
    parser.add_argument("item", metavar="ITEM", nargs="?", help="fig1 … fig8, tab1 … tab3, or all; none: list them")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small nets on the embedded data, a minute an item, in place of the paper's",
    )
    parser.add_argument("--out", metavar="DIR", help="where it all goes (default: runs/ITEM, or runs/quick-ITEM)")
    parser.add_argument("--data", metavar="DIR", help="where data sets lie (else $EQUALBITS_DATA, ~/.cache/equalbits)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto (default)")
    parser.add_argument(
        "--seeds", default="", help="other seeds, as in 0-4 or 0,3,7, where an item trains with several"
    )
    parser.add_argument("--stack", type=int, default=0, metavar="N", help="train N runs at once on one device")
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], dest="settings",
        help="as for train; what an item goes through takes several, as in nets=conv2,conv4",
    )  # fmt: skip
    parser.add_argument(
        "--ray", metavar="ADDRESS", default="",
        help="spread runs over a Ray cluster, as for sweep; those that are watched as they train stay here",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the rows as JSON, one object an item")


def run(options: argparse.Namespace) -> int:
    """Measure what was not, draw, and print a row per claim."""
    # Imported here, so that --help need not wait for torch.
    from equalbits.cli.progress import ProgressBar
    from equalbits.paper import Options, get_item, list_items
    from equalbits.recipes import check_kind, parse_settings
    from equalbits.training import InterruptedTraining

    if options.item is None:
        titles = {name: get_item(name).title for name in list_items()}
        width = max(map(len, titles))
        lines = "\n".join(f"{name:<{width}}  {title}" for name, title in titles.items())
        print(json.dumps(titles) if options.json else lines)
        return 0
    if options.stack < 0:
        raise ValueError(f"--stack {options.stack}: train at least one run at a time")
    if options.ray and options.stack > 1:
        raise ValueError("--ray gives each seed a place of its own: leave --stack away")
    require_matplotlib()
    names = list_items() if options.item == "all" else [get_item(options.item).name]
    if options.item == "all" and options.out:
        check_kind(Path(options.out), "items")  # each has a folder of its own in it
    with ProgressBar(title=options.item, quiet=options.json) as bar:
        asked = Options(
            quick=options.quick,
            root=Path(options.data) if options.data else None,
            device=options.device,
            stack=options.stack,
            seeds=parse_seeds(options.seeds) if options.seeds else (),
            settings=parse_settings(options.settings),
            ray=options.ray,
            log=lambda line: print(line, file=sys.stderr),
        )
        try:
            return max(_one(name, _folder(options, name), asked, bar, options) for name in names)
        except InterruptedTraining as interrupted:
            bar.close()
            print(f"equalbits reproduce: {interrupted}\nthe same command goes on from there", file=sys.stderr)
            return 128 + interrupted.signal_number


def _folder(options: argparse.Namespace, name: str) -> Path:
    if options.out is None:
        return Path("runs") / (f"quick-{name}" if options.quick else name)
    return Path(options.out) / name if options.item == "all" else Path(options.out)


def _one(name: str, out: Path, asked: Any, bar: Any, options: argparse.Namespace) -> int:
    """Reproduce one item; among all, one that cannot be, for want of data say, tells why and lets the others go on."""
    from equalbits.paper import reproduce

    bar.begin(name)
    asked = replace(asked, reporters_for=bar.row if options.ray else lambda run: bar.begun(f"{name}: {run}"))
    try:
        with redirect_stdout(sys.stderr):  # so that what libraries print does not mix with the rows
            claims = reproduce(name, out, options=asked)
    except ValueError as error:
        if options.item != "all":
            raise
        print(f"equalbits reproduce: {name}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps({"item": name, "out": str(out), "claims": [asdict(claim) for claim in claims]}))
        return 0
    _print_rows(name, out, claims)
    return 0


def _print_rows(name: str, out: Path, claims: list[Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from equalbits.paper.claims import HEADER, NO_CLAIM

    shown = Table(box=None, pad_edge=False)
    for column in HEADER:
        shown.add_column(column, justify="right" if column in ("difference", "n") else "left", overflow="fold")
    for claim in claims:
        shown.add_row(*claim.cells())
    Console(highlight=False, width=None if sys.stdout.isatty() else 220).print(shown if claims else NO_CLAIM)
    print(f"picture: {out / f'{name}.png'}    rows: {out / 'claims.md'}")
