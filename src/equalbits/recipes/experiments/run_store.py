"""The runs of many experiments: planned as combinations of settings, and stored with a record each.

A record is at ``<out>/<case>/seed<n>/run.json``.
"""

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equalbits.recipes.recipe import Recipe
from equalbits.recipes.run_record import RunRecord, check_same_recipe

_MAX_NAME_BYTES = 255  # of a directory, on nearly every file system


@dataclass(frozen=True)
class PlannedRun:
    """One net to train: its case, which names a directory, and its recipe with its seed.

    Runs of different ``stack_key`` are never stacked together. A ``measured`` run is finished once its record holds
    measurements. ``method`` is the compared method, if any.
    """

    case: str
    recipe: Recipe
    stack_key: str = ""
    measured: bool = False
    method: str = ""

    @property
    def seed(self) -> int:
        """The seed of its recipe."""
        return self.recipe.train.seed

    @property
    def path(self) -> str:
        """Its directory below the store."""
        return f"{self.case}/seed{self.seed}"


@dataclass(frozen=True)
class Case:
    """One combination of settings, trained with several seeds.

    ``name`` is its path below the store, of the values of the settings. Cases of different ``stack_key`` are never
    stacked together.
    """

    name: str
    recipe: Recipe
    settings: Mapping[str, Any]
    stack_key: str = ""

    def runs(self, seeds: Sequence[int]) -> list[PlannedRun]:
        """Plan one run per seed."""
        return [PlannedRun(self.name, self.recipe.with_settings({"seed": seed}), self.stack_key) for seed in seeds]


def cases_of(recipe: Recipe, vary: Mapping[str, Sequence[Any]], *, within: str = "") -> list[Case]:
    """Return a case for every combination of the settings to vary; each directory ``within`` has stacks of its own.

    >>> from equalbits.recipes import get_recipe
    >>> [case.name for case in cases_of(get_recipe("fashion-conv2"), {"model.weight_quantizer": ["sign", "bihalf"]})]
    ['sign', 'bihalf']
    """
    cases: dict[str, Case] = {}
    for values in itertools.product(*vary.values()):
        words = [str(value).replace("/", "-").replace(":", "-") or "none" for value in values]
        name, settings = "_".join(words) or recipe.name, dict(zip(vary, values, strict=True))
        if not name.strip(". ") or re.search(r"[\\\x00-\x1f]", name) or len(os.fsencode(name)) > _MAX_NAME_BYTES:
            raise ValueError(f"{name[:40]!r} cannot name a folder: vary plain words of {_MAX_NAME_BYTES} bytes at most")
        if name in cases:
            raise ValueError(f"two combinations would share the folder {name!r}: vary values that differ in words")
        path = f"{within}/{name}" if within else name
        cases[name] = Case(path, recipe.with_settings(settings), settings, stack_key=within)
    return list(cases.values())


class RunStore:
    """Records of runs below one directory."""

    def __init__(self, out: Path) -> None:
        self.out = Path(out)

    def dir(self, run: PlannedRun) -> Path:
        """Return the directory of a run."""
        return self.out / run.path

    def find(self, run: PlannedRun) -> RunRecord | None:
        """Return the record of a run, or None; the record of another recipe is refused."""
        path = self.dir(run) / "run.json"
        if not path.exists():
            return None
        record = RunRecord.read(path)
        check_same_recipe(path.parent, record.recipe, run.recipe)
        return None if run.measured and not record.diverged and record.measured is None else record

    def missing(self, runs: Iterable[PlannedRun]) -> list[PlannedRun]:
        """Return the runs without a record, in their order."""
        return [run for run in runs if self.find(run) is None]

    def records(self, runs: Iterable[PlannedRun]) -> list[RunRecord]:
        """Return the record of every run; all must have ended."""
        found = [(run, self.find(run)) for run in runs]
        missing = [run.path for run, record in found if record is None]
        if missing:
            raise ValueError(f"{self.out} has no record of {', '.join(missing)}: run them first")
        return [record for _, record in found if record is not None]


def describe(runs: Sequence[PlannedRun]) -> str:
    """Name some runs, case by case.

    >>> from equalbits.recipes import get_recipe
    >>> recipe = get_recipe("fashion-conv2")
    >>> describe([PlannedRun("sign", recipe.with_settings({"seed": seed})) for seed in (0, 1)])
    'sign: seeds 0, 1'
    """
    cases: dict[str, list[int]] = {}
    for run in runs:
        cases.setdefault(run.case, []).append(run.seed)
    return "; ".join(f"{case}: {describe_seeds(seeds)}" for case, seeds in cases.items())


def describe_seeds(seeds: Sequence[int]) -> str:
    """Name some seeds.

    >>> describe_seeds([3]), describe_seeds([0, 1])
    ('seed 3', 'seeds 0, 1')
    """
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
