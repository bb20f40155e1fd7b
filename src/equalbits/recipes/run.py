"""Running a recipe: everything it names is made, joined, trained, and left in one folder."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from equalbits.data import DataError
from equalbits.recipes.build import ImageSpec, make_loader, make_model, pick_device
from equalbits.recipes.kinds import check_kind
from equalbits.recipes.output_dir import in_use
from equalbits.recipes.recipe import Recipe
from equalbits.recipes.run_dir import (
    begin,
    check_folder,
    command_line,
    data_of,
    facts_of,
    finish,
    forgotten_if_it_fails,
    load_run,
    writers,
)
from equalbits.training import History, Place, Reporter, Score, Watcher, evaluate, process_group, train

__all__ = [
    "FinishedRun",
    "ImageSpec",
    "evaluate_run",
    "facts_of",
    "load_run",
    "make_loader",
    "make_model",
    "pick_device",
    "run_recipe",
]


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its recipe, its model, its history, and where it lies."""

    recipe: Recipe
    model: nn.Module
    history: History
    out: Path


def run_recipe(
    recipe: Recipe,
    out: Path,
    *,
    root: Path | None = None,
    device: str = "auto",
    watchers: Sequence[Watcher] = (),
    reporters: Sequence[Reporter] = (),
    teacher: Path | None = None,
) -> FinishedRun:
    """Train a recipe into the folder ``out``, going on with what is there already.

    The folder then holds recipe.toml, history.jsonl, TensorBoard events (where that is installed), the last and the
    best checkpoint, and run.json: settings, versions, seed, device and scores. ``teacher`` is the folder of a finished
    run to distil from.
    """
    device = pick_device(device)
    out = Path(out)
    check_kind(out, "run")
    with process_group(device) as place, ExitStack() as at_the_end:
        if device == "cuda" and place.world_size > 1:
            device = f"cuda:{place.local_rank}"
        if recipe.data.batch_size % place.world_size:
            raise ValueError(
                f"data.batch_size={recipe.data.batch_size} cannot be shared by {place.world_size} processes"
            )
        seed = recipe.train.seed
        batches = make_loader(recipe.data, "train", root=root, device=device, seed=seed, place=place)
        test = make_loader(recipe.data, "test", root=root, device=device, seed=seed, place=place)
        images = ImageSpec.of(batches)
        model = make_model(recipe, images).to(device)
        taught_by = _teacher(teacher, images).to(device) if teacher else None
        if place.is_writer:
            new = not out.exists()
            at_the_end.enter_context(in_use(out, command=command_line()))
            if new:
                at_the_end.enter_context(forgotten_if_it_fails(out))
        check_folder(out, recipe, images)

        def listeners(known: History) -> Sequence[Reporter]:
            """Asked once nothing stands against the run any more: one that is refused leaves the folder as it was."""
            if not place.is_writer:
                return reporters
            begin(out, recipe, images, root=root)
            return [*reporters, *writers(out, known)]

        if device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats(device)
        history = train(
            model,
            batches,
            recipe.train,
            test=test,
            watchers=watchers,
            reporters=listeners,
            teacher=taught_by,
            out=out,
        )
        if place.is_writer:
            seconds = sum(record.seconds for record in history.epochs)
            finish(out, facts_of(recipe, device, place, history, seconds))
        return FinishedRun(recipe, model, history, out)


def evaluate_run(out: Path, *, root: Path | None = None, device: str = "auto", which: str = "last") -> Score:
    """Score a run's model on every image of its test data, in ``root`` or where they lay when it was trained."""
    out = Path(out)
    recipe, model = load_run(out, which=which)
    device = pick_device(device)
    config = recipe.train.settled(torch.device(device).type, can_capture=False)
    with data_of(out, root) as here:
        test = make_loader(recipe.data, "test", root=here, device=device, seed=0, place=Place())
    other = ImageSpec.read(out / "model.json").against(ImageSpec.of(test))
    if other:
        raise DataError(f"{out} was trained on {other}: name the folder of the same data with --data")
    return evaluate(model.to(device), test, precision=config.precision)


def _teacher(folder: Path, images: ImageSpec) -> nn.Module:
    """The model of a finished run, if it knows the same images."""
    _, model = load_run(folder)
    known = ImageSpec.read(folder / "model.json")
    if (known.classes, known.channels) != (images.classes, images.channels):
        raise ValueError(
            f"the teacher in {folder} was trained on images of {known.channels} channels and {len(known.classes)} "
            f"classes, this data has {images.channels} and {len(images.classes)}: use one of the same data"
        )
    return model
