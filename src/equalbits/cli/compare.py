"""``equalbits compare``."""

import argparse
import json
from pathlib import Path

import equalbits as eb
from equalbits._extras import require_matplotlib
from equalbits._files import write_atomically
from equalbits.cli.arguments import add_data, add_device, add_json, add_settings, execution_options
from equalbits.cli.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recipe", metavar="RECIPE", nargs="?", default="fashion-compare",
        help="name of a recipe, or path of a TOML file (default: fashion-compare)",
    )  # fmt: skip
    parser.add_argument(
        "--methods", default="sign,irnet-stable,bihalf", metavar="A,B,…",
        help="methods, such as sign,bihalf:p_pos=0.25, or all (default: sign,irnet-stable,bihalf)",
    )  # fmt: skip
    parser.add_argument("--seeds", default="0-2", help="seeds, such as 0-4 or 0,3,7 (default: 0-2)")
    parser.add_argument(
        "--stack",
        type=int,
        metavar="N",
        help="runs of one method to train at once (default: all seeds on a GPU, else 1)",
    )
    parser.add_argument(
        "--tune", metavar="LR,LR,…", default="",
        help="learning rates to choose from for each method, on a hold-out set of the training images; for Bop, gamma "
        "is scaled by the same factors (default: no tuning)",
    )  # fmt: skip
    add_settings(parser)
    parser.add_argument("--out", metavar="DIR", help="output directory (default: runs/RECIPE)")
    add_data(parser)
    add_device(parser)
    add_json(parser, text="print the content of compare.json")


def run(options: argparse.Namespace) -> None:
    """Train the runs that are missing, plot, and print the table."""
    from equalbits.cli.sweep import parse_seeds
    from equalbits.report import describe_precision, draw_comparison, markdown, text_table

    require_matplotlib()
    settings = eb.recipes.parse_settings(options.settings)
    for name, instead in (("seed", "--seeds"), ("model.weight_quantizer", "--methods")):
        if name in settings:
            raise ValueError(f"--set {name}={settings[name]}: use {instead} {settings[name]}")
    try:
        rates = [float(word) for word in options.tune.split(",") if word.strip()]
    except ValueError:
        rates = []
    if options.tune and not rates:
        raise ValueError(f"--tune {options.tune}: give learning rates, such as 0.03,0.1,0.3")
    if rates and "optimizer.lr" in settings:
        raise ValueError(f"--set optimizer.lr={settings['optimizer.lr']} and --tune: omit one of them")
    recipe = eb.recipes.find_recipe(options.recipe).with_settings(settings)
    out = Path(options.out or f"runs/{recipe.name}")
    with eb.training.ProgressBar(title="compare", quiet=options.json) as bar:
        comparison = eb.recipes.compare(
            recipe,
            out,
            methods=eb.recipes.parse_methods(options.methods),
            seeds=parse_seeds(options.seeds),
            tune=rates,
            execution=eb.recipes.Execution(**execution_options(options, bar)),
        )
    write_atomically(out / "compare.md", markdown(comparison).encode())
    draw_comparison(comparison, out)
    if options.json:
        print(json.dumps(comparison.as_dict()))
    else:
        say(text_table(comparison))
        say(describe_precision(comparison))
        say(f"plot: {out / 'compare.png'}    table: {out / 'compare.md'}    data: {out / 'compare.json'}")
