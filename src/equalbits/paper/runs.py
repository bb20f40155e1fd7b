"""The sweeps an item is made of, whose counts are read back.

What is finished is not trained again. A run whose numbers leave the finite is a result too: it is noted as such, and
the others go on.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from equalbits._files import write_atomically
from equalbits.data import load_dataset
from equalbits.paper.item import Options
from equalbits.recipes import (
    Batch,
    Case,
    DivergedError,
    Recipe,
    RunsFailed,
    cases_of,
    check_names,
    check_same,
    clear_up,
    get_recipe,
    goes_alone,
    import_ray,
    in_use,
    missing_of,
    pick_device,
    recipe_from_dict,
    recipe_in,
    run_folder,
    side_by_side,
    sweep,
    tidy,
    timed,
    train_on_ray,
    train_side_by_side,
    write_ledger,
)
from equalbits.training import NonFiniteError

_MOST_AT_ONCE = 16
_DIVERGED = "diverged.json"


def quick_recipe(net: str = "conv2", *, width: float = 0.125, **settings: Any) -> Recipe:
    """A narrow net on the embedded data, scored when it is done; a shallow one is without batch norm, as in the paper.

    ``settings`` are a recipe's, with ``__`` for a dot.

    >>> quick_recipe("conv2", data__limit=500).model.options
    {'width': 0.125, 'batch_norm': False}
    """
    table = get_recipe("fashion-conv2").as_dict()
    table["model"]["name"] = net
    table["model"]["options"] = {"width": width, **({"batch_norm": False} if net.startswith("conv") else {})}
    own = {"data.limit": 4000, "data.batch_size": 64, "epochs": 2, "speed": "plain"}
    dotted = {name.replace("__", "."): value for name, value in settings.items()}
    recipe = recipe_from_dict(table).with_settings({**own, **dotted})
    return recipe.with_settings({"evaluate_every": recipe.train.epochs})


class Sweep(NamedTuple):
    """A recipe, the folder of its runs, and what they go through."""

    recipe: Recipe
    folder: Path
    vary: Mapping[str, Sequence[Any]]


def unfinished(sweeps: Iterable[Sweep], options: Options, seeds: Sequence[int]) -> Iterator[Recipe]:
    """The recipes of those for which :func:`swept` would train, and so need data."""
    for recipe, folder, vary in sweeps:
        cases = _cases(recipe.with_settings(options.settings), options, vary)
        if _missing(folder, cases, list(options.seeds or seeds)):
            yield recipe


def check_data(recipes: Iterable[Recipe], options: Options) -> None:
    """Refuse before anything trains what would stop a later one of the recipes to train: data that is not there."""
    names = [recipe.with_settings(options.settings).data.name for recipe in recipes]
    for name in dict.fromkeys(names) if not options.ray else ():  # a cluster's data lies on its nodes
        load_dataset(name, options.root, split="test")


def swept(
    recipe: Recipe,
    folder: Path,
    options: Options,
    *,
    vary: Mapping[str, Sequence[Any]],
    seeds: Sequence[int],
    may_stack: bool = True,
) -> list[dict[str, Any]]:
    """Train every combination with every seed, and give back the counts of each run.

    A case is ``{"settings": …, "runs": [{"seed", "last", "best", "seconds"}, …]}``; ``last`` is None where the run
    diverged. ``options`` may lay its own settings, values and seeds over those given.
    """
    recipe = recipe.with_settings(options.settings)
    found, cases, seeds = [], _cases(recipe, options, vary), list(options.seeds or seeds)
    tidy(folder)
    for case in cases:
        check_names(case.recipe)  # a slip in the last is told before the first has trained
    if left := sum(len(batch.seeds) for batch in _missing(folder, cases, seeds)):
        options.log(_named(folder, f"{left} of {len(cases) * len(seeds)} runs to train"))
    stack = 1 if not may_stack or options.ray else options.stack or (_MOST_AT_ONCE if _on_gpu(options) else 1)
    if options.ray:
        _train_on_ray(folder, options, cases, seeds)
    if stack > 1:
        _train_side_by_side(folder, options, cases, seeds, stack)
    for case in cases:
        _train(recipe, folder, options, case, seeds)
        found.append({"settings": dict(case.settings), "runs": [_read(folder, case, seed) for seed in seeds]})
    return found


def _cases(recipe: Recipe, options: Options, vary: Mapping[str, Sequence[Any]]) -> list[Case]:
    """Every combination of what an item goes through, or of what was asked for of it."""
    for name in vary:
        if name in options.settings:
            raise ValueError(f"{name} is what this item goes through: leave --set {name}={options.settings[name]} away")
    return cases_of(recipe, {name: list(options.grid.get(name, values)) for name, values in vary.items()})


def _train(recipe: Recipe, folder: Path, options: Options, case: Case, seeds: Sequence[int]) -> None:
    """Train what is missing of a case's seeds, one after the other."""
    shared: dict[str, Any] = {
        "vary": {name: [value] for name, value in case.settings.items()},
        "root": options.root,
        "device": options.device,
        "log": options.log,
        "reporters_for": lambda name: options.reporters_for(_named(folder, name)),
    }
    for seed in [seed for batch in _missing(folder, [case], seeds) for seed in batch.seeds]:
        try:
            sweep(recipe, folder, seeds=[seed], **shared)
        except NonFiniteError as error:
            _note_divergence(folder, case.name, case.recipe.with_settings({"seed": seed}), error, options)


