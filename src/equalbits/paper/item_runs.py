"""The runs of an item: plan them, train what is missing, read their counts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from torch import nn

from equalbits.paper.claims import CaseCounts
from equalbits.paper.item import Options
from equalbits.recipes import (
    Case,
    PlannedRun,
    Recipe,
    RunRecord,
    RunStore,
    TrainedRun,
    Trainer,
    cases_of,
    check_runs,
    get_recipe,
    run_missing,
)
from equalbits.training import EpochRecord, NonFiniteError, StepRecord, Watcher, check_weights, device_of

_MAX_STACK = 16  # nets trained at once on a GPU

Group = TypeVar("Group")


def quick_recipe(
    net: str = "conv2", *, width: float = 0.125, images: int = 4000, epochs: int = 2, input_quantizer: str = ""
) -> Recipe:
    """Return a narrow net on the embedded data, scored at the end; a shallow one has no batch norm, as in the paper.

    >>> quick_recipe("conv2", images=500).model.options
    {'width': 0.125, 'batch_norm': False}
    """
    model = {"model.name": net, "model.options.width": width, "model.input_quantizer": input_quantizer}
    data = {"data.limit": images, "data.batch_size": 64}
    training = {"epochs": epochs, "evaluate_every": epochs, "speed": "plain"}
    recipe = get_recipe("fashion-conv2").with_settings(model | data | training)
    return recipe.with_settings({"model.options.batch_norm": False}) if net.startswith("conv") else recipe


def item_recipes(
    nets: Mapping[str, str], options: Options, *, quick: Mapping[str, Recipe], part: str = "nets"
) -> dict[str, Recipe]:
    """Return the recipes of the nets that the grid parameter ``part`` asks for, or the ``quick`` ones."""
    if options.quick and part in options.grid:
        raise ValueError(f"a quick measurement has {part} of its own: leave --set {part}=… out, or --quick")
    return dict(quick) if options.quick else {net: get_recipe(nets[net]) for net in options.grid.get(part, nets)}


def item_cases(
    recipe: Recipe,
    vary: Mapping[str, Sequence[Any]],
    options: Options,
    *,
    within: str = "",
    own: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> list[Case]:
    """Return every combination of the settings to vary, or of the values that ``options.grid`` asks for.

    Settings of ``options`` replace those of the recipe. ``within`` is the directory of the cases. ``own`` holds further
    settings of single methods.
    """
    for name in vary:
        if name in options.settings:
            raise ValueError(f"{name} is varied by this item: leave --set {name}={options.settings[name]} out")
    values = {name: list(options.grid.get(name, usual)) for name, usual in vary.items()}
    cases = cases_of(recipe.with_settings(options.settings), values, within=within)
    further = [own.get(case.recipe.model.weight_quantizer, {}) for case in cases]
    return [replace(case, recipe=case.recipe.with_settings(more)) for case, more in zip(cases, further, strict=True)]


def run_cases(
    out: Path,
    groups: Mapping[Group, Sequence[Case]],
    options: Options,
    *,
    may_stack: bool = True,
    keep_weights: bool = False,
) -> dict[Group, list[CaseCounts]]:
    """Train every case with every seed of ``options`` into ``out``, and return the counts of each run, group by group.

    A case is ``{"settings": …, "runs": [{"seed", "last", "best", "seconds"}, …]}``; ``last`` is None where the run
    diverged. Cases in different directories are not stacked together.
    """
    store = RunStore(out)
    runs = [run for cases in groups.values() for case in cases for run in case.runs(options.seeds)]
    if missing := store.missing(runs):
        options.log(f"{len(missing)} of {len(runs)} runs to train")
    stack = (options.stack or (_MAX_STACK if options.on_gpu else 1)) if may_stack and not options.ray else 1
    run_missing(store, runs, options, stack=stack, keep_weights=keep_weights)
    return {
        group: [
            {
                "settings": dict(case.settings),
                "runs": [_run(record) for record in store.records(case.runs(options.seeds))],
            }
            for case in cases
        ]
        for group, cases in groups.items()
    }


def run_methods(out: Path, groups: Mapping[str, Sequence[Case]], options: Options, **how: bool) -> dict[str, Any]:
    """Train the methods of every net by :func:`run_cases`; return the cases by net and method."""
    found = run_cases(out / "runs", groups, options, **how)
    return {"nets": {net: by_method(cases) for net, cases in found.items()}}


def nest(found: Mapping[tuple[str, str], Group]) -> dict[str, dict[str, Group]]:
    """Return values by the first part of their keys, then by the second."""
    nested: dict[str, dict[str, Group]] = {first: {} for first, _ in found}
    for (first, second), value in found.items():
        nested[first][second] = value
    return nested


def by_method(cases: Sequence[CaseCounts]) -> dict[str, CaseCounts]:
    """Return the cases of one net by the name of their method."""
    return {case["settings"]["model.weight_quantizer"]: case for case in cases}


def _run(record: RunRecord) -> Any:
    if record.last is None or record.best is None:
        return {"seed": record.seed, "last": None, "diverged": record.error}
    ends = {"last": record.last.as_dict(), "best": record.best.as_dict()}
    return {"seed": record.seed, **ends, "seconds": record.seconds}


@dataclass(frozen=True)
class Watch:
    """New watchers of one run, and a function that reads their counts when it is finished."""

    watchers: Sequence[Watcher]
    read: Callable[[TrainedRun], dict[str, Any]]


def run_watched(
    out: Path,
    recipes: Mapping[str, Recipe],
    options: Options,
    watch: Callable[[str], Watch],
    *,
    may_diverge: bool = False,
) -> dict[str, dict[str, Any]]:
    """Train each recipe by itself under the watchers of ``watch(name)``; return their counts, with those of all epochs.

    An interrupted run has lost its watchers' counts and starts over, unless it has none. With ``may_diverge`` the
    entry of a diverged run says so; else that is an error.
    """
    store = RunStore(out)
    runs = {name: PlannedRun(name, recipe, measured=True) for name, recipe in recipes.items()}
    check_runs(store, list(runs.values()), options)
    for name, run in runs.items():
        if store.find(run) is not None:
            continue
        watched = watch(name)
        # Stop before a watcher takes ranks of infinite weights, which a CPU refuses.
        watchers = [_stop_when_not_finite, *watched.watchers] if may_diverge else watched.watchers
        followers = [watcher.on_record for watcher in watchers if isinstance(watcher, EachEpoch)]
        reporters = [*followers, *options.reporters_for(name)]
        Trainer(store, options).train_alone(run, reporters, watchers=watchers, read=partial(_measured, watched))
        (record,) = store.records([run])
        words = "diverged" if record.diverged else f"{record.scored[0][1].accuracy:.2f} % (last epoch)"
        options.log(f"{name}: {words}")
    found = {}
    for name, record in zip(runs, store.records(runs.values()), strict=True):
        if record.diverged and not may_diverge:
            raise NonFiniteError(f"{name}: {record.error}")
        found[name] = {"epochs": [], "diverged": record.error} if record.diverged else dict(record.measured or {})
    return found


def _measured(watched: Watch, finished: TrainedRun) -> dict[str, Any]:
    return {"epochs": [record.as_dict() for record in finished.history.epochs], **watched.read(finished)}


def _stop_when_not_finite(model: nn.Module, step: int) -> None:
    """Check the weights at every step, on a CPU only: a GPU ranks NaN without an error, and is not waited for."""
    if device_of(model).type == "cpu":
        check_weights(model, step=step, checkpoint=None)


class EachEpoch:
    """Call a watcher before the first step and at the end of every epoch, with the number of the epoch."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.model: nn.Module | None = None

    def __call__(self, model: nn.Module, step: int) -> None:
        """Remember the model; call the watcher before the first step."""
        self.model = model
        if step == 0:
            self.watcher(model, 0)

    def on_record(self, record: StepRecord | EpochRecord) -> None:
        """Call the watcher at the end of an epoch."""
        if isinstance(record, EpochRecord) and self.model is not None:
            self.watcher(self.model, record.epoch)
