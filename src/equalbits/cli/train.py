"""``equalbits train``."""

import argparse
import shlex
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from equalbits.recipes import Recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``train`` takes."""
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="a recipe's name, or the path of a TOML file")
    parser.add_argument("--out", metavar="DIR", help="where the run goes (default: runs/RECIPE)")
    parser.add_argument("--resume", metavar="DIR", help="go on with the run in DIR, with its own settings")
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], dest="settings",
        help="change a setting, as in --set epochs=2 --set optimizer.lr=0.05 (all: equalbits list --settings)",
    )  # fmt: skip
    parser.add_argument(
        "--data", metavar="DIR",
        help="where data sets lie (else where the run that goes on found them, $EQUALBITS_DATA, ~/.cache/equalbits)",
    )  # fmt: skip
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto (default)")
    parser.add_argument("--teacher", metavar="DIR", help="a finished run to distil from (with --set distill.weight=1)")
    parser.add_argument("--wandb", metavar="PROJECT", help="send the curves to this project of Weights & Biases, too")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object, and nothing else")


def run(options: argparse.Namespace) -> int:
    """Train, show how it goes, print the score."""
    # Imported here, so that --help need not wait for torch.
    from equalbits.cli.progress import ProgressBar
    from equalbits.recipes import published_score, run_recipe
    from equalbits.training import InterruptedTraining, Reporter, WeightsAndBiases

    recipe, out = _wanted(options)
    told: list[object] = []
    with ProgressBar(title=recipe.name, quiet=options.json) as bar:
        reporters: list[Reporter] = [bar, lambda record: told.append(record.epoch)]
        if options.wandb and bar.is_writer:
            reporters.append(WeightsAndBiases(out, project=options.wandb, name=recipe.name, config=recipe.as_dict()))
        try:
            with _data(options, out) as root:
                result = run_recipe(
                    recipe,
                    out,
                    root=root,
                    device=options.device,
                    reporters=reporters,
                    teacher=Path(options.teacher) if options.teacher else None,
                )
        except InterruptedTraining as interrupted:
            bar.close()
            if bar.is_writer:
                again = resume_command(options, out)
                print(f"equalbits train: {interrupted}\nresume with: {again}", file=sys.stderr)
            return 128 + interrupted.signal_number
    if not bar.is_writer:
        return 0
    last, best = result.history.last, result.history.best
    if options.json:
        print((out / "run.json").read_text().strip())
    elif last is not None and last.test is not None and best is not None and best.test is not None:
        score = published_score(recipe)
        published = f", published {score:.2f} %" if score else ""
        print(f"{recipe.name}: last epoch {last.test}; best, epoch {best.epoch}, {best.test.accuracy:.2f} %{published}")
        print(f"all of it is in {out}" if told else f"nothing was left to train: {out} held the finished run already")
    return 0


def _data(options: argparse.Namespace, out: Path) -> AbstractContextManager[Path | None]:
    """Where the data lie: as was said, or where a run that goes on found them."""
    from equalbits.recipes import data_of

    root = Path(options.data) if options.data else None
    return data_of(out, root) if options.resume else nullcontext(root)


def resume_command(options: argparse.Namespace, out: Path) -> str:
    """The command that goes on with a run as it was started."""
    from equalbits.recipes import started_by

    words = [*started_by(), "train", "--resume", str(out)]
    for name in ("data", "device", "teacher", "wandb"):
        value = getattr(options, name)
        if value and (name, value) != ("device", "auto"):
            words += [f"--{name}", value]
    return shlex.join(words)


def _wanted(options: argparse.Namespace) -> tuple["Recipe", Path]:
    from equalbits.recipes import find_recipe, parse_settings, read_recipe

    if options.resume:
        if options.recipe or options.out:
            raise ValueError("--resume names the run and takes its recipe from there: leave RECIPE and --out away")
        out = Path(options.resume)
        if not (out / "recipe.toml").exists():
            raise ValueError(f"{out} holds no run to go on with: recipe.toml is not there")
        recipe = read_recipe(out / "recipe.toml")
    elif options.recipe:
        recipe = find_recipe(options.recipe)
        out = Path(options.out or f"runs/{recipe.name}")
    else:
        raise ValueError("name a recipe, as in: equalbits train fashion-conv2 (equalbits list shows all)")
    return recipe.with_settings(parse_settings(options.settings)), out
