"""Tuning: trials of one setting on held-out training images, and the choice among them.

A fair comparison gives each method a learning rate of its own, since the same rate moves the bits of one method far
more than those of another. Bop's bits do not depend on the rate: its gamma is tuned instead. Test images are not used.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

from equalbits.recipes.build import make_loader
from equalbits.recipes.experiments.compared_methods import method_runs, recipe_for, train_methods
from equalbits.recipes.experiments.run_store import PlannedRun, RunStore
from equalbits.recipes.experiments.train_runs import Execution
from equalbits.recipes.recipe import Recipe

_HELD_OUT = 5  # one training image in five
_FIRST_SEED = 1_000_003  # far from the seeds users count with


def tune_methods(
    recipe: Recipe,
    methods: Sequence[str],
    rates: Sequence[float],
    seeds: Sequence[int],
    *,
    store: RunStore,
    execution: Execution,
) -> dict[str, Recipe]:
    """Return the recipe of each method with the rate that scores best on held-out images; the first of equals.

    ``seeds`` are those of the comparison, which trials do not use.
    """
    held_out, seed = hold_out(recipe, execution.root), tuning_seed(seeds)
    trials: dict[str, list[tuple[Recipe, PlannedRun]]] = {method: [] for method in methods}
    labels: dict[str, str] = {}
    for method, rate in itertools.product(methods, sorted(set(rates))):
        name, value = setting_at(recipe, method, rate)
        tuned, trial = (each.with_settings({f"optimizer.{name}": value}) for each in (recipe, held_out))
        (run,) = method_runs(trial, method, [seed], within=f"{name}{value:g}")
        trials[method].append((tuned, run))
        labels[run.case] = f"{method} at {name} {value:g}, on held-out images"
    runs = [run for tried in trials.values() for _, run in tried]
    train_methods(store, runs, execution, label=lambda run: labels[run.case])
    return {method: max(tried, key=lambda each: _correct(store, each[1]))[0] for method, tried in trials.items()}


def _correct(store: RunStore, run: PlannedRun) -> int:
    """Return the number of correct held-out images; a diverged run has none."""
    (record,) = store.records([run])
    return record.last.test.correct if record.last and record.last.test else -1


def tuning_seed(seeds: Sequence[int]) -> int:
    """Return a seed for trials that the comparison does not use, and that stays the same when seeds are added later.

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


def hold_out(recipe: Recipe, root: Path | None) -> Recipe:
    """Hold out one training image in five."""
    if recipe.data.hold_out:
        raise ValueError(f"--tune holds out training images by itself: leave data.hold_out={recipe.data.hold_out} out")
    images = len(make_loader(recipe.data, "train", root=root).dataset)
    if images < _HELD_OUT:
        raise ValueError(f"--tune holds out one training image in {_HELD_OUT}, and there are {images}: train on more")
    count = images // _HELD_OUT
    return recipe.with_settings({"data.hold_out": count, "data.limit": images - count if recipe.data.limit else 0})
