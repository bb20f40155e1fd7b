"""The folder of a run: what lies in it, who writes it, and the model read back from it."""

import json
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

import equalbits
from equalbits._files import write_atomically
from equalbits.data import DataError
from equalbits.recipes.build import ImageSpec, make_model
from equalbits.recipes.recipe import Recipe, read_recipe, recipe_from_dict
from equalbits.training import (
    BEST,
    FREE_SETTINGS,
    LAST,
    WEIGHTS,
    CheckpointError,
    EpochRecord,
    History,
    JsonLines,
    Place,
    Reporter,
    TensorBoard,
    checkpoint_bytes,
    flat,
    load_checkpoint,
    load_weights,
    prefixed,
)

#: Settings that change no result.
FREE = FREE_SETTINGS | {"name", "about", "expected", "data.workers", "data.test_batch_size"}


def check_same(out: Path, before: Recipe, now: Recipe) -> None:
    """Refuse to mix two recipes in one folder; what changes no result may differ."""
    was, wanted = flat(before.as_dict()), flat(now.as_dict())
    for name in {**was, **wanted}:
        if name not in FREE and was.get(name) != wanted.get(name):
            raise CheckpointError(
                f"{out} holds a run with {name}={was.get(name)}, this one has {name}={wanted.get(name)}: "
                f"use the same settings to go on, or another --out to start anew"
            )


def recipe_in(path: Path, name: str = "recipe") -> Recipe:
    """The recipe that a JSON file of results notes under a name, checked anew."""
    try:
        return recipe_from_dict(json.loads(path.read_text())[name])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path} does not say what made it ({error}): delete it to measure again") from None


def read_run(path: Path) -> tuple[Recipe, dict[str, Any]]:
    """The recipe of a run that is done, or has ``failed``, and its run.json; one that lacks a part is refused."""
    recipe = recipe_in(path)
    try:
        run: dict[str, Any] = json.loads(path.read_text())
        ends = () if "failed" in run else (run["last"], run["best"])
        scored = all(EpochRecord.from_dict(end).test is not None for end in ends) and dict(run["versions"])
        if not (scored and isinstance(run["seed"], int) and isinstance(run["device"], str) and run["seconds"] >= 0):
            raise ValueError("a part has no value")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path} does not say what came of it ({error}): delete it to measure again") from None
    return recipe, run


def check_folder(out: Path, recipe: Recipe, images: ImageSpec) -> None:
    """Refuse a folder that holds a run of another kind, of other settings, or of other images."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: name a folder, new or of the same run, with --out")
    if (out / LAST).exists() and (out / "recipe.toml").exists():
        check_same(out, read_recipe(out / "recipe.toml"), recipe)
        other = ""
        with suppress(CheckpointError):  # a model.json that is gone or broken is written anew
            other = ImageSpec.read(out / "model.json").against(images)
        if other:
            raise CheckpointError(f"{out} holds a run on {other}: use the same data to go on, or another --out")
    foreign = [name for name in ("model.json", "history.jsonl", BEST) if (out / name).exists()]
    if foreign and not any((out / name).exists() for name in (LAST, "recipe.toml")):
        raise ValueError(f"{out} holds a {foreign[0]} that no run of ours left: give --out another folder")
    written = out / "recipe.toml"
    alone = written.exists() and not any((out / name).exists() for name in (LAST, "model.json"))
    if alone and written.read_bytes() != recipe.to_toml().encode():  # a run that was killed at once leaves its very own
        raise ValueError(f"{out} holds a recipe.toml of someone's own: give --out another folder")


def begin(out: Path, recipe: Recipe, images: ImageSpec, *, root: Path | None = None) -> None:
    """Write what the run is, and where its data lie if that was said."""
    if not (out / LAST).exists():
        for name in ("run.json", WEIGHTS):  # the result of weights that are gone, and of a net that begins anew
            (out / name).unlink(missing_ok=True)
    for path, content in _described(out, recipe, images, root).items():
        write_atomically(path, content)


def net_files(
    out: Path, recipe: Recipe, images: ImageSpec, model: nn.Module, *, root: Path | None
) -> dict[Path, bytes]:
    """All that :func:`load_run` needs of a net that was trained side by side with others, for its folder."""
    weights = checkpoint_bytes(prefixed("model.", model.state_dict()), {})
    return {**_described(out, recipe, images, root), out / WEIGHTS: weights}


def _described(out: Path, recipe: Recipe, images: ImageSpec, root: Path | None) -> dict[Path, bytes]:
    return {out / "recipe.toml": recipe.to_toml().encode(), out / "model.json": images_file(images, root)}


def images_file(images: ImageSpec, root: Path | None = None) -> bytes:
    """The content of model.json: the images of a run, and where they lay if that was said."""
    facts = asdict(images) | ({"data": str(Path(root).resolve())} if root else {})
    return (json.dumps(facts, indent=1) + "\n").encode()


@contextmanager
def forgotten_if_it_fails(out: Path) -> Iterator[None]:
    """Take away what :func:`begin` and the writers left in a new folder, if nothing came of it."""
    try:
        yield
    except BaseException:
        history = out / "history.jsonl"
        trained = any((out / name).exists() for name in (LAST, BEST)) or (history.exists() and history.stat().st_size)
        if not trained:
            for name in ("recipe.toml", "model.json", "history.jsonl"):
                with suppress(OSError):  # what ended the run is what is told, not that nothing can be removed
                    (out / name).unlink()
            shutil.rmtree(out / "tensorboard", ignore_errors=True)
        raise


def recorded_root(out: Path) -> Path | None:
    """Where a run's data lay when it was trained, if it says so."""
    try:
        known = json.loads((out / "model.json").read_text())
    except RecursionError:  # brackets without end
        return None
    found = known.get("data") if isinstance(known, dict) else None
    return Path(found) if isinstance(found, str) else None


