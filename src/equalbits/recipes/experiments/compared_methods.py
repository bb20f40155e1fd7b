"""The methods that can be compared, by name: their settings in a recipe, and their runs."""

import re
from collections.abc import Callable, Sequence

from equalbits._text import unknown_name
from equalbits._toml import split_values
from equalbits.nn import list_quantizers, quantizer_by_name
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
