"""The engine that runs many experiments: it trains what a store lacks, in turn, in stacks, or on a Ray cluster.

``sweep``, ``compare``, ``tune`` and ``reproduce`` say which runs they need, call :meth:`Engine.run_missing`, and
read the records. A run that diverges is a record like any other, with that status; the others go on.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from equalbits._files import remove_partial_files
from equalbits.recipes.build import pick_device
from equalbits.recipes.experiments.execution import Execution
from equalbits.recipes.experiments.preflight import Preflight
from equalbits.recipes.experiments.ray_cluster import import_ray, train_on_ray
from equalbits.recipes.experiments.stack_checkpoint import find_stack, remove_ended_stacks
from equalbits.recipes.experiments.store import PlannedRun, RunStore, describe
from equalbits.recipes.experiments.train_runs import Protocol, Trainer
from equalbits.training import LAST, NonFiniteError, shared

_MAX_CASES = 8  # per stack: torch recompiles the same code for other settings this many times, then no more


@dataclass(frozen=True)
class Ended:
    """Some runs that were trained together, with their time and a remark."""

    runs: Sequence[PlannedRun]
    seconds: float
    remark: str = ""

    def __str__(self) -> str:
        return f"{describe(self.runs)} done in {self.seconds:.1f} s"


def group_name(group: Sequence[PlannedRun]) -> str:
    """Name the run of a group whose progress is reported: the first.

    >>> from equalbits.recipes import get_recipe
    >>> recipe = get_recipe("fashion-conv2")
    >>> group_name([PlannedRun(case, recipe) for case in ("sign", "bihalf")])
    'sign: seed 0, first of 2 at once'
    """
    return describe(group[:1]) + (f", first of {len(group)} at once" if len(group) > 1 else "")


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


class DivergedError(NonFiniteError):
    """Some of several runs diverged; ``runs`` names them. The others have ended and are stored."""

    def __init__(self, store: RunStore, runs: Sequence[PlannedRun]) -> None:
        names = ", ".join(f"{run.case} seed {run.seed}" for run in runs)
        super().__init__(f"{names}: {store.records(runs[:1])[0].error}")
        self.runs = list(runs)


@dataclass
class Engine:
    """Trains the runs that a store lacks.

    ``on_end`` is called after each group of runs trained together, else a line is logged. ``name_of`` names a group;
    its reporters are asked for by that name.
    """

    store: RunStore
    execution: Execution
    protocol: Protocol = field(default_factory=Protocol)
    on_end: Callable[[Ended], None] | None = None
    name_of: Callable[[Sequence[PlannedRun]], str] = group_name

    def run_missing(self, runs: Sequence[PlannedRun], *, stack: int = 1) -> None:
        """Train every run without a record, up to ``stack`` at once; interrupted ones resume."""
        execution, store = self.execution, self.store
        if execution.ray:
            import_ray()
        self.check(runs)
        missing = store.missing(runs)
        if execution.ray:
            cases = {run.case: [each for each in missing if each.case == run.case] for run in missing}
            groups = [group for case in cases.values() for group in make_stacks(store, case, stack)]
            if groups:
                train_on_ray(groups, store, execution)
            return
        trainer = self.trainer()
        for group in make_stacks(store, missing, stack):
            began = time.perf_counter()
            reporters = execution.reporters_for(self.name_of(group))
            remark = trainer.train(group, reporters, alone=self._trains_alone(group, stack))
            ended = Ended(group, time.perf_counter() - began, remark)
            (self.on_end or self.log)(ended)

    def check(self, runs: Sequence[PlannedRun]) -> None:
        """Clean up after a kill, and raise for runs that cannot be trained or whose records are of other data."""
        remove_partial_files(self.store.out)
        remove_ended_stacks(self.store.out)
        # The nodes of a cluster hold its data, so nothing can be built here.
        Preflight(self.execution.root).check(self.store, runs, build=not self.execution.ray)

    def trainer(self) -> Trainer:
        """Return what trains the runs on this machine."""
        return Trainer(self.store, self.execution.root, pick_device(self.execution.device), self.protocol)

    def log(self, ended: Ended) -> None:
        """Log that some runs have ended."""
        self.execution.log(str(ended))
        for run, record in zip(ended.runs, self.store.records(ended.runs), strict=True):
            if record.diverged:
                self.execution.log(f"{run.case}: seed {run.seed} diverged")

    def _trains_alone(self, group: Sequence[PlannedRun], stack: int) -> bool:
        """Return True if a group is one run to train by itself; an interrupted run resumes the way it started."""
        path = _checkpoint_of(self.store, group[0])
        return not self.protocol.measure and (stack == 1 if path is None else path.name == LAST)