@contextmanager
def data_of(out: Path, root: Path | None) -> Iterator[Path | None]:
    """Where a run's data lie: in ``root``, or where it found them; a ``with`` that lacks them says where they lay."""
    known = None
    if root is None:
        with suppress(OSError, ValueError):  # a model.json that is gone or broken is written anew
            known = recorded_root(out)
    here = root or (known if known and known.is_dir() else None)
    try:
        yield here
    except DataError as error:
        if here:
            raise
        gone = f"{known}, where the run's data lay, is not there any more; " if known else ""
        raise DataError(f"{gone}{error}; or give --data") from None


def writers(out: Path, known: History) -> list[Reporter]:
    """Whoever keeps the history of a run: JSON lines always, TensorBoard where it is installed."""
    found: list[Reporter] = [JsonLines(out / "history.jsonl", known)]
    if find_spec("tensorboard") is not None:
        found.append(TensorBoard(out / "tensorboard", known))
    return found


def finish(out: Path, facts: dict[str, Any]) -> None:
    """Write run.json; a run that was finished before keeps its own, if that can be read still."""
    path = out / "run.json"
    try:
        read_run(path)
    except (FileNotFoundError, CheckpointError):
        write_atomically(path, (json.dumps(facts, indent=1) + "\n").encode())


def facts_of(recipe: Recipe, device: str, place: Place, history: History, seconds: float) -> dict[str, Any]:
    """What made a result, and the result."""
    last, best = history.last, history.best
    made = where_and_with(device)
    return {
        "recipe": recipe.as_dict(),
        "seed": recipe.train.seed,
        "device": made["device"],
        "peak_device_bytes": torch.cuda.max_memory_allocated(device) if device.startswith("cuda") else None,
        "processes": place.world_size,
        "versions": made["versions"],
        "command": command_line(),
        "seconds": round(seconds, 2),
        "last": last.as_dict() if last else None,
        "best": best.as_dict() if best else None,
    }


def command_line() -> str | None:
    """The command that runs, None where it is a program of someone else's."""
    program = Path(sys.argv[0])
    ours = program.name == "equalbits" or program.parts[-2:] == ("equalbits", "__main__.py")
    return shlex.join([*started_by(), *sys.argv[1:]]) if ours else None


def started_by() -> list[str]:
    """The words that start the command: torchrun's where several processes share a run."""
    processes = os.environ.get("WORLD_SIZE", "1")
    if processes == "1":
        return ["equalbits"]
    return ["torchrun", "--nproc-per-node", os.environ.get("LOCAL_WORLD_SIZE", processes), "-m", "equalbits"]


def where_and_with(device: str) -> dict[str, Any]:
    """The device's name, and the versions of what ran on it."""
    on_gpu = device.startswith("cuda")
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else _processor(),
        "versions": {
            "equalbits": equalbits.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def _processor() -> str:
    """The name of the processor where the system tells it, else its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def load_run(out: Path, *, which: str = "last") -> tuple[Recipe, nn.Module]:
    """The recipe and the trained model of a run's folder: its ``last`` or its ``best`` epoch."""
    out = Path(out)
    if out.is_file():
        raise CheckpointError(f"{out} is a file: name the folder of a run, which train made")
    if not (out / "recipe.toml").exists():
        raise CheckpointError(f"{out} is not the folder of a run: it holds no recipe.toml; {_instead(out)}")
    if which not in ("last", "best"):
        raise ValueError(f"which={which!r} is not known: choose 'last' or 'best'")
    recipe = read_recipe(out / "recipe.toml")
    model = make_model(recipe, ImageSpec.read(out / "model.json"))
    path = last_weights(out) if which == "last" else out / BEST
    if path.name == BEST and last_weights(out).name == WEIGHTS:
        raise CheckpointError(f"{out} was trained side by side with others, so its last epoch alone is kept: take that")
    tensors, _ = load_checkpoint(path)
    weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    load_weights(model, weights, path)
    return recipe, model.eval()


def last_weights(out: Path) -> Path:
    """The file with the last weights of a run: its own checkpoint, or what a stack left of it."""
    return out / (WEIGHTS if (out / WEIGHTS).is_file() and not (out / LAST).exists() else LAST)


def _instead(out: Path) -> str:
    """The way out where a folder holds no run: one inside, or to train what compare kept the result of."""
    below = ("", "*/", "*/*/")
    inside = next((path.parent for depth in below for path in sorted(out.glob(f"{depth}recipe.toml"))), None)
    if inside:
        return f"name one inside, as {inside}"
    results = [path for depth in below for path in out.glob(f"{depth}run.json")]
    if results and not any(last_weights(path.parent).exists() for path in results):
        return "compare and reproduce keep results, not nets: train this one by itself to have it"
    return "name one that train made"


def epoch_under_way(out: Path) -> tuple[int, int] | None:
    """The epoch that a run's last checkpoint stands in, and how many there are to be; None once it is finished."""
    if (out / "run.json").exists() or not (out / LAST).exists():
        return None
    _, facts = load_checkpoint(out / LAST)
    epochs = facts["config"]["epochs"]
    return (facts["epoch"] + bool(facts["batch"]), epochs) if facts["epoch"] < epochs else None
