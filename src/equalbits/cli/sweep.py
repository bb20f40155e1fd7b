"""``equalbits sweep``."""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

_MOST_SEEDS = 10_000  # more would be a slip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``sweep`` takes."""
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe's name, or the path of a TOML file")
    parser.add_argument(
        "--vary", metavar="NAME=A,B,…", action="append", default=[],
        help="values of a setting to try, as in --vary model.weight_quantizer=sign,bihalf; twice: every combination",
    )  # fmt: skip
    parser.add_argument("--seeds", default="0", help="seeds, as in 0-4 or 0,3,7 (default: 0)")
    parser.add_argument("--stack", type=int, default=1, metavar="N", help="train N runs at once on one device")
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], dest="settings", help="as for train"
    )
    parser.add_argument("--out", metavar="DIR", help="where the runs go (default: runs/sweep-RECIPE)")
    parser.add_argument("--data", metavar="DIR", help="where data sets lie (else $EQUALBITS_DATA, ~/.cache/equalbits)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto (default)")
    parser.add_argument(
        "--ray", metavar="ADDRESS", default="",
        help="spread the runs over a Ray cluster: auto, host:port, or local to start one here (default: none)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")


def run(options: argparse.Namespace) -> int:
    """Run what is missing, then print a row per combination."""
    # Imported here, so that --help need not wait for torch.
    from equalbits.cli.progress import ProgressBar
    from equalbits.recipes import find_recipe, parse_settings, sweep
    from equalbits.training import InterruptedTraining

    settings = parse_settings(options.settings)
    if "seed" in settings:
        raise ValueError(f"--set seed={settings['seed']}: give a sweep's seeds as --seeds {settings['seed']}")
    vary = _vary(options.vary)
    for name in vary:
        if name in settings:
            raise ValueError(f"--set {name}={settings[name]} and --vary {name}: leave one of them away")
    # With the first of the values to try, for what is set may be no recipe without them; but with the recipe's own
    # network, whose options another would leave behind for all that come after it.
    first = {name: values[0] for name, values in vary.items() if name not in ("seed", "model.name")}
    recipe = find_recipe(options.recipe).with_settings(settings | first)
    if options.stack < 1:
        raise ValueError(f"--stack {options.stack}: train at least one run at a time")
    # What libraries print goes where our own remarks go, so that the rows stay alone.
    with ProgressBar(title=recipe.name, quiet=options.json) as bar, redirect_stdout(sys.stderr):
        try:
            rows = sweep(
                recipe,
                Path(options.out or f"runs/sweep-{recipe.name}"),
                vary=vary,
                seeds=parse_seeds(options.seeds),
                stack=options.stack,
                root=Path(options.data) if options.data else None,
                device=options.device,
                ray=options.ray,
                log=lambda line: print(line, file=sys.stderr),
                reporters_for=bar.row if options.ray else bar.begun,
            )
        except InterruptedTraining as interrupted:
            bar.close()
            print(f"equalbits sweep: {interrupted}\nthe same command goes on from there", file=sys.stderr)
            return 128 + interrupted.signal_number
    if options.json:
        print(json.dumps([asdict(row) | {"mean": row.mean, "std": row.spread} for row in rows]))
    else:
        width = max(len(row.case) for row in rows)
        print("\n".join(f"{row.case:<{width}}  {row}" for row in rows))
    return 0


def parse_seeds(text: str) -> list[int]:
    """Read ``0-4`` or ``0,3,7``."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"--seeds {text}: write whole numbers, as in 0-4 or 0,3,7")
        if int(last or first) < int(first):
            raise ValueError(f"--seeds {text}: the first must not be above the last, as in 0-4")
        if int(last or first) - int(first) >= _MOST_SEEDS:
            raise ValueError(f"--seeds {text}: these are more than {_MOST_SEEDS:,}; ask for fewer")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def _vary(words: Sequence[str]) -> dict[str, list[Any]]:
    """Read ``name=value,value`` words."""
    from equalbits.recipes import parse_settings, split_values

    found: dict[str, list[Any]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not equals:
            raise ValueError(f"--vary {word}: write name=value,value, as in model.weight_quantizer=sign,bihalf")
        if name in found:
            raise ValueError(f"--vary {name} is given twice: write all its values behind one, parted by commas")
        found[name] = [parse_settings([f"{name}={value}"])[name] for value in split_values(values)]
    return found
