"""``equalbits sweep``."""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

import equalbits as eb
from equalbits.cli.arguments import add_data, add_device, add_json, add_settings, execution_options
from equalbits.cli.terminal import say

_MAX_SEEDS = 10_000  # more is likely a typing error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="name of a recipe, or path of a TOML file")
    parser.add_argument(
        "--vary", metavar="NAME=A,B,…", action="append", default=[],
        help="values of a setting, such as --vary model.weight_quantizer=sign,bihalf; repeat it for a grid",
    )  # fmt: skip
    parser.add_argument("--seeds", default="0", help="seeds, such as 0-4 or 0,3,7 (default: 0)")
    parser.add_argument(
        "--stack", type=int, default=1, metavar="N", help="runs to train at once on one device (default: 1)"
    )
    add_settings(parser)
    parser.add_argument("--out", metavar="DIR", help="output directory (default: runs/sweep-RECIPE)")
    add_data(parser)
    add_device(parser)
    parser.add_argument(
        "--ray", metavar="ADDRESS", default="",
        help="distribute the runs over a Ray cluster: auto, host:port, or local to start one (default: none)",
    )  # fmt: skip
    add_json(parser, text="print the rows as JSON")


def run(options: argparse.Namespace) -> None:
    """Train the runs that are missing, then print a row per combination."""
    settings = eb.recipes.parse_settings(options.settings)
    if "seed" in settings:
        raise ValueError(f"--set seed={settings['seed']}: use --seeds {settings['seed']}")
    vary = _parse_vary(options.vary)
    for name in vary:
        if name in settings:
            raise ValueError(f"--set {name}={settings[name]} and --vary {name}: omit one of them")
    # Apply the first of the varied values, since the other settings may only be valid with them. The model stays the
    # recipe's own: changing it would drop options that later models of the sweep accept.
    first = {name: values[0] for name, values in vary.items() if name not in ("seed", "model.name")}
    recipe = eb.recipes.find_recipe(options.recipe).with_settings(settings | first)
    # Libraries may print; keep stdout for the rows.
    with (
        eb.training.ProgressBar(title=recipe.name, quiet=options.json or bool(options.ray)) as bar,
        redirect_stdout(sys.stderr),
    ):
        rows = eb.recipes.sweep(
            recipe,
            Path(options.out or f"runs/sweep-{recipe.name}"),
            vary=vary,
            seeds=parse_seeds(options.seeds),
            execution=eb.recipes.Execution(**execution_options(options, bar)),
        )
    if options.json:
        print(json.dumps([asdict(row) | {"mean": row.mean, "std": row.spread} for row in rows]))
    else:
        width = max(len(row.case) for row in rows)
        say("\n".join(f"{row.case:<{width}}  {row}" for row in rows))


def parse_seeds(text: str) -> list[int]:
    """Parse ``0-4`` or ``0,3,7``."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"--seeds {text}: give whole numbers, such as 0-4 or 0,3,7")
        if int(last or first) < int(first):
            raise ValueError(f"--seeds {text}: a range must be ascending, such as 0-4")
        if int(last or first) - int(first) >= _MAX_SEEDS:
            raise ValueError(f"--seeds {text}: more than {_MAX_SEEDS:,} seeds; give fewer")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def _parse_vary(words: Sequence[str]) -> dict[str, list[Any]]:
    """Parse ``name=value,value`` arguments."""
    found: dict[str, list[Any]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not equals:
            raise ValueError(f"--vary {word}: give name=value,value, such as model.weight_quantizer=sign,bihalf")
        if name in found:
            raise ValueError(f"--vary {name} is given twice: give all its values once, separated by commas")
        found[name] = eb.recipes.parse_values(name, values)
    return found
