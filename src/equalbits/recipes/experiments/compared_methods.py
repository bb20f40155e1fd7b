"""The methods that can be compared, by name: their settings in a recipe, their runs, and their tuning.

A fair comparison gives each method a learning rate of its own, since the same rate moves the bits of one method far
more than those of another. Bop's bits do not depend on the rate: its gamma is tuned instead. Test images are not used.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from equalbits._text import unknown_name
from equalbits._toml import split_values
from equalbits.nn import list_quantizers, quantizer_by_name
from equalbits.recipes.build import make_loader
from equalbits.recipes.experiments.run_store import PlannedRun, RunStore, describe_seeds
from equalbits.recipes.experiments.scheduler import run_missing
from equalbits.recipes.experiments.train_runs import Execution
from equalbits.recipes.recipe import Recipe

#: The same net with real weights, as the upper bound.
REAL = "real"
#: Methods that are more than a quantizer. Bop's gamma and tau, and the optimizer of real parameters, are the recipe's.
_SETTINGS = {
    "bop": {"model.weight_quantizer": "bits", "optimizer.name": "bop"},
    "balanced-bop": {"model.weight_quantizer": "bits:p_pos=0.5", "optimizer.name": "balanced-bop"},
    REAL: {"model.weight_quantizer": ""},
}
_SYNONYMS = {"bnn", "reactnet"}
_HELD_OUT = 5  # one training image in five
#: Far from the seeds that users count with, so that a comparison does not train with it.
TUNING_SEED = 1_000_003


def list_methods() -> list[str]:
    """List every method that can be compared, once: of two names for the same weights only the older.

    >>> {"sign", "bihalf", "bop", "real"} <= set(list_methods())
    True
    """
    return [*sorted({*list_quantizers(), *_SETTINGS} - _SYNONYMS - {"bits", REAL}), REAL]


def parse_methods(text: str) -> list[str]:
    """Parse names separated by commas, or ``all``; settings may follow a colon after a name.

    >>> parse_methods("sign,bihalf:p_pos=0.25,irnet:t_min=0.1,t_max=5")
    ['sign', 'bihalf:p_pos=0.25', 'irnet:t_min=0.1,t_max=5']
    >>> parse_methods("bihlaf")
    Traceback (most recent call last):
    ValueError: method 'bihlaf' is not known: did you mean 'bihalf'? There are: ...
    """
    found = [name for word in split_values(text) if word for name in (list_methods() if word == "all" else [word])]
    if not found:
        raise ValueError(f"--methods {text!r} names none: write all, or names as in sign,bihalf")
    for method in found:
        check_method(method)
    return list(dict.fromkeys(found))


def check_method(method: str) -> None:
    """Raise for an unknown method, and for settings that it does not take."""
    name = method.partition(":")[0]
    if name not in {*list_methods(), *_SYNONYMS}:
        raise unknown_name("method", name, list_methods())
    if method in _SETTINGS:
        return
    if name in _SETTINGS:
        raise ValueError(f"method {name!r} takes no settings: write {name}, and set those of its optimizer by --set")
    quantizer_by_name(method)


def recipe_for(method: str, recipe: Recipe) -> Recipe:
    """Return the recipe with this method and nothing else changed."""
    return recipe.with_settings(_SETTINGS.get(method, {"model.weight_quantizer": method}))


def case_of(method: str) -> str:
    """Return the name of a method's directory."""
    return re.sub(r"[^\w.=-]+", "-", method)


def method_runs(recipe: Recipe, method: str, seeds: Sequence[int], *, within: str = "") -> list[PlannedRun]:
    """Plan one run of a method per seed, below the directory ``within``."""
    case, mine = f"{within}/" * bool(within) + case_of(method), recipe_for(method, recipe)
    seeded = [mine.with_settings({"seed": seed}) for seed in seeds]
    return [PlannedRun(case, each, stack_key=case, measured=True, method=method) for each in seeded]


def train_methods(
    store: RunStore,
    runs: Sequence[PlannedRun],
    execution: Execution,
    *,
    label: Callable[[PlannedRun], str],
    stack: int = 1,
) -> None:
    """Train the runs that are missing, with measurements; log the scores of each group under its label."""

    def log_scores(group: Sequence[PlannedRun], seconds: float) -> None:
        records = store.records(group)
        scores = ["failed" if each.diverged else f"{each.scored[0][1].accuracy:.2f} %" for each in records]
        errors = "".join(f"; seed {each.seed}: {each.error}" for each in records if each.diverged)
        seeds = describe_seeds([each.seed for each in records])
        execution.log(f"{label(group[0])}: {seeds}: {', '.join(scores)}  ({seconds:.1f} s){errors}")

    run_missing(store, runs, execution, stack=stack, on_end=log_scores)


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
    runs, labels, tuned = list[PlannedRun](), dict[str, str](), dict[str, Recipe]()
    for method, rate in itertools.product(methods, sorted(set(rates))):
        name, value = setting_at(recipe, method, rate)
        setting = {f"optimizer.{name}": value}
        (run,) = method_runs(held_out.with_settings(setting), method, [TUNING_SEED], within=f"{name}{value:g}")
        runs.append(run)
        labels[run.case] = f"{method} at {name} {value:g}, on held-out images"
        tuned[run.case] = recipe.with_settings(setting)
    train_methods(store, runs, execution, label=lambda run: labels[run.case])

    def correct(run: PlannedRun) -> int:
        (record,) = store.records([run])
        return -1 if record.diverged else record.scored[0][1].correct

    best = {method: max((run for run in runs if run.method == method), key=correct) for method in methods}
    return {method: tuned[run.case] for method, run in best.items()}


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
