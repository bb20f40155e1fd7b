"""``equalbits reproduce``."""

import argparse
import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from equalbits._extras import require_matplotlib
from equalbits.cli.arguments import add_data, add_device, add_json, add_settings, execution_options
from equalbits.cli.sweep import parse_seeds
from equalbits.cli.terminal import print_table, say

if TYPE_CHECKING:
    from equalbits.paper import Claim, Options
    from equalbits.training import ProgressBar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "item", metavar="ITEM", nargs="?", help="fig1 to fig8, tab1 to tab3, or all; without it, list the items"
    )
    parser.add_argument(
        "--quick", action="store_true", help="smaller networks on the embedded data, about a minute per item"
    )
    parser.add_argument("--out", metavar="DIR", help="output directory (default: runs/ITEM, or runs/quick-ITEM)")
    add_data(parser)
    add_device(parser)
    parser.add_argument(
        "--seeds",
        default="",
        help="seeds, such as 0-4 or 0,3,7, for items that train several (default: the paper's number)",
    )
    parser.add_argument(
        "--stack", type=int, metavar="N", help="runs to train at once on one device (default: 16 on a GPU, else 1)"
    )
    add_settings(parser, more="; an item's grid parameters accept comma-separated values, such as nets=conv2,conv4")
    parser.add_argument(
        "--ray", metavar="ADDRESS", default="",
        help="distribute runs over a Ray cluster, as for sweep; runs measured at every step stay on this machine",
    )  # fmt: skip
    parser.add_argument(
        "--keep", action="store_true",
        help="in a checkout of the repository: store the measurement in results/ and update docs/results.md",
    )  # fmt: skip
    add_json(parser, text="print one JSON object per item")


def run(options: argparse.Namespace) -> int:
    """Measure what is missing, plot, and print a row per claim."""
    from equalbits.paper import Options, get_item, keep_items, list_items
    from equalbits.recipes import check_kind, parse_settings
    from equalbits.training import ProgressBar

    if options.item is None:
        titles = {name: get_item(name).title for name in list_items()}
        width = max(map(len, titles))
        lines = "\n".join(f"{name:<{width}}  {title}" for name, title in titles.items())
        say(json.dumps(titles) if options.json else lines)
        return 0
    if options.ray and (options.stack or 1) > 1:
        raise ValueError("--ray runs each seed separately: omit --stack")
    if options.keep and not (Path("results").is_dir() and Path("docs").is_dir()):
        raise ValueError("--keep needs the directories results/ and docs/: run it at the root of the repository")
    require_matplotlib()
    names = list_items() if options.item == "all" else [get_item(options.item).name]
    if options.item == "all" and options.out:
        check_kind(Path(options.out), "items")  # each item gets a subdirectory
    failed: list[str] = []
    with ProgressBar(title=options.item, quiet=options.json) as bar:
        settings = Options(
            quick=options.quick,
            seeds=parse_seeds(options.seeds) if options.seeds else (),
            settings=parse_settings(options.settings),
            **execution_options(options, bar),
        )
        for name in names:
            try:
                _reproduce(name, settings, bar, options)
            except ValueError as error:
                if options.item != "all":
                    raise
                failed.append(name)
                say(f"equalbits reproduce: {name}: {' '.join(str(error).split())}", error=True)
    if options.keep:
        measured = [_folder(options, name) for name in names if name not in failed]
        refused = keep_items(measured, Path(), log=lambda line: say(line, error=True))
        for line in refused:
            say(f"equalbits reproduce: {line}", error=True)
        failed += refused
    return int(bool(failed))


def _folder(options: argparse.Namespace, name: str) -> Path:
    if options.out is None:
        return Path("runs") / (f"quick-{name}" if options.quick else name)
    return Path(options.out) / name if options.item == "all" else Path(options.out)


def _reproduce(name: str, settings: "Options", bar: "ProgressBar", options: argparse.Namespace) -> None:
    from equalbits.paper import reproduce

    out = _folder(options, name)
    bar.start_run(name)
    settings = replace(settings, reporters_for=lambda run: bar.start_run(f"{name}: {run}"))
    with redirect_stdout(sys.stderr):  # libraries may print; keep stdout for the rows
        claims = reproduce(name, out, options=settings)
    if options.json:
        print(json.dumps({"item": name, "out": str(out), "claims": [asdict(claim) for claim in claims]}))
    else:
        print_claims(claims)
        say(f"plot: {out / f'{name}.png'}    claims: {out / 'claims.md'}")


def print_claims(claims: "list[Claim]") -> None:
    """Print a row per claim."""
    from equalbits.paper import HEADER, NO_CLAIM

    if claims:
        print_table(HEADER, [claim.cells() for claim in claims], right=("difference", "n"))
    else:
        say(NO_CLAIM)
