"""The runs an item is made of: sweeps whose counts are read back, and single runs that are watched.

What is finished is not trained again. A run whose numbers leave the finite is a result too: it is noted as such, and
the others go on.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from equalbits.data import load_dataset
from equalbits.paper.item import Options
from equalbits.recipes import Recipe, Result, get_recipe, recipe_from_dict, run_recipe
from equalbits.recipes.batch import Batch, DivergedError, goes_alone, run_folder, train_side_by_side
from equalbits.recipes.folder import check_same, recipe_in
from equalbits.recipes.launch import Case, cases_of, missing_of, side_by_side, sweep, timed, write_ledger
from equalbits.recipes.lock import clear_up, in_use
from equalbits.recipes.make import check_names, pick_device
from equalbits.recipes.ray_cluster import RunsFailed, import_ray, train_on_ray
from equalbits.recipes.stopped import tidy
from equalbits.training import EpochRecord, NonFiniteError, StepRecord
from equalbits.training.checkpoint import BEST, LAST, write_atomically
from equalbits.training.interruption import check_weights
from equalbits.training.loop import Watcher
from equalbits.training.score import device_of

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


def check_data(recipes: Iterable[Recipe], options: Options) -> None:
    """Refuse before anything trains what would stop a later recipe: data that is not there."""
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
    for name in vary:
        if name in options.settings:
            raise ValueError(f"{name} is what this item goes through: leave --set {name}={options.settings[name]} away")
    vary = {name: list(options.grid.get(name, values)) for name, values in vary.items()}
    seeds = list(options.seeds or seeds)
    found, cases = [], cases_of(recipe, vary)
    tidy(folder)
    for case in cases:
        check_names(case.recipe)  # a slip in the last is told before the first has trained
    if left := sum(len(batch.seeds) for batch in _missing(folder, cases, seeds)):
        options.tell(_named(folder, f"{left} of {len(cases) * len(seeds)} runs to train"))
    stack = 1 if not may_stack or options.ray else options.stack or (_MOST_AT_ONCE if _on_gpu(options) else 1)
    if options.ray:
        _train_on_ray(folder, options, cases, seeds)
    if stack > 1:
        _train_side_by_side(folder, options, cases, seeds, stack)
    for case in cases:
        _train(recipe, folder, options, case, seeds)
        found.append({"settings": dict(case.settings), "runs": [_read(folder, case, seed) for seed in seeds]})
    return found


def _train(recipe: Recipe, folder: Path, options: Options, case: Case, seeds: Sequence[int]) -> None:
    """Train what is missing of a case's seeds, one after the other."""
    shared: dict[str, Any] = {
        "vary": {name: [value] for name, value in case.settings.items()},
        "root": options.root,
        "device": options.device,
        "tell": options.tell,
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
            with timed(group, options.tell) as name:
                _train_group(group, folder, options, name)
        if any(folder.glob("*/seed*/run.json")):  # else every run has diverged
            write_ledger(folder)


def _train_group(group: Sequence[Batch], folder: Path, options: Options, name: str) -> None:
    reporters = options.reporters_for(_named(folder, name))
    try:
        train_side_by_side(group, folder, root=options.root, device=options.device, reporters=reporters)
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
                tell=options.tell,
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

    >>> _named(Path("runs/fig8/runs/conv2/mpt"), "seed 0"), _named(Path("runs/fig4/runs"), "seed 0")
    ('conv2/mpt, seed 0', 'seed 0')
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
    options.tell(f"{case}: seed {seed} diverged")
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


def watched(
    recipe: Recipe,
    folder: Path,
    options: Options,
    *,
    watchers: Sequence[Watcher],
    read: Callable[[Result], dict[str, Any]],
    may_diverge: bool = False,
) -> dict[str, Any]:
    """Train one recipe under watchers that have seen nothing yet, and keep what ``read`` makes of them.

    A run that was cut off has lost its watchers' counts, so it begins anew, unless it has none; one that was measured
    is read back. The epochs' counts come with it. Watchers that are :class:`EachEpoch` are told of epochs too.
    With ``may_diverge`` a run whose loss leaves the finite is noted as ``diverged``; otherwise that is an error.
    """
    stored = folder / "measured.json"
    if stored.exists():
        check_same(folder, recipe_in(stored), recipe)
        known: dict[str, Any] = json.loads(stored.read_text())
        del known["recipe"]
        return known
    for name in (LAST, BEST) if watchers else ():
        (folder / name).unlink(missing_ok=True)
    if may_diverge:  # before a watcher asks for the rank of infinity, which a CPU refuses
        watchers = [_stop_when_not_finite, *watchers]
    reporters = [
        *(watcher.tell for watcher in watchers if isinstance(watcher, EachEpoch)),
        *options.reporters_for(folder.name if (part := folder.parent.name) == "runs" else f"{part}/{folder.name}"),
    ]
    try:
        finished = run_recipe(
            recipe, folder, root=options.root, device=options.device, watchers=watchers, reporters=reporters
        )
        measured: dict[str, Any] = {
            "epochs": [record.as_dict() for record in finished.history.epochs],
            **read(finished),
        }
    except NonFiniteError as error:
        if not may_diverge:
            raise
        measured = {"epochs": [], "diverged": str(error)}
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(stored, json.dumps({"recipe": recipe.as_dict(), **measured}).encode())
    options.tell(f"{folder.name}: {_summary(measured)}")
    return measured


def _stop_when_not_finite(model: nn.Module, step: int) -> None:
    """On a CPU alone: a GPU gives NaN for such a rank, and waits for no one until the epoch ends and all is checked."""
    if device_of(model).type == "cpu":
        check_weights(model, step=step, checkpoint=None)


def _summary(measured: Mapping[str, Any]) -> str:
    if not measured["epochs"]:
        return "diverged"
    test = measured["epochs"][-1]["test"]
    return f"{100 * test['correct'] / test['total']:.2f} % (last epoch)"


class EachEpoch:
    """Lets a watcher look at the start and at the end of every epoch, by the epoch's number, and never in between."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.model: nn.Module | None = None

    def __call__(self, model: nn.Module, step: int) -> None:
        """Take note of the model; look at it before the first step."""
        self.model = model
        if step == 0:
            self.watcher(model, 0)

    def tell(self, record: StepRecord | EpochRecord) -> None:
        """Look at the model when an epoch is done."""
        if isinstance(record, EpochRecord) and self.model is not None:
            self.watcher(self.model, record.epoch)