def _train_side_by_side(
    folder: Path, options: Options, cases: Sequence[Case], seeds: Sequence[int], stack: int
) -> None:
    """Train what is missing of all cases, so many nets at once; those that diverge are noted."""
    with in_use(folder):
        groups = side_by_side(folder, _missing(folder, cases, seeds), stack)
        for group in [group for group in groups if not goes_alone(folder, group, stack)]:
            with timed(group, options.log) as name:
                _train_group(group, folder, options, name)
        if any(folder.glob("*/seed*/run.json")):  # else every run has diverged
            write_ledger(folder)


def _train_group(group: Sequence[Batch], folder: Path, options: Options, name: str) -> None:
    reporters = options.reporters_for(_named(folder, name))
    try:
        train_side_by_side(
            group, folder, root=options.root, device=options.device, reporters=reporters, keep_nets=False
        )
    except DivergedError as some:
        for run in some.runs:
            _note_divergence(folder, run.case, run.recipe, run.error, options)


def _train_on_ray(folder: Path, options: Options, cases: Sequence[Case], seeds: Sequence[int]) -> None:
    """Train what is missing of all cases at once, a seed each; those that diverge are noted."""
    import_ray()
    with in_use(folder):
        try:
            train_on_ray(
                _missing(folder, cases, seeds),
                folder,
                options.ray,
                root=options.root,
                device=options.device,
                log=options.log,
                reporters_for=lambda name: options.reporters_for(_named(folder, name)),
            )
        except RunsFailed as failed:
            for batch, error in failed.failures:
                if not isinstance(error, NonFiniteError):
                    raise error from None
                seeded = batch.recipe.with_settings({"seed": batch.seeds[0]})
                _note_divergence(folder, batch.case, seeded, error, options)


def _named(folder: Path, run: str) -> str:
    """A run by its sweep, where an item has several, and by its own name.

    >>> _named(Path("runs/fig8/runs/conv2/kaiming-start"), "seed 0"), _named(Path("runs/fig4/runs"), "seed 0")
    ('conv2/kaiming-start, seed 0', 'seed 0')
    """
    parts = folder.parts
    begin = max((place for place, part in enumerate(parts) if part in ("runs", "tuning")), default=len(parts))
    sweep = "/".join(parts[begin:]).removeprefix("runs").removeprefix("/")
    return f"{sweep}, {run}" if sweep else run


def _missing(folder: Path, cases: Sequence[Case], seeds: Sequence[int]) -> list[Batch]:
    """The runs that are neither done nor known to diverge."""
    left = {case.name: [seed for seed in seeds if not _diverged(folder, case, seed)] for case in cases}
    return [batch for case in cases for batch in missing_of(folder, case, left[case.name])]


def _note_divergence(folder: Path, case: str, recipe: Recipe, error: Exception, options: Options) -> None:
    seed = recipe.train.seed
    options.log(f"{case}: seed {seed} diverged")
    path = run_folder(folder, case, seed) / _DIVERGED
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_up(path.parent)
    write_atomically(path, json.dumps({"recipe": recipe.as_dict(), "diverged": str(error)}).encode())


def _on_gpu(options: Options) -> bool:
    return pick_device(options.device).startswith("cuda")


def _diverged(folder: Path, case: Case, seed: int) -> bool:
    path = run_folder(folder, case.name, seed) / _DIVERGED
    if not path.exists():
        return False
    check_same(path.parent, recipe_in(path), case.recipe.with_settings({"seed": seed}))
    return True


def _read(folder: Path, case: Case, seed: int) -> dict[str, Any]:
    path = run_folder(folder, case.name, seed)
    if (path / _DIVERGED).exists():
        return {"seed": seed, "last": None, "diverged": json.loads((path / _DIVERGED).read_text())["diverged"]}
    run = json.loads((path / "run.json").read_text())
    return {"seed": seed, **{name: run[name] for name in ("last", "best", "seconds")}}
