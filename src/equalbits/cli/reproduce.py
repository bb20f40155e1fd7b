"""``equalbits reproduce``."""

import argparse
import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path

import equalbits as eb
from equalbits._extras import require_matplotlib
from equalbits.cli.arguments import add_data, add_device, add_json, add_settings, execution_options
from equalbits.cli.sweep import parse_seeds
from equalbits.cli.terminal import print_table, say


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
    if options.item is None:
        titles = {name: eb.paper.get_item(name).title for name in eb.paper.list_items()}
        width = max(map(len, titles))
        lines = "\n".join(f"{name:<{width}}  {title}" for name, title in titles.items())
        say(json.dumps(titles) if options.json else lines)
        return 0
    if options.ray and (options.stack or 1) > 1:
        raise ValueError("--ray runs each seed separately: omit --stack")
    if options.keep and not (Path("results").is_dir() and Path("docs").is_dir()):
        raise ValueError("--keep needs the directories results/ and docs/: run it at the root of the repository")
    names = eb.paper.list_items() if options.item == "all" else [eb.paper.get_item(options.item).name]
    require_matplotlib()
    if options.item == "all" and options.out:
        eb.recipes.check_kind(Path(options.out), "items")  # each item gets a subdirectory
    failed: list[str] = []
    with eb.training.ProgressBar(title=options.item, quiet=options.json) as bar:
        settings = eb.paper.Options(
            quick=options.quick,
            seeds=parse_seeds(options.seeds) if options.seeds else (),
            settings=eb.recipes.parse_settings(options.settings),
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
        refused = eb.paper.keep_items(measured, Path(), log=lambda line: say(line, error=True))
        for line in refused:
            say(f"equalbits reproduce: {line}", error=True)
        failed += refused
    return int(bool(failed))


def _folder(options: argparse.Namespace, name: str) -> Path:
    if options.out is None:
        return Path("runs") / (f"quick-{name}" if options.quick else name)
    return Path(options.out) / name if options.item == "all" else Path(options.out)


def _reproduce(
    name: str, settings: "eb.paper.Options", bar: "eb.training.ProgressBar", options: argparse.Namespace
) -> None:

    out = _folder(options, name)
    bar.start_run(name)
    settings = replace(settings, reporters_for=lambda run: bar.start_run(f"{name}: {run}"))
    with redirect_stdout(sys.stderr):  # libraries may print; keep stdout for the rows
        claims = eb.paper.reproduce(name, out, options=settings)
    if options.json:
        print(json.dumps({"item": name, "out": str(out), "claims": [asdict(claim) for claim in claims]}))
    else:
        print_claims(claims)
        say(f"plot: {out / f'{name}.png'}    claims: {out / 'claims.md'}")


def print_claims(claims: "list[eb.paper.Claim]") -> None:
    """Print a row per claim."""
    if claims:
        print_table(eb.paper.HEADER, [claim.cells() for claim in claims], right=("difference", "n"))
    else:
        say(eb.paper.NO_CLAIM)
