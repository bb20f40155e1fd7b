"""Checks before the first of many runs trains: the data is that of the ended runs, and every net can be built."""

from collections.abc import Sequence
from contextlib import suppress
from functools import cache

from equalbits._files import remove_partial_files
from equalbits.data import DataError
from equalbits.recipes.build import DataSpec, check_names, make_loader, make_model
from equalbits.recipes.experiments.stack_checkpoint import remove_ended_stacks
from equalbits.recipes.experiments.store import PlannedRun, RunStore
from equalbits.recipes.experiments.train_runs import Execution
from equalbits.recipes.recipe import DataConfig
from equalbits.training import CheckpointError, make_optimizer


def check_runs(store: RunStore, runs: Sequence[PlannedRun], execution: Execution) -> None:
    """Clean up after a kill, and raise for unknown names, records on other data and nets that cannot be built.

    The first case that is missing is not built here, since it trains at once. On a cluster the nodes hold the data, so
    nothing is built here.
    """
    remove_partial_files(store.out)
    remove_ended_stacks(store.out)

    @cache
    def load(data: DataConfig) -> tuple[DataSpec, tuple[int, int]]:
        """Load a data set; return its description and its numbers of training and test images."""
        train, test = (make_loader(data, split, root=execution.root) for split in ("train", "test"))
        return DataSpec.of(train), (len(train.dataset), len(test.dataset))

    for recipe in {run.case: run.recipe for run in runs}.values():
        check_names(recipe)
    for run in runs:
        record = store.find(run)
        if record is None or record.last is None or record.last.test is None:
            continue
        try:
            images, here = load(run.recipe.data)
        except DataError:  # ended runs can be shown on a machine without the data
            continue
        other, there = "", (record.last.train.total, record.last.test.total)
        with suppress(CheckpointError):  # without model.json the counts alone are compared
            other = DataSpec.read(store.dir(run) / "model.json").difference(images)
        if not other and there != here:
            other = "{} training and {} test images, this data has {} and {}".format(*there, *here)
        if other:
            raise CheckpointError(
                f"{store.dir(run)} holds a run on {other}: use the same data to resume, or another --out"
            )
    missing = list({run.case: run.recipe for run in store.missing(runs)}.values())
    for recipe in [] if execution.ray else missing[1:]:
        if recipe.train.distill.needs_teacher and not recipe.train.distill.teacher:
            raise ValueError("distill is set but no teacher is given: set distill.teacher, or distill.weight=0")
        make_optimizer(make_model(recipe, load(recipe.data)[0]), recipe.train.optimizer)
