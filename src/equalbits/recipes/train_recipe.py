"""Run a recipe: build what it names, train it, and leave everything in one directory."""

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from equalbits._files import write_atomically
from equalbits.data import DataError, check_root_is_read
from equalbits.models import load_real
from equalbits.recipes.bit_measurements import logged_bits
from equalbits.recipes.build import DataSpec, make_loader, make_model, pick_device
from equalbits.recipes.catalogue import find_recipe, get_recipe
from equalbits.recipes.output_dir import check_kind, lock_dir
from equalbits.recipes.recipe import Recipe
from equalbits.recipes.run_dir import (
    TrainedRun,
    begin_run_dir,
    check_run_dir,
    data_root_of,
    last_weights,
    load_run,
    removed_on_failure,
)
from equalbits.recipes.run_record import RunRecord, check_same_recipe
from equalbits.training import (
    LAST,
    CheckpointError,
    History,
    Reporter,
    Resume,
    Score,
    Watcher,
    evaluate,
    process_group,
    read_metadata,
    train,
    wait_for_all,
)


def run_recipe(
    recipe: Recipe | str,
    out: Path | str,
    *,
    root: Path | str | None = None,
    device: str | torch.device = "auto",
    watchers: Sequence[Watcher] = (),
    reporters: Sequence[Reporter] = (),
    teacher: Path | None = None,
    teacher_out: Path | None = None,
    progress: bool = False,
    allow_changes: bool = False,
) -> TrainedRun:
    """Train a recipe, or the one of this name or TOML file, into the directory ``out``, or resume the run there.

    The directory then holds recipe.toml, history.jsonl, TensorBoard events (where that is installed), the last and the
    best checkpoint, and run.json: settings, versions, seed, device and scores. ``teacher`` is the directory of a
    finished run to distil from. Recipes named by ``distill.teacher`` and ``model.init_from`` are trained first, after
    the recipe and ``out`` are checked; the teacher into ``teacher_out``, by default the directory teacher in ``out``.
    With ``progress`` a progress bar shows the epochs.
    A run is resumed with the same recipe, data and teacher; ``allow_changes`` resumes it with others, and run.json then
    lists the changes.
    """
    recipe = recipe if isinstance(recipe, Recipe) else find_recipe(os.fspath(recipe))
    device, root, out = pick_device(str(device)), Path(root) if root else None, Path(out)
    check_kind(out, "run")
    new, started = not out.exists(), (out / LAST).exists()
    with process_group(device) as place, ExitStack() as at_exit:
        if device == "cuda" and place.world_size > 1:
            device = f"cuda:{place.local_rank}"
        if recipe.data.batch_size % place.world_size:
            raise ValueError(
                f"data.batch_size={recipe.data.batch_size} cannot be shared by {place.world_size} processes"
            )
        seed = recipe.train.seed
        batches = make_loader(recipe.data, "train", root=root, device=device, seed=seed, place=place)
        test = make_loader(recipe.data, "test", root=root, device=device, seed=seed, place=place)
        images = DataSpec.of(batches)
        model = make_model(recipe, images)
        if place.is_writer:
            at_exit.enter_context(lock_dir(out))
            if new:
                at_exit.enter_context(removed_on_failure(out))
        changes = check_run_dir(out, recipe, images, allow_changes=allow_changes)
        teacher = teacher or _teacher_dir(recipe, teacher_out or out / "teacher", root, device)
        init_from = recipe.model.init_from if not started else ""
        if init_from.startswith(("timm:", "zoo:")) or init_from.endswith(".safetensors"):
            logging.getLogger("equalbits").warning("%s: %s", init_from, load_real(model, init_from))
        elif init_from:
            init = _earlier_run(init_from, out / "init", recipe, root, device, teacher)
            _load_initial_weights(model, init, images)
        model.to(device)
        teacher_model = _load_model(teacher, images).to(device) if teacher else None

        def start_reporters(earlier: History) -> Sequence[Reporter]:
            """Write the first files after all checks have passed: a refused run leaves the directory unchanged."""
            if not place.is_writer:
                return reporters
            return logged_bits(model, [*reporters, *begin_run_dir(out, recipe, images, earlier, root=root)])

        if device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats(device)
        history = train(
            model,
            batches,
            recipe.train,
            test=test,
            watchers=watchers,
            reporters=start_reporters,
            teacher=teacher_model,
            out=out,
            progress=progress and recipe.name,
            resume=Resume({"recipe": recipe.as_dict()}, allow_changes, changes),
        )
        if place.is_writer:
            _write_record(TrainedRun(recipe, model, history, out), device, processes=place.world_size)
        return TrainedRun(recipe, model, history, out)


