"""Many runs: every combination of settings and seeds, one after another or stacked on one device.

Each run that is done leaves its run.json; a sweep that is started again does only what is missing.
"""

import itertools
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from equalbits.data import FolderLoader
from equalbits.recipes.folder import check_same, facts_of
from equalbits.recipes.ledger import collect
from equalbits.recipes.make import Images, check_names, make_loader, make_model, pick_device
from equalbits.recipes.recipe import Recipe, recipe_from_dict
from equalbits.recipes.run import run_recipe
from equalbits.training import History, Reporter
from equalbits.training.checkpoint import write_atomically
from equalbits.training.distributed import Place, announced_place
from equalbits.training.stack import train_stack


@dataclass(frozen=True)
class Case:
    """One combination of a sweep's settings, trained with several seeds."""

    recipe: Recipe
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The settings in words, fit for a folder's name."""
        words = [str(value).replace("/", "-").replace(":", "-") or "none" for value in self.settings.values()]
        return "_".join(words) or self.recipe.name


@dataclass(frozen=True)
class Row:
    """What a case came to: the test accuracy of each seed's last and best epoch, in per cent."""

    case: str
    settings: Mapping[str, Any]
    seeds: tuple[int, ...]
    last: tuple[float, ...]
    best: tuple[float, ...]
    seconds: float

    @property
    def mean(self) -> float:
        """The mean of the last epochs."""
        return statistics.fmean(self.last)

    @property
    def spread(self) -> float | None:
        """Their sample standard deviation (n − 1); None for one seed."""
        return statistics.stdev(self.last) if len(self.last) > 1 else None

    def __str__(self) -> str:
        spread = "" if self.spread is None else f" ± {self.spread:.2f}"
        return f"{self.mean:.2f}{spread} %  (last epoch, n={len(self.last)})"


def cases_of(recipe: Recipe, vary: Mapping[str, Sequence[Any]]) -> list[Case]:
    """Every combination of the settings to vary.

    >>> from equalbits.recipes import get_recipe
    >>> [case.name for case in cases_of(get_recipe("fashion-conv2"), {"model.weight_quantizer": ["sign", "bihalf"]})]
    ['sign', 'bihalf']
    """
    combinations = itertools.product(*vary.values())
    settings = [dict(zip(vary, values, strict=True)) for values in combinations]
    cases = [Case(recipe.with_settings(some), some) for some in settings]
    names = [case.name for case in cases]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two combinations would share the folder {name!r}: vary values whose words differ")
    return cases


def sweep(
    recipe: Recipe,
    out: Path,
    *,
    vary: Mapping[str, Sequence[Any]],
    seeds: Sequence[int],
    stack: int = 1,
    root: Path | None = None,
    device: str = "auto",
    tell: Callable[[str], None] = lambda line: None,
    reporters: Sequence[Reporter] = (),
) -> list[Row]:
    """Train every combination with every seed; ``stack`` nets at once. Finished runs are not run again.

    The ledger of all runs below ``out`` is left there as sweep.json.
    """
    if announced_place().world_size > 1:
        raise ValueError("a sweep runs in one process: start it without torchrun, or train its cases one by one")
    seeds = list(dict.fromkeys(seeds))
    if not seeds:
        raise ValueError("there is no seed to train with: give at least one, as in seeds=[0]")
    cases, rows = cases_of(recipe, vary), []
    for case in cases:  # before the first hour of training, not after it
        check_names(case.recipe)
    for case in cases:
        missing = [seed for seed in seeds if not _is_done(out, case, seed)]
        for some in _batched(missing, stack):
            began = time.perf_counter()
            if stack == 1:
                seeded = case.recipe.with_settings({"seed": some[0]})
                folder = _path(out, case, some[0]).parent
                run_recipe(seeded, folder, root=root, device=device, reporters=reporters)
            else:
                _run_stacked(case, list(some), out, root=root, device=device)
            tell(f"{case.name}: seeds {', '.join(map(str, some))} done in {time.perf_counter() - began:.1f} s")
        rows.append(_row(out, case, seeds))
        tell(f"{case.name}: {rows[-1]}")
    write_atomically(Path(out) / "sweep.json", (json.dumps(collect(out), indent=1) + "\n").encode())
    return rows


def _run_stacked(case: Case, seeds: list[int], out: Path, *, root: Path | None, device: str) -> None:
    device = pick_device(device)
    recipes = [case.recipe.with_settings({"seed": seed}) for seed in seeds]
    alone = Place()
    first = make_loader(case.recipe.data, "train", root=root, device=device, seed=seeds[0], place=alone)
    if isinstance(first, FolderLoader):
        raise ValueError(f"{case.recipe.data.name} is read from files, too large for a device: use --stack 1")
    loaders = [first, *(first.with_seed(seed) for seed in seeds[1:])]
    test = make_loader(case.recipe.data, "test", root=root, device=device, seed=0, place=alone)
    images = Images.of(first)
    models = [make_model(recipe, images).to(device) for recipe in recipes]
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    began = time.time()
    histories = train_stack(models, loaders, case.recipe.train, seeds=seeds, test=test)
    seconds = (time.time() - began) / len(seeds)
    for recipe, seed, history in zip(recipes, seeds, histories, strict=True):
        _write(_path(out, case, seed), recipe, device, history, seconds, stack=len(seeds))


def _write(path: Path, recipe: Recipe, device: str, history: History, seconds: float, *, stack: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {**facts_of(recipe, device, Place(), history, seconds), "stacked_with": stack}
    lines = "".join(json.dumps(record.as_dict()) + "\n" for record in history.epochs)
    write_atomically(path.parent / "history.jsonl", lines.encode())
    write_atomically(path, (json.dumps(facts, indent=1) + "\n").encode())


def _path(out: Path, case: Case, seed: int) -> Path:
    return Path(out) / case.name / f"seed{seed}" / "run.json"


def _is_done(out: Path, case: Case, seed: int) -> bool:
    """Whether this seed's result is there; one that other settings made is refused."""
    path = _path(out, case, seed)
    if not path.exists():
        return False
    before = recipe_from_dict(json.loads(path.read_text())["recipe"])
    check_same(path.parent, before, case.recipe.with_settings({"seed": seed}))
    return True


def _row(out: Path, case: Case, seeds: Sequence[int]) -> Row:
    runs = [json.loads(_path(out, case, seed).read_text()) for seed in seeds]
    accuracy = {
        which: tuple(100 * run[which]["test"]["correct"] / run[which]["test"]["total"] for run in runs)
        for which in ("last", "best")
    }
    seconds = sum(run["seconds"] for run in runs)
    return Row(case.name, dict(case.settings), tuple(seeds), accuracy["last"], accuracy["best"], seconds)


def _batched(items: list[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(items[start : start + size]) for start in range(0, len(items), size)]
