"""``equalbits train``."""

import argparse
import shlex
from contextlib import nullcontext
from pathlib import Path

import equalbits as eb
from equalbits.cli.arguments import add_data, add_device, add_json, add_settings
from equalbits.cli.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="name of a recipe, or path of a TOML file")
    parser.add_argument("--out", metavar="DIR", help="output directory (default: runs/RECIPE)")
    parser.add_argument("--resume", metavar="DIR", help="resume the run in DIR with its own settings")
    parser.add_argument(
        "--extend", type=int, metavar="N", help="with --resume: train N epochs more than the run has, finished or not"
    )
    parser.add_argument(
        "--start-from", metavar="NET", default="",
        help="trained network to take the initial weights from: the directory of a run, a .safetensors file, timm:NAME "
        "for pretrained weights of timm, zoo:NAME, or a recipe, which is trained first",
    )  # fmt: skip
    add_settings(parser)
    add_data(parser, default="where a resumed run found them, else $EQUALBITS_DATA, else ~/.cache/equalbits")
    add_device(parser)
    parser.add_argument("--teacher", metavar="DIR", help="finished run to distill from (with --set distill.weight=1)")
    parser.add_argument("--wandb", metavar="PROJECT", help="log to this Weights & Biases project")
    parser.add_argument(
        "--allow-changes", action="store_true",
        help="resume although settings, data or teacher have changed (run.json then lists the changes)",
    )  # fmt: skip
    add_json(parser, text="print only the result, as one JSON object")


def run(options: argparse.Namespace) -> int:
    """Train with a progress bar and print the score."""
    recipe, out = _recipe_and_out(options)
    if options.data and recipe.data.name.partition(":")[0] in eb.data.WITHOUT_FILES:
        pictures = f"for your own pictures: equalbits train pictures --data {options.data}"
        say(f"note: {recipe.data.name} is not read from files, so not from {options.data}; {pictures}", error=True)
    epochs: list[int] = []
    with eb.training.ProgressBar(title=recipe.name, quiet=options.json) as bar:
        reporters: list[eb.training.Reporter] = [bar, lambda record: epochs.append(record.epoch)]
        if options.wandb and bar.is_writer:
            reporters.append(
                eb.training.WeightsAndBiases(out, project=options.wandb, name=recipe.name, config=recipe.as_dict())
            )
        try:
            given = Path(options.data) if options.data else None
            with eb.recipes.data_root_of(out, given) if options.resume else nullcontext(given) as root:
                result = eb.recipes.run_recipe(
                    recipe,
                    out,
                    root=root,
                    device=options.device,
                    reporters=reporters,
                    teacher=Path(options.teacher) if options.teacher else None,
                    allow_changes=options.allow_changes or bool(options.extend),
                )
        except eb.training.InterruptedTraining as interrupted:
            bar.close()
            if bar.is_writer:
                command = resume_command(options, out)
                say(f"equalbits train: {interrupted}\nresume with: {command}", error=True)
            return 128 + interrupted.signal_number
    if not bar.is_writer:
        return 0
    last, best = result.history.last, result.history.best
    if options.json:
        say((out / "run.json").read_text().strip())
    elif last is not None and last.test is not None and best is not None and best.test is not None:
        score = eb.recipes.published_score(recipe)
        published = f", published {score:.2f} %" if score else ""
        say(f"{recipe.name}: last epoch {last.test}; best, epoch {best.epoch}, {best.test.accuracy:.2f} %{published}")
        say(f"results: {out}" if epochs else f"{out} was already finished: nothing to train")
    return 0


def resume_command(options: argparse.Namespace, out: Path) -> str:
    """Return the command that resumes a run."""
    words = [*eb.recipes.launch_words(), "train", "--resume", str(out)]
    for name in ("data", "device", "teacher", "wandb"):
        value = getattr(options, name)
        if value and (name, value) != ("device", "auto"):
            words += [f"--{name}", value]
    return shlex.join(words)


def _recipe_and_out(options: argparse.Namespace) -> tuple["eb.recipes.Recipe", Path]:

    if options.resume:
        if options.recipe or options.out:
            raise ValueError("--resume takes recipe and directory from the run: omit RECIPE and --out")
        out = Path(options.resume)
        if not (out / "recipe.toml").exists():
            raise ValueError(f"{out} has no run to resume: recipe.toml is missing")
        recipe = eb.recipes.read_recipe(out / "recipe.toml")
        if options.start_from:
            raise ValueError(f"--start-from {options.start_from}: the run in {out} has its weights; omit --start-from")
    elif options.recipe:
        recipe = eb.recipes.find_recipe(options.recipe)
        out = Path(options.out or f"runs/{recipe.name}")
    else:
        raise ValueError("give a recipe, such as equalbits train fashion-conv2 (equalbits list shows all)")
    settings = eb.recipes.parse_settings(options.settings)
    if options.start_from:
        settings["model.init_from"] = options.start_from
    if options.extend is not None:
        if not options.resume or options.extend < 1 or "epochs" in settings:
            raise ValueError(f"--extend {options.extend}: give --resume DIR and a number of epochs, at least 1, alone")
        settings["epochs"] = recipe.train.epochs + options.extend
    return recipe.with_settings(settings), out
