"""One data set a table: results of other images have no place beside those of these."""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from equalbits.data import DataError
from equalbits.recipes.make import Images, make_loader
from equalbits.recipes.recipe import DataConfig
from equalbits.training import CheckpointError
from equalbits.training.distributed import Place


class _Seen(NamedTuple):
    """What a net was trained and tested on: the images, where that is known, and how many of them."""

    images: Images | None
    trained: int
    tested: int

    def against(self, other: "_Seen") -> str:
        """What the other differs in, as ``12 training and 4 test images, this data has 12 and 8``; else empty."""
        unlike = self.images.against(other.images) if self.images and other.images else ""
        if not unlike and self[1:] != other[1:]:
            unlike = "{} training and {} test images, this data has {} and {}".format(*self[1:], *other[1:])
        return unlike


@dataclass(frozen=True)
class SameImages:
    """Refuses runs that are done on other images than those in ``root``, which are looked at where runs are done."""

    root: Path | None
    _known: dict[DataConfig, _Seen | None] = field(default_factory=dict)

    def check(self, folders: Iterable[Path], data: DataConfig) -> None:
        """Hold the runs that are done in these folders against the data as it lies here now.

        Where it does not, as on a machine that only draws, nothing can be said, and what is to be trained is refused.
        """
        for folder in folders:
            before = _seen_by(folder)
            now = self._here(data) if before else None
            other = before.against(now) if before and now else ""
            if other:
                raise CheckpointError(f"{folder} holds a run on {other}: use the same data to go on, or another --out")

    def _here(self, data: DataConfig) -> _Seen | None:
        if data not in self._known:
            self._known[data] = None
            with suppress(DataError):
                train, test = (
                    make_loader(data, split, root=self.root, device="cpu", seed=0, place=Place())
                    for split in ("train", "test")
                )
                self._known[data] = _Seen(Images.of(train), len(train.dataset), len(test.dataset))
        return self._known[data]


def _seen_by(folder: Path) -> _Seen | None:
    """What the run of a folder saw; None where none is done."""
    path = folder / "run.json"
    last = json.loads(path.read_text())["last"] if path.exists() else None
    if last is None:
        return None
    images = None
    with suppress(CheckpointError):  # an item's runs side by side leave no model.json, and a broken one is no result
        images = Images.read(folder / "model.json")
    return _Seen(images, last["train"]["total"], last["test"]["total"])