def _write_record(run: TrainedRun, device: str, *, processes: int) -> None:
    """Write run.json; the record of a finished run stays, unless it was trained longer since."""
    path, epochs = run.out / "run.json", run.history.epochs
    with suppress(FileNotFoundError, CheckpointError):
        written = RunRecord.read(path)
        if written.scored and written.scored[0][0].epoch >= len(epochs):
            return
    more = {"processes": processes, "changes": read_metadata(run.out / LAST).get("changes", [])}
    seconds = sum(epoch.seconds for epoch in epochs)
    write_atomically(path, RunRecord.of(run.recipe, device, run.history, seconds, **more).as_json())


def evaluate_run(
    out: Path | str, *, root: Path | None = None, device: str = "auto", which: str = "last", progress: bool = False
) -> Score:
    """Score a run's model on its whole test set, found in ``root`` or in the data directory the run recorded."""
    out = Path(out)
    run = load_run(out, which=which)
    recipe, model = run.recipe, run.model
    check_root_is_read(recipe.data.name, root)
    device = pick_device(device)
    config = recipe.train.resolve_auto(torch.device(device).type, can_capture=False)
    with data_root_of(out, root) as here:
        test = make_loader(recipe.data, "test", root=here, device=device)
    other = DataSpec.read(out / "model.json").difference(DataSpec.of(test))
    if other:
        raise DataError(f"{out} was trained on {other}: name the folder of the same data with --data")
    return evaluate(model.to(device), test, precision=config.precision, progress=progress)


def _earlier_run(
    word: str, out: Path, recipe: Recipe, root: Path | None, device: str, teacher: Path | None = None
) -> Path:
    """Return the directory of a finished run; a recipe is trained into ``out`` first, on the images of ``recipe``."""
    if (Path(word) / "recipe.toml").is_file():
        return Path(word)
    if "/" in word or Path(word).suffix:
        raise ValueError(f"{word} is neither the directory of a run nor a recipe: give one that train wrote")
    first = get_recipe(word)
    first = replace(first, data=replace(first.data, **images_of(recipe)))
    if (out / "run.json").exists() and last_weights(out).exists():
        record = RunRecord.read(out / "run.json")
        check_same_recipe(out, record.recipe, first)
        if not record.diverged:
            return out
    logging.getLogger("equalbits").warning("%s needs %s: training that first, into %s", recipe.name, word, out)
    run_recipe(first, out, root=root, device=device, teacher=teacher if first.train.distill.needs_teacher else None)
    wait_for_all()  # until the writer has saved it
    return out


def trained_teacher(recipe: Recipe, out: Path, images: DataSpec, *, root: Path | None, device: str) -> nn.Module | None:
    """Return the teacher that a recipe names, trained into ``out`` if it is a recipe; None without distillation."""
    teacher = _teacher_dir(recipe, out, root, device)
    return _load_model(teacher, images).to(device) if teacher else None


def _teacher_dir(recipe: Recipe, out: Path, root: Path | None, device: str) -> Path | None:
    distill = recipe.train.distill
    if not (distill.needs_teacher and distill.teacher):
        return None
    return _earlier_run(distill.teacher, out, recipe, root, device)


def images_of(recipe: Recipe) -> dict[str, Any]:
    """Return the data settings that a teacher or first stage takes from the recipe that needs it."""
    names = ("name", "statistics", "limit", "hold_out", "resize", "crop", "fit")
    return {name: getattr(recipe.data, name) for name in names}


def _load_initial_weights(model: nn.Module, folder: Path, images: DataSpec) -> None:
    """Load the weights of a run into a new model; buffers and quantizers that the run does not have stay new.

    A run of other classes is accepted: what has an output per class stays new as well, and the log names it.
    """
    weights, own = load_run(folder).model.state_dict(), model.state_dict()
    fitting = {name: value for name, value in weights.items() if name in own and own[name].shape == value.shape}
    classes, before = len(images.classes), len(DataSpec.read(folder / "model.json").classes)
    new = [name for name, _ in model.named_parameters() if name not in fitting and ".weight_quantizer." not in name]
    for name in new:
        shapes = own[name].shape, weights[name].shape if name in weights else ()
        if classes == before or [shape[:1] for shape in shapes] != [(classes,), (before,)]:
            raise ValueError(
                f"model.init_from={folder}: that run has no weights for {name} of this shape; "
                "use one of the same network and image size"
            )
    if new:
        classifier = ", ".join(dict.fromkeys(name.rpartition(".")[0] for name in new))
        logging.getLogger("equalbits").warning("%s has %d classes: %s is new", folder, before, classifier)
    model.load_state_dict({**own, **fitting})


def _load_model(folder: Path, images: DataSpec) -> nn.Module:
    """Load the model of a finished run; refuse one trained on other images."""
    run = load_run(folder)
    if other := DataSpec.read(folder / "model.json").difference(images):
        raise ValueError(f"the net in {folder} was trained on {other}: use one of the same data")
    return run.model
