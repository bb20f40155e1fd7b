"""``equalbits evaluate``."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import equalbits as eb
from equalbits.cli.arguments import add_data, add_device, add_json, add_which
from equalbits.cli.pack import check_source, print_best_hint
from equalbits.cli.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="DIR|FILE", help="output directory of a run, a packed file, or zoo:NAME")
    add_which(parser)
    add_data(parser, default="where the run found them, else $EQUALBITS_DATA, else ~/.cache/equalbits")
    parser.add_argument(
        "--dataset", metavar="NAME", default="",
        help="data set to evaluate a packed file on (default: the one in --data with the classes of the file)",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads for a packed file (default: 1)")
    add_device(parser)
    add_json(parser, text="print the counts as one JSON object")


def run(options: argparse.Namespace) -> None:
    """Evaluate a run or a packed file, and print its score."""
    extra: dict[str, object]
    source, root = eb.runtime.find_packed(options.source), Path(options.data) if options.data else None
    check_source(source, options.which)
    if source.is_file():
        score, data = _evaluate_packed(source, root, options)
        extra, note = {"dataset": data}, f"packed, test images of {data}{f' in {root}' if root else ''}"
    else:
        if options.dataset:
            raise ValueError(f"--dataset {options.dataset}: a run has its own data set; omit --dataset")
        score = eb.recipes.evaluate_run(
            source, root=root, device=options.device, which=options.which, progress=not options.json
        )
        unfinished = eb.recipes.unfinished_epoch(source)
        note = f"{options.which} epoch"
        note += f"; not finished: epoch {unfinished[0]} of {unfinished[1]}" if unfinished else ""
        extra = {"finished": unfinished is None}
    if options.json:
        shares = {"accuracy": score.accuracy, "accuracy_top5": score.accuracy_top5}
        print(json.dumps({**asdict(score), **shares, **extra}))
    else:
        # With five classes or fewer every answer is in the top 5.
        top5 = f"; top 5 {score.accuracy_top5:.2f} %" if score.correct_top5 < score.total else ""
        say(f"{options.source} ({note}): {score}{top5}")
        if source.is_dir() and options.which == "last":
            print_best_hint(source)


def _evaluate_packed(path: Path, root: Path | None, options: argparse.Namespace) -> tuple["eb.training.Score", str]:

    model = eb.runtime.load_packed(path, threads=options.threads)
    dataset = eb.recipes.images_with_classes(model, options.dataset, root)
    return eb.training.evaluate(model, eb.recipes.ByteBatches(model, dataset), progress=not options.json), dataset.name
