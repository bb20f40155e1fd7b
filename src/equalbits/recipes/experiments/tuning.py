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
#: Far from the seeds that users count with, so that a comparison does not train with it.
TUNING_SEED = 1_000_003


def tune_methods(
    recipe: Recipe,
    methods: Sequence[str],
    rates: Sequence[float],
    *,
    store: RunStore,
    execution: Execution,
) -> dict[str, Recipe]:
    """Return the recipe of each method with the rate that scores best on held-out images; the first of equals."""
    held_out = hold_out(recipe, execution.root)
    trials: dict[str, list[tuple[Recipe, PlannedRun]]] = {method: [] for method in methods}
    labels: dict[str, str] = {}
    for method, rate in itertools.product(methods, sorted(set(rates))):
        name, value = setting_at(recipe, method, rate)
        tuned, trial = (each.with_settings({f"optimizer.{name}": value}) for each in (recipe, held_out))
        (run,) = method_runs(trial, method, [TUNING_SEED], within=f"{name}{value:g}")
        trials[method].append((tuned, run))
        labels[run.case] = f"{method} at {name} {value:g}, on held-out images"
    runs = [run for tried in trials.values() for _, run in tried]
    train_methods(store, runs, execution, label=lambda run: labels[run.case])

    def correct(trial: tuple[Recipe, PlannedRun]) -> int:
        (record,) = store.records([trial[1]])
        return -1 if record.diverged else record.scored[0][1].correct

    return {method: max(tried, key=correct)[0] for method, tried in trials.items()}


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
