"""Tuning: trials of one setting on held-out training images, and the choice among them.

A fair comparison gives each method a learning rate of its own, since the same rate moves the bits of one method far
more than those of another. Bop's bits do not depend on the rate: its gamma is tuned instead. Test images have no say.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from equalbits.data import DataError
from equalbits.recipes.experiments.methods import recipe_for
from equalbits.recipes.experiments.preflight import Preflight
from equalbits.recipes.experiments.store import RunStore
from equalbits.recipes.recipe import Recipe
from equalbits.recipes.run_record import RunRecord

_HELD_OUT = 5  # one training image in five
_FIRST_SEED = 1_000_003  # far from the seeds users count with

Choice = TypeVar("Choice")


@dataclass(frozen=True, eq=False)
class Trial:
    """A method with one value of the tuned setting; ``recipe`` holds out training images."""

    method: str
    setting: str
    value: float
    recipe: Recipe
    seed: int

    @property
    def name(self) -> str:
        """The value, fit for a directory."""
        return f"{self.setting}{self.value:g}"

    @property
    def settings(self) -> dict[str, float]:
        """The tuned setting of a recipe."""
        return {f"optimizer.{self.setting}": self.value}

    def __str__(self) -> str:
        return f"{self.method} at {self.setting} {self.value:g}"


def trials_of(
    recipe: Recipe,
    methods: Sequence[str],
    rates: Sequence[float],
    seeds: Sequence[int],
    *,
    store: RunStore,
    root: Path | None,
) -> list[Trial]:
    """Return a trial for each method and learning rate, ``seeds`` being those that trials must not use."""
    held_out, seed = recipe.with_settings(_hold_out(recipe, store, root)), tuning_seed(seeds)
    return [
        Trial(method, name, value, held_out.with_settings({f"optimizer.{name}": value}), seed)
        for method in methods
        for name, value in (setting_at(recipe, method, rate) for rate in sorted(set(rates)))
    ]


def choose(tried: Mapping[Choice, Sequence[RunRecord]]) -> Choice | None:
    """Return the choice with the most correct held-out images; the first of equals, and none that diverged."""
    totals = {
        choice: sum(record.last.test.correct for record in records if record.last and record.last.test)
        for choice, records in tried.items()
        if not any(record.diverged for record in records)
    }
    return max(totals, key=lambda choice: totals[choice], default=None)


def tuning_seed(seeds: Sequence[int]) -> int:
    """Return a seed for trials that is none of the comparison's, and stays the same when seeds are added later.

    >>> tuning_seed([0, 1, 2]) == tuning_seed(range(100))
    True
    """
    return next(seed for seed in itertools.count(_FIRST_SEED) if seed not in seeds)


def setting_at(recipe: Recipe, method: str, rate: float) -> tuple[str, float]:
    """Return the tuned setting of a method and its value: the learning rate, or gamma where the optimizer flips bits.

    The gamma is scaled by the same factor as the rate.

    >>> from equalbits.recipes import get_recipe
    >>> recipe = get_recipe("fashion-compare")
    >>> setting_at(recipe, "bihalf", 0.2), setting_at(recipe, "bop", 0.2)
    (('lr', 0.2), ('gamma', 0.0002))
    """
    optimizer = recipe_for(method, recipe).train.optimizer
    return ("gamma", optimizer.gamma * (rate / optimizer.lr)) if optimizer.flips_bits else ("lr", rate)


def _hold_out(recipe: Recipe, store: RunStore, root: Path | None) -> dict[str, Any]:
    """Return the settings that hold out one training image in five; without the data, those of stored trials."""
    if recipe.data.hold_out:
        raise ValueError(f"--tune holds out training images by itself: leave data.hold_out={recipe.data.hold_out} out")
    try:
        images = Preflight(root).counts(recipe.data).train
    except DataError:
        stored = next(iter(sorted(store.out.glob("*/*/seed*/run.json"))), None)
        if stored is None:
            raise
        data = RunRecord.read(stored).recipe.data
        return {"data.hold_out": data.hold_out, "data.limit": data.limit}
    if images < _HELD_OUT:
        raise ValueError(f"--tune holds out one training image in {_HELD_OUT}, and there are {images}: train on more")
    count = images // _HELD_OUT
    return {"data.hold_out": count, "data.limit": images - count if recipe.data.limit else 0}
