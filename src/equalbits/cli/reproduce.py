"""``equalbits reproduce``."""

import argparse
import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from equalbits._extras import require_matplotlib
from equalbits.cli.arguments import add_data, add_device, add_json, add_settings
from equalbits.cli.sweep import parse_seeds

if TYPE_CHECKING:
    from equalbits.cli.progress import ProgressBar
    from equalbits.paper import Claim, Options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``reproduce``."""
    parser.add_argument(
        "item", metavar="ITEM", nargs="?", help="fig1 to fig8, tab1 to tab3, or all; without it, list the items"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="smaller networks on the embedded data, about a minute per item",
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
        "--stack", type=int, default=0, metavar="N", help="runs to train at once on one device (default: 1)"
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
    # Imported here: --help must not import torch.
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
        raise ValueError(f"--stack {options.stack} must be at least 1")
    if options.ray and options.stack > 1:
        raise ValueError("--ray runs each seed separately: omit --stack")
    if options.keep and not (Path("results").is_dir() and Path("docs").is_dir()):
        raise ValueError("--keep needs the directories results/ and docs/: run it at the root of the repository")
    require_matplotlib()
    names = list_items() if options.item == "all" else [get_item(options.item).name]
    if options.item == "all" and options.out:
        check_kind(Path(options.out), "items")  # each item gets a subdirectory
    with ProgressBar(title=options.item, quiet=options.json) as bar:
        settings = Options(
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
            failed = [name for name in names if _reproduce(name, settings, bar, options)]
        except InterruptedTraining as interrupted:
            bar.close()
            print(f"equalbits reproduce: {interrupted}\nrun the same command to resume", file=sys.stderr)
            return 128 + interrupted.signal_number
    if options.keep:
        failed += _keep([_folder(options, name) for name in names if name not in failed])
    return int(bool(failed))


def _keep(folders: list[Path]) -> list[str]:
    """Keep measured items in the repository of the working directory; return those refused."""
    from equalbits.paper import keep_items

    refused = keep_items(folders, Path(), log=lambda line: print(line, file=sys.stderr))
    for line in refused:
        print(f"equalbits reproduce: {line}", file=sys.stderr)
    return refused


def _folder(options: argparse.Namespace, name: str) -> Path:
    if options.out is None:
        return Path("runs") / (f"quick-{name}" if options.quick else name)
    return Path(options.out) / name if options.item == "all" else Path(options.out)


def _reproduce(name: str, settings: "Options", bar: "ProgressBar", options: argparse.Namespace) -> int:
    """Reproduce one item; under ``all``, an item that fails is reported and the others continue."""
    from equalbits.paper import reproduce

    out = _folder(options, name)
    bar.start_run(name)
    try:
        with redirect_stdout(sys.stderr):  # libraries may print; keep stdout for the rows
            claims = reproduce(
                name, out, options=replace(settings, reporters_for=lambda run: bar.start_run(f"{name}: {run}"))
            )
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


def _print_rows(name: str, out: Path, claims: "list[Claim]") -> None:
    from rich.console import Console
    from rich.table import Table

    from equalbits.paper.claims import HEADER, NO_CLAIM

    shown = Table(box=None, pad_edge=False)
    for column in HEADER:
        shown.add_column(column, justify="right" if column in ("difference", "n") else "left", overflow="fold")
    for claim in claims:
        shown.add_row(*claim.cells())
    Console(highlight=False, width=None if sys.stdout.isatty() else 220).print(shown if claims else NO_CLAIM)
    print(f"plot: {out / f'{name}.png'}    claims: {out / 'claims.md'}")
