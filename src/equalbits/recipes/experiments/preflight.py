"""Checks before the first of many runs trains: the data is that of the ended runs, and every net can be built."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from equalbits.data import DataError
from equalbits.recipes.build import DataSpec, check_names, make_loader, make_model
from equalbits.recipes.experiments.store import PlannedRun, RunStore
from equalbits.recipes.recipe import DataConfig, Recipe
from equalbits.training import CheckpointError, ProcessRank, make_optimizer


class ImageCounts(NamedTuple):
    """The number of images a net is trained and tested on."""

    train: int
    test: int


@dataclass(frozen=True)
class Preflight:
    """Checks against the data sets in ``root``; each is loaded once, when it is first needed."""

    root: Path | None
    _loaded: dict[DataConfig, tuple[DataSpec, ImageCounts]] = field(default_factory=dict)

    def check(self, store: RunStore, runs: Iterable[PlannedRun], *, build: bool) -> None:
        """Raise for unknown names, for records on other data and, with ``build``, for nets that cannot be built.

        The first case that is missing is not built here, since it trains at once.
        """
        runs = list(runs)
        for recipe in {run.case: run.recipe for run in runs}.values():
            check_names(recipe)
        for run in runs:
            self._check_data(store, run)
        missing = list({run.case: run.recipe for run in store.missing(runs)}.values())
        for recipe in missing[1:] if build else ():
            self._check_build(recipe)

    def counts(self, data: DataConfig) -> ImageCounts:
        """Return how many images there are to train and to test on."""
        return self._load(data)[1]

    def _check_data(self, store: RunStore, run: PlannedRun) -> None:
        record = store.find(run)
        if record is None or record.last is None or record.last.test is None:
            return
        try:
            images, here = self._load(run.recipe.data)
        except DataError:  # ended runs can be shown on a machine without the data
            return
        other, there = "", ImageCounts(record.last.train.total, record.last.test.total)
        with suppress(CheckpointError):  # without model.json the counts alone are compared
            other = DataSpec.read(store.dir(run) / "model.json").difference(images)
        if not other and there != here:
            other = "{} training and {} test images, this data has {} and {}".format(*there, *here)
        if other:
            raise CheckpointError(
                f"{store.dir(run)} holds a run on {other}: use the same data to resume, or another --out"
            )

    def _check_build(self, recipe: Recipe) -> None:
        if recipe.train.distill.needs_teacher:
            raise ValueError("runs of a sweep have no teacher: set distill.weight=0 and distill.attention=0")
        make_optimizer(make_model(recipe, self._load(recipe.data)[0]), recipe.train.optimizer)

    def _load(self, data: DataConfig) -> tuple[DataSpec, ImageCounts]:
        if data not in self._loaded:
            train, test = (
                make_loader(data, split, root=self.root, device="cpu", seed=0, place=ProcessRank())
                for split in ("train", "test")
            )
            self._loaded[data] = DataSpec.of(train), ImageCounts(len(train.dataset), len(test.dataset))
        return self._loaded[data]
