"""The engine that runs many experiments: it trains what a store lacks, in turn, in stacks, or on a Ray cluster.

``sweep``, ``compare``, ``tune`` and ``reproduce`` say which runs they need, call :func:`run_missing`, and read the
records. A run that diverges is a record like any other, with that status; the others go on.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from equalbits.recipes.experiments.preflight import check_runs
from equalbits.recipes.experiments.ray_cluster import import_ray, train_on_ray
from equalbits.recipes.experiments.stack_checkpoint import find_stack
from equalbits.recipes.experiments.store import PlannedRun, RunStore, describe
from equalbits.recipes.experiments.train_runs import Execution, Protocol, Trainer
from equalbits.training import LAST, shared

_MAX_CASES = 8  # per stack: torch recompiles the same code for other settings this many times, then no more


def run_missing(
    store: RunStore,
    runs: Sequence[PlannedRun],
    execution: Execution,
    *,
    stack: int = 1,
    protocol: Protocol = Protocol(),  # noqa: B008 (it is frozen)
    on_end: Callable[[Sequence[PlannedRun], float], None] | None = None,
) -> None:
    """Train every run without a record, up to ``stack`` at once; interrupted ones resume.

    ``on_end`` is called with each group of runs trained together on this machine and their seconds, else a line is
    logged.
    """
    if execution.ray:
        import_ray()
    check_runs(store, runs, execution)
    missing = store.missing(runs)
    if execution.ray:
        cases = {run.case: [each for each in missing if each.case == run.case] for run in missing}
        if groups := [group for case in cases.values() for group in make_stacks(store, case, stack)]:
            train_on_ray(groups, store, execution)
        return
    trainer = Trainer(store, execution, protocol)
    for group in make_stacks(store, missing, stack):
        began = time.perf_counter()
        at_once = f", first of {len(group)} at once" if len(group) > 1 else ""
        reporters = execution.reporters_for(describe(group[:1]) + at_once)
        checkpoint = _checkpoint_of(store, group[0])  # an interrupted run resumes the way it started
        alone = not protocol.measure and (stack == 1 if checkpoint is None else checkpoint.name == LAST)
        trainer.train(group, reporters, alone=alone)
        seconds = time.perf_counter() - began
        if on_end:
            on_end(group, seconds)
            continue
        execution.log(f"{describe(group)} done in {seconds:.1f} s")
        for run, record in zip(group, store.records(group), strict=True):
            if record.diverged:
                execution.log(f"{run.case}: seed {run.seed} diverged")


def make_stacks(store: RunStore, runs: Sequence[PlannedRun], size: int) -> list[list[PlannedRun]]:
    """Group runs into stacks of at most ``size``, in their order.

    Runs share a stack only if they agree in the data and in all settings that a stack must share, and if they are
    resumed from the same checkpoint.
    """
    alike: dict[object, list[PlannedRun]] = {}
    for run in runs:
        key = _checkpoint_of(store, run), run.stack_key, run.recipe.data, shared(run.recipe.train)
        alike.setdefault(key, []).append(run)
    stacks: list[list[PlannedRun]] = []
    for some in alike.values():
        stacks.append([])
        for run in some:
            cases = {each.case for each in stacks[-1]}
            if len(stacks[-1]) == size or (run.case not in cases and len(cases) == _MAX_CASES):
                stacks.append([])
            stacks[-1].append(run)
    return stacks


def _checkpoint_of(store: RunStore, run: PlannedRun) -> Path | None:
    """Return the checkpoint of an interrupted run: its own, or that of its stack."""
    own = store.dir(run) / LAST
    return own if own.exists() else find_stack(store.out, run)
