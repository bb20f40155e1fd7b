"""``equalbits train``."""

import argparse
import shlex
import sys
from pathlib import Path

from equalbits.cli.progress import ProgressBar
from equalbits.recipes import Recipe, get_recipe, parse_settings, read_recipe, run_recipe
from equalbits.training import InterruptedTraining


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``train`` takes."""
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="a recipe's name, or the path of a TOML file")
    parser.add_argument("--out", metavar="DIR", help="where the run goes (default: runs/RECIPE)")
    parser.add_argument("--resume", metavar="DIR", help="go on with the run in DIR, with its own settings")
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], dest="settings",
        help="change a setting, as in --set epochs=2 --set optimizer.lr=0.05 (names: equalbits list --show RECIPE)",
    )  # fmt: skip
    parser.add_argument("--data", metavar="DIR", help="where data sets lie (default: $EQUALBITS_DATA)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto (default)")
    parser.add_argument("--teacher", metavar="DIR", help="a finished run to distil from (with --set distill.weight=1)")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object, and nothing else")


def run(options: argparse.Namespace) -> int:
    """Train, show how it goes, print the score."""
    recipe, out = _wanted(options)
    with ProgressBar(title=recipe.name, quiet=options.json) as bar:
        try:
            result = run_recipe(
                recipe,
                out,
                root=Path(options.data) if options.data else None,
                device=options.device,
                reporters=[bar],
                teacher=Path(options.teacher) if options.teacher else None,
            )
        except InterruptedTraining as interrupted:
            bar.close()
            words = ["equalbits", "train", "--resume", str(out), *(["--data", options.data] if options.data else [])]
            print(f"equalbits train: {interrupted}\nresume with: {shlex.join(words)}", file=sys.stderr)
            return 128 + interrupted.signal_number
    if not bar.is_writer:
        return 0
    last, best = result.history.last, result.history.best
    if options.json:
        print((out / "run.json").read_text().strip())
    elif last is not None and last.test is not None and best is not None and best.test is not None:
        published = f", published {recipe.expected:.2f} %" if recipe.expected else ""
        print(f"{recipe.name}: last epoch {last.test}; best, epoch {best.epoch}, {best.test.accuracy:.2f} %{published}")
        print(f"all of it is in {out}")
    return 0


def _wanted(options: argparse.Namespace) -> tuple[Recipe, Path]:
    if options.resume:
        if options.recipe or options.out:
            raise ValueError("--resume names the run and takes its recipe from there: leave RECIPE and --out away")
        out = Path(options.resume)
        if not (out / "recipe.toml").exists():
            raise ValueError(f"{out} holds no run to go on with: recipe.toml is not there")
        recipe = read_recipe(out / "recipe.toml")
    elif options.recipe:
        path = Path(options.recipe)
        recipe = read_recipe(path) if path.suffix == ".toml" else get_recipe(options.recipe)
        out = Path(options.out or f"runs/{recipe.name}")
    else:
        raise ValueError("name a recipe, as in: equalbits train fashion-conv2 (equalbits list shows all)")
    return recipe.with_settings(parse_settings(options.settings)), out
