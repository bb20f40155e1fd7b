"""The directory of one run: its files, and the model loaded back from them."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from torch import nn

from equalbits._files import LockLostError, check_lock, remove_file, write_atomically
from equalbits.data import DataError
from equalbits.recipes.build import DataSpec, make_model
from equalbits.recipes.recipe import Recipe, read_recipe
from equalbits.recipes.run_record import RunRecord, check_same_recipe
from equalbits.training import (
    BEST,
    LAST,
    WEIGHTS,
    CheckpointError,
    EpochRecord,
    History,
    JsonLines,
    Reporter,
    TensorBoard,
    checkpoint_bytes,
    load_checkpoint,
    load_weights,
    prefixed,
    read_metadata,
    with_prefix,
)


def check_run_dir(out: Path, recipe: Recipe, images: DataSpec, *, allow_changes: bool = False) -> list[str]:
    """Raise where a directory holds files of the user's own, or a run of another recipe or on other images.

    With ``allow_changes`` the recipe may differ: return the changes. The checkpoint holds the recipe too, so that an
    edited recipe.toml is noticed.
    """
    checkpoint, written, changes = (out / LAST).exists(), out / "recipe.toml", list[str]()
    if checkpoint and (saved := saved_recipe(out / LAST)):
        changes = check_same_recipe(out / LAST, saved, recipe, allow=allow_changes)
    if checkpoint and written.exists():
        if not changes:
            changes = check_same_recipe(out, read_recipe(written), recipe, allow=allow_changes)
        check_same_images(out, images)
    for name in () if checkpoint or written.exists() else ("model.json", "history.jsonl", BEST):
        if (out / name).exists():
            raise ValueError(f"{out} holds a {name} that equalbits did not write: give --out another folder")
    alone = written.exists() and not checkpoint and not (out / "model.json").exists()
    if alone and written.read_bytes() != recipe.to_toml().encode():  # a run killed early leaves this very recipe
        raise ValueError(f"{out} holds another recipe.toml: give --out another folder")
    return changes


def check_same_images(out: Path, images: DataSpec, *, other: str = "") -> None:
    """Raise where a run is on other images than these, or on those that ``other`` describes.

    A missing or damaged model.json is written again.
    """
    with suppress(CheckpointError):
        other = DataSpec.read(out / "model.json").difference(images) or other
    if other:
        raise CheckpointError(f"{out} holds a run on {other}: use the same data to resume, or another --out")


def saved_recipe(path: Path) -> Recipe | None:
    """Return the recipe that a checkpoint holds; None where an older version wrote it."""
    table = read_metadata(path).get("recipe")
    try:
        return None if table is None else Recipe.from_dict(table)
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} holds no valid recipe ({error}): delete it to train again") from None


def begin_run_dir(
    out: Path, recipe: Recipe, images: DataSpec, earlier: History, *, root: Path | None = None
) -> list[Reporter]:
    """Write recipe.toml and model.json; return the reporters that continue the ``earlier`` history.

    Without a checkpoint, the record and the weights of an earlier run are removed.
    """
    if not (out / LAST).exists():
        for name in ("run.json", WEIGHTS):
            remove_file(out / name)
    for name, content in _descriptions(recipe, images, root).items():
        write_atomically(out / name, content)
    writers: list[Reporter] = [JsonLines(out / "history.jsonl", earlier)]
    if find_spec("tensorboard") is not None:
        writers.append(TensorBoard(out / "tensorboard", earlier))
    return writers


def stacked_files(
    record: RunRecord, history: History, images: DataSpec, model: nn.Module | None, *, root: Path | None
) -> dict[str, bytes]:
    """Return the files of a run trained in a stack, run.json last; with ``model``, what :func:`load_run` needs too."""
    files = _descriptions(record.recipe, images, root)
    if model is not None:
        files[WEIGHTS] = checkpoint_bytes(prefixed("model.", model.state_dict()), {})
    else:
        del files["recipe.toml"]
    lines = "".join(json.dumps(epoch.as_dict()) + "\n" for epoch in history.epochs)
    return {**files, "history.jsonl": lines.encode(), "run.json": record.as_json()}


def _descriptions(recipe: Recipe, images: DataSpec, root: Path | None) -> dict[str, bytes]:
    facts = asdict(images) | ({"data": str(Path(root).resolve())} if root else {})
    return {"recipe.toml": recipe.to_toml().encode(), "model.json": (json.dumps(facts, indent=1) + "\n").encode()}


@contextmanager
def removed_on_failure(out: Path) -> Iterator[None]:
    """Remove the files of a new run if it fails before its first checkpoint or epoch."""
    try:
        yield
    except BaseException:
        history = out / "history.jsonl"
        trained = any((out / name).exists() for name in (LAST, BEST)) or (history.exists() and history.stat().st_size)
        with suppress(LockLostError):  # then the files are those of another job
            check_lock(history)
            if not trained:
                for name in ("recipe.toml", "model.json", "history.jsonl"):
                    with suppress(OSError):  # raise the first error, not that the clean-up failed
                        (out / name).unlink()
                shutil.rmtree(out / "tensorboard", ignore_errors=True)
        raise


@contextmanager
def data_root_of(out: Path, root: Path | None) -> Iterator[Path | None]:
    """Give ``root``, or the data directory a run recorded; a :class:`DataError` inside names the recorded one."""
    recorded = None
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):  # missing or damaged: it is written again
        recorded = Path(json.loads((out / "model.json").read_text())["data"]) if root is None else None
    here = root or (recorded if recorded and recorded.is_dir() else None)
    try:
        yield here
    except DataError as error:
        if here:
            raise
        missing = f"{recorded}, the data directory of the run, does not exist any more; " if recorded else ""
        raise DataError(f"{missing}{error}; or give --data") from None


@dataclass(frozen=True)
class TrainedRun:
    """A run: its recipe, trained model, history and directory."""

    recipe: Recipe
    model: nn.Module
    history: History
    out: Path


def load_run(out: Path | str, *, which: str = "last") -> TrainedRun:
    """Load a run from its directory, with the model of its ``last`` or its ``best`` epoch."""
    out = Path(out)
    if out.is_file():
        raise CheckpointError(f"{out} is a file: name the folder of a run")
    if not (out / "recipe.toml").exists():
        runs = (path.parent for depth in ("*/", "*/*/") for path in sorted(out.glob(f"{depth}recipe.toml")))
        inside = next(
            (f"name one inside, as {run}" for run in runs),
            "name one that train or sweep wrote; compare and reproduce keep no weights",
        )
        raise CheckpointError(f"{out} is not the folder of a run: it holds no recipe.toml; {inside}")
    if which not in ("last", "best"):
        raise ValueError(f"which={which!r} is not known: choose 'last' or 'best'")
    recipe = read_recipe(out / "recipe.toml")
    model = make_model(recipe, DataSpec.read(out / "model.json"))
    path = last_weights(out) if which == "last" else out / BEST
    if path.name == BEST and last_weights(out).name == WEIGHTS:
        raise CheckpointError(f"{out} was trained in a stack, which keeps the last epoch only: use which='last'")
    tensors, _ = load_checkpoint(path)
    load_weights(model, with_prefix("average.", tensors) or with_prefix("model.", tensors), path)
    saved = saved_recipe(path)
    if saved and replace(saved.model, init_from="") != replace(recipe.model, init_from=""):
        raise CheckpointError(
            f"{path} holds a net of another recipe than {out / 'recipe.toml'}, whose [model] was changed: restore it"
        )
    return TrainedRun(recipe, model.eval(), read_history(out / "history.jsonl"), out)


def read_history(path: Path) -> History:
    """Read the epochs that a run has written to history.jsonl; none where it is missing."""
    lines, epochs = path.read_text(errors="replace").splitlines() if path.exists() else [], list[EpochRecord]()
    for number, line in enumerate(lines, start=1):
        try:
            epochs.append(EpochRecord.from_dict(json.loads(line)))
        except (ValueError, TypeError, KeyError, RecursionError):
            if number < len(lines):  # a killed run may leave the last line incomplete, no other
                raise CheckpointError(f"{path}, line {number} is not the record of an epoch: restore it") from None
    return History(tuple(epochs))


def last_weights(out: Path) -> Path:
    """Return the file with the last weights: the run's own checkpoint, or the weights that a stack wrote."""
    return out / (WEIGHTS if (out / WEIGHTS).is_file() and not (out / LAST).exists() else LAST)


def unfinished_epoch(out: Path) -> tuple[int, int] | None:
    """Return the epoch of a run's last checkpoint and the number of epochs; None for a finished run."""
    if (out / "run.json").exists() or not (out / LAST).exists():
        return None
    _, facts = load_checkpoint(out / LAST)
    epochs = facts["config"]["epochs"]
    return (facts["epoch"] + bool(facts["batch"]), epochs) if facts["epoch"] < epochs else None
