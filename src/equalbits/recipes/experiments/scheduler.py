"""The engine that runs many experiments: it trains what a store lacks, in turn, in stacks, or on a Ray cluster.

``sweep``, ``compare``, ``tune`` and ``reproduce`` say which runs they need, call :func:`run_missing`, and read the
records. A run that diverges is a record like any other, with that status; the others continue.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache

from equalbits._files import remove_partial_files
from equalbits.data import DataError
from equalbits.recipes.build import DataSpec, check_names, make_loader, make_model
from equalbits.recipes.experiments.ray_cluster import import_ray, train_on_ray
from equalbits.recipes.experiments.run_store import PlannedRun, RunStore, describe
from equalbits.recipes.experiments.stack_checkpoint import interrupted_stacks, remove_ended_stacks, run_name, stack_path
from equalbits.recipes.experiments.train_runs import Execution, Trainer
from equalbits.recipes.recipe import DataConfig
from equalbits.recipes.run_dir import check_same_images
from equalbits.training import LAST, make_optimizer, shared_settings

_MAX_CASES = 8  # per stack: torch recompiles the same code for other settings this many times, then no more


def run_missing(
    store: RunStore,
    runs: Sequence[PlannedRun],
    execution: Execution,
    *,
    stack: int = 1,
    keep_weights: bool = True,
    on_end: Callable[[Sequence[PlannedRun], float], None] | None = None,
) -> None:
    """Train every run without a record, up to ``stack`` at once; interrupted ones resume.

    ``on_end`` is called with each group of runs trained together on this machine and their seconds, else a line is
    logged.
    """
    if execution.ray:
        import_ray()
    check_runs(store, runs, execution)
    if execution.ray:
        cases = [[run for run in runs if run.case == case] for case in dict.fromkeys(run.case for run in runs)]
        if groups := [group for case in cases for group in make_stacks(store, case, stack)]:
            train_on_ray(groups, store, execution)
        return
    trainer = Trainer(store, execution, keep_weights=keep_weights)
    for group in make_stacks(store, runs, stack):
        began = time.perf_counter()
        at_once = f", first of {len(group)} at once" if len(group) > 1 else ""
        reporters = execution.reporters_for(describe(group[:1]) + at_once)
        in_stack = bool(group[0].method) or stack_path(store.out, group).exists()
        if in_stack or (stack > 1 and not _is_interrupted_alone(store, group[0])):
            trainer.train_stack(group, reporters)
        else:
            trainer.train_alone(group[0], reporters)
        seconds = time.perf_counter() - began
        if on_end:
            on_end(group, seconds)
            continue
        execution.log(f"{describe(group)} done in {seconds:.1f} s")
        for run, record in zip(group, store.records(group), strict=True):
            if record.diverged:
                execution.log(f"{run.case}: seed {run.seed} diverged")


def check_runs(store: RunStore, runs: Sequence[PlannedRun], execution: Execution) -> None:
    """Clean up after a kill, and raise for unknown names, records on other data and nets that cannot be built.

    The first case that is missing is not built here, since it trains at once. On a cluster the nodes hold the data, so
    nothing is built here.
    """
    remove_partial_files(store.out)
    remove_ended_stacks(store.out)

    @cache
    def load(data: DataConfig) -> tuple[DataSpec, int, int]:
        """Load a data set; return its description and its numbers of training and test images."""
        train, test = (make_loader(data, split, root=execution.root) for split in ("train", "test"))
        return DataSpec.of(train), len(train.dataset), len(test.dataset)

    for recipe in {run.case: run.recipe for run in runs}.values():
        check_names(recipe)
    for run in runs:
        record = store.find(run)
        with suppress(DataError):  # ended runs can be shown on a machine without the data
            if record and not record.diverged:
                (last, score), (images, train, test) = record.scored[0], load(run.recipe.data)
                same = (last.train.total, score.total) == (train, test)
                there = f"{last.train.total} training and {score.total} test images, this data has {train} and {test}"
                check_same_images(store.dir(run), images, other="" if same else there)
    missing = list({run.case: run.recipe for run in store.missing(runs)}.values())
    for recipe in [] if execution.ray else missing[1:]:
        if recipe.train.distill.needs_teacher and not recipe.train.distill.teacher:
            raise ValueError("distill is set but no teacher is given: set distill.teacher, or distill.weight=0")
        make_optimizer(make_model(recipe, load(recipe.data)[0]), recipe.train.optimizer)


def make_stacks(store: RunStore, runs: Sequence[PlannedRun], size: int) -> list[list[PlannedRun]]:
    """Group the runs that are missing into stacks of at most ``size``, in their order.

    Runs share a stack only if they agree in the data and in all settings that a stack must share. An interrupted stack
    resumes as it was, and a run that was interrupted alone resumes alone. A kill may have left some records of a stack:
    these runs are then part of it again.
    """
    missing = {run_name(run): run for run in store.missing(runs)}
    planned = {run_name(run): run for run in runs} if missing else {}
    stacks: list[list[PlannedRun]] = []
    for names in interrupted_stacks(store.out):
        if not missing.keys().isdisjoint(names) and planned.keys() >= set(names):
            stacks.append([planned[name] for name in names])
            missing = {name: run for name, run in missing.items() if name not in names}
    alike: dict[object, list[PlannedRun]] = {}
    for name, run in missing.items():
        alone = name if _is_interrupted_alone(store, run) else ""
        alike.setdefault((alone, run.stack_key, run.recipe.data, shared_settings(run.recipe.train)), []).append(run)
    for some in alike.values():
        stacks.append([])
        for run in some:
            cases = {each.case for each in stacks[-1]}
            if len(stacks[-1]) == size or (run.case not in cases and len(cases) == _MAX_CASES):
                stacks.append([])
            stacks[-1].append(run)
    return stacks


def _is_interrupted_alone(store: RunStore, run: PlannedRun) -> bool:
    return (store.dir(run) / LAST).exists()
