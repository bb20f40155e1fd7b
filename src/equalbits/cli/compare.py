"""``equalbits compare``."""

import argparse
import json
import sys
from pathlib import Path

from equalbits._extras import require_matplotlib


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``compare`` takes."""
    parser.add_argument(
        "recipe", metavar="RECIPE", nargs="?", default="fashion-compare",
        help="a recipe's name, or the path of a TOML file (default: fashion-compare)",
    )  # fmt: skip
    parser.add_argument(
        "--methods", default="sign,irnet-stable,bihalf", metavar="A,B,…",
        help="all, or names as in sign,bihalf:p_pos=0.25 (default: sign,irnet-stable,bihalf)",
    )  # fmt: skip
    parser.add_argument("--seeds", default="0-2", help="seeds, as in 0-4 or 0,3,7 (default: 0-2)")
    parser.add_argument(
        "--stack",
        type=int,
        metavar="N",
        help="nets of one method trained at once (default: all seeds on a GPU, else 1)",
    )
    parser.add_argument(
        "--tune", metavar="LR,LR,…", default="",
        help="first find each method's learning rate among these, on training images held out; where bits are flipped, "
        "a gamma as many times the recipe's in its place (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], dest="settings", help="as for train"
    )
    parser.add_argument("--out", metavar="DIR", help="where it all goes (default: runs/RECIPE)")
    parser.add_argument("--data", metavar="DIR", help="where data sets lie (else $EQUALBITS_DATA, ~/.cache/equalbits)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto (default)")
    parser.add_argument("--json", action="store_true", help="print what compare.json holds")


def run(options: argparse.Namespace) -> int:
    """Train what is missing, draw, print the table."""
    # Imported here, so that --help need not wait for torch.
    from equalbits.cli.progress import ProgressBar
    from equalbits.cli.sweep import parse_seeds
    from equalbits.recipes import compare, find_recipe, parse_methods, parse_settings
    from equalbits.report import describe_precision, draw_comparison, text_table, write_markdown
    from equalbits.training import InterruptedTraining

    require_matplotlib()
    settings = parse_settings(options.settings)
    for name, instead in (("seed", "--seeds"), ("model.weight_quantizer", "--methods")):
        if name in settings:
            raise ValueError(f"--set {name}={settings[name]}: give it as {instead} {settings[name]}")
    rates = _rates(options.tune)
    if rates and "optimizer.lr" in settings:
        raise ValueError(f"--set optimizer.lr={settings['optimizer.lr']} and --tune: leave one of them away")
    recipe = find_recipe(options.recipe).with_settings(settings)
    if options.stack is not None and options.stack < 1:
        raise ValueError(f"--stack {options.stack}: train at least one net at a time")
    out = Path(options.out or f"runs/{recipe.name}")
    try:
        with ProgressBar(title="compare", quiet=options.json) as bar:
            comparison = compare(
                recipe,
                out,
                methods=parse_methods(options.methods),
                seeds=parse_seeds(options.seeds),
                stack=options.stack,
                tune=rates,
                root=Path(options.data) if options.data else None,
                device=options.device,
                log=lambda line: print(line, file=sys.stderr, flush=True),
                reporters_for=bar.begun,
            )
    except InterruptedTraining as interrupted:
        print(f"equalbits compare: {interrupted}\nthe same command goes on from there", file=sys.stderr)
        return 128 + interrupted.signal_number
    write_markdown(comparison, out)
    draw_comparison(comparison, out)
    if options.json:
        print(json.dumps(comparison.as_dict()))
    else:
        print(text_table(comparison))
        print(describe_precision(comparison))
        print(f"picture: {out / 'compare.png'}    table: {out / 'compare.md'}    numbers: {out / 'compare.json'}")
    return 0


def _rates(text: str) -> list[float]:
    try:
        rates = [float(word) for word in text.split(",") if word.strip()]
    except ValueError:
        rates = []
    if text and not rates:
        raise ValueError(f"--tune {text}: write learning rates, as in 0.03,0.1,0.3")
    return rates
