"""What is looked at before the first of many runs trains: is the data that of the runs done, can the others be made?"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from equalbits.data import DataError
from equalbits.recipes.build import ImageSpec, make_loader, make_model
from equalbits.recipes.recipe import DataConfig, Recipe
from equalbits.recipes.run_dir import read_run
from equalbits.training import CheckpointError, Place, make_optimizer


class _Counts(NamedTuple):
    """How many images a net is trained and tested on."""

    train: int
    test: int


@dataclass(frozen=True)
class DataHere:
    """The data that lies in ``root``; each set is looked at once, when it is first needed."""

    root: Path | None
    _known: dict[DataConfig, tuple[ImageSpec, _Counts]] = field(default_factory=dict)

    def check_done(self, folders: Iterable[Path], data: DataConfig) -> None:
        """Refuse runs that are done in these folders on other images: they have no place beside those of these."""
        for folder in folders:
            if counts := _counts_of(folder):
                try:
                    images, here = self._images(data)
                except DataError:  # as on a machine that only draws: nothing can be said
                    return
                other = ""
                with suppress(CheckpointError):  # an item's nets side by side leave none, and a broken one is no result
                    other = ImageSpec.read(folder / "model.json").against(images)
                if not other and counts != here:
                    other = "{} training and {} test images, this data has {} and {}".format(*counts, *here)
                if other:
                    raise CheckpointError(
                        f"{folder} holds a run on {other}: use the same data to go on, or another --out"
                    )

    def try_out(self, recipe: Recipe) -> None:
        """Make a recipe's net and optimizer, and drop them: what cannot be made need not wait for others to train."""
        if recipe.train.distill.wants_teacher:
            raise ValueError("runs of a sweep have no teacher: set distill.weight=0 and distill.attention=0")
        images, _ = self._images(recipe.data)
        make_optimizer(make_model(recipe, images), recipe.train.optimizer)

    def _images(self, data: DataConfig) -> tuple[ImageSpec, _Counts]:
        if data not in self._known:
            train, test = (
                make_loader(data, split, root=self.root, device="cpu", seed=0, place=Place())
                for split in ("train", "test")
            )
            self._known[data] = ImageSpec.of(train), _Counts(len(train.dataset), len(test.dataset))
        return self._known[data]


def _counts_of(folder: Path) -> _Counts | None:
    """How many images the run of a folder saw; None where none is done."""
    path = folder / "run.json"
    last = read_run(path)[1].get("last") if path.exists() else None
    return _Counts(last["train"]["total"], last["test"]["total"]) if last else None
