"""One method's runs: a few seeds trained at once, watched at the end of every epoch, each left as a JSON of its own."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from equalbits._files import write_all_atomically
from equalbits.data import Loader
from equalbits.recipes.build import ImageSpec, make_loader, on_device
from equalbits.recipes.experiments.measurements import Look
from equalbits.recipes.experiments.methods import make_alike, recipe_for
from equalbits.recipes.experiments.stack_checkpoint import Member, forget, stack_file, stack_of, taken_over
from equalbits.recipes.output_dir import clear_up
from equalbits.recipes.recipe import Recipe
from equalbits.recipes.run_dir import check_same, facts_of, images_file, read_run
from equalbits.training import CheckpointError, History, Place, Reporter, StackError, train_stack


@dataclass(frozen=True)
class Ground:
    """What all methods share: the recipe, its images on the device, and the folder of the comparison."""

    recipe: Recipe
    train: Loader
    test: Loader
    images: ImageSpec
    device: str
    out: Path
    reporters: Sequence[Reporter] = ()  # that hear of the first of some seeds

    @classmethod
    def of(cls, recipe: Recipe, out: Path, *, root: Path | None, device: str) -> "Ground":
        """Load the images, once for all methods."""
        shared: dict[str, Any] = {"root": root, "device": device, "seed": 0, "place": Place()}
        train, test = (on_device(make_loader(recipe.data, split, **shared)) for split in ("train", "test"))
        return cls(recipe, train, test, ImageSpec.of(train), device, out)


def run_file(out: Path, method: str, seed: int) -> Path:
    """Where a run leaves its JSON."""
    return out / re.sub(r"[^\w.=-]+", "-", method) / f"seed{seed}" / "run.json"


def is_done(recipe: Recipe, out: Path, method: str, seed: int) -> bool:
    """Whether this run's JSON is there; one that other settings made is refused."""
    path = run_file(out, method, seed)
    if not path.exists():
        return False
    before, run = read_run(path)
    if "failed" not in run and not isinstance(run.get("measured"), dict):
        raise CheckpointError(f"{path} does not say what was measured: delete it to measure again")
    check_same(path.parent, before, recipe_for(method, recipe).with_settings({"seed": seed}))
    return True


def groups_of(recipe: Recipe, out: Path, method: str, seeds: Sequence[int], stack: int) -> list[list[int]]:
    """The seeds in groups of at most ``stack``; those that were stopped together are not mixed with others."""
    mine = recipe_for(method, recipe)
    stopped: dict[Path | None, list[int]] = {}
    for seed in seeds:
        path = stack_of(out, _member(out, method, mine.with_settings({"seed": seed})))
        stopped.setdefault(path, []).append(seed)
    return [some[start : start + stack] for some in stopped.values() for start in range(0, len(some), stack)]


def _member(out: Path, method: str, recipe: Recipe) -> Member:
    return Member(f"compare {method}", recipe, run_file(out, method, recipe.train.seed).parent)


def run_method(ground: Ground, method: str, seeds: Sequence[int]) -> str:
    """Train one method with these seeds side by side and write what was found; return a word on how it went.

    On a GPU each step is recorded as a CUDA graph and nothing is compiled, since each method would have to be compiled
    anew. Where recording fails, steps are taken one by one. A seed whose numbers leave the finite is noted as failed.
    """
    recipe = recipe_for(method, ground.recipe)
    if recipe.train.speed != "auto" or not ground.device.startswith("cuda"):
        return _run(ground, method, recipe, seeds)
    try:
        return _run(ground, method, recipe.with_settings({"speed": "recorded"}), seeds)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:160]
    torch.cuda.synchronize()
    told = _run(ground, method, recipe.with_settings({"speed": "plain"}), seeds)
    return f"could not be recorded as a graph ({reason}), so went on with speed=plain; {told}"


def _run(ground: Ground, method: str, recipe: Recipe, seeds: Sequence[int]) -> str:
    """Train the seeds at once and write what each came to; one that diverges is noted as failed.

    While they train they are saved in a file, with what was counted of them, and the same call goes on from it.
    """
    seeded = [recipe.with_settings({"seed": seed}) for seed in seeds]
    members = [_member(ground.out, method, each) for each in seeded]
    models = [make_alike(each, ground.images).to(ground.device) for each in seeded]
    loaders = [ground.train.with_seed(seed) for seed in seeds]
    if ground.device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(ground.device)
    looks, errors = [Look(model, nets=len(models)) for model in models], {}
    told: list[list[Reporter]] = [[look, *(ground.reporters if look is looks[0] else ())] for look in looks]
    saved = stack_file(ground.out, members)
    shared: dict[str, Any] = {"test": ground.test, "reporters": told, "checkpoint": saved}
    histories: Sequence[History | None]
    try:
        with taken_over(saved, members, ground.images):
            histories = train_stack(models, loaders, [each.train for each in seeded], **shared)
    except StackError as some:
        histories, errors = some.histories, some.errors
    seconds = max(look.seconds for look in looks)
    done: dict[Path, bytes] = {}
    for each, seed, history, look in zip(seeded, seeds, histories, looks, strict=True):
        if history is not None:
            facts = facts_of(each, ground.device, Place(), history, seconds)
            measured = look.measured(ground.images)
            done |= _file(ground, method, seed, facts | {"stacked_with": len(seeds), "measured": measured})
    for place, error in errors.items():
        facts = facts_of(seeded[place], ground.device, Place(), History(()), 0.0)
        done |= _file(ground, method, seeds[place], facts | {"failed": str(error)})
    write_all_atomically(done)  # or none of them: what is saved of the stack serves all of it, and no part
    forget(saved, members)
    scores = ", ".join(f"{found.last.test.accuracy:.2f} %" if found else "failed" for found in histories)  # type: ignore[union-attr]
    some_seeds = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    why = "".join(f"; seed {seeds[place]}: {error}" for place, error in errors.items())
    return f"{some_seeds}: {scores}  ({seconds * len(seeds):.1f} s){why}"


def _file(ground: Ground, method: str, seed: int, facts: dict[str, Any]) -> dict[Path, bytes]:
    """What a run that is done leaves in its folder, which is made, or swept of what a kill left half-written."""
    path = run_file(ground.out, method, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_up(path.parent)
    return {
        path.parent / "model.json": images_file(ground.images),
        path: (json.dumps({"method": method, **facts}, indent=1) + "\n").encode(),
    }
