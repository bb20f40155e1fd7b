"""Seeds of one case that are trained at once: what a sweep hands out, here or to another machine."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from equalbits.data import FolderLoader
from equalbits.recipes.folder import facts_of
from equalbits.recipes.make import Images, make_loader, make_model, pick_device
from equalbits.recipes.recipe import Recipe, recipe_from_dict
from equalbits.recipes.run import run_recipe
from equalbits.training import History, Reporter
from equalbits.training.checkpoint import write_atomically
from equalbits.training.distributed import Place
from equalbits.training.stack import train_stack


@dataclass(frozen=True)
class Batch:
    """A case's recipe, the name of its folder, and the seeds; ``stacked`` says that they share one device's steps."""

    recipe: Recipe
    case: str
    seeds: tuple[int, ...]
    stacked: bool

    @property
    def name(self) -> str:
        """The batch in words.

        >>> from equalbits.recipes import get_recipe
        >>> Batch(get_recipe("fashion-conv2"), "sign", (0, 1), stacked=True).name
        'sign: seeds 0, 1'
        """
        return f"{self.case}: seed{'s' if len(self.seeds) > 1 else ''} {', '.join(map(str, self.seeds))}"

    def as_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON; the inverse of :meth:`from_dict`."""
        return {
            "recipe": self.recipe.as_dict(),
            "case": self.case,
            "seeds": list(self.seeds),
            "stacked": self.stacked,
        }

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> "Batch":
        """Rebuild a batch from plain data, its recipe checked anew."""
        return cls(recipe_from_dict(table["recipe"]), table["case"], tuple(table["seeds"]), table["stacked"])

    def train(self, out: Path, *, root: Path | None, device: str, reporters: Sequence[Reporter] = ()) -> None:
        """Train into ``out/<case>/seed<n>``; each run's run.json is written last, and says that it is done."""
        if self.stacked:
            _train_stacked(self, out, root=root, device=device)
            return
        for seed in self.seeds:
            seeded = self.recipe.with_settings({"seed": seed})
            run_recipe(seeded, run_folder(out, self.case, seed), root=root, device=device, reporters=reporters)


def run_folder(out: Path, case: str, seed: int) -> Path:
    """Where a sweep keeps one seed of a case."""
    return Path(out) / case / f"seed{seed}"


def _train_stacked(batch: Batch, out: Path, *, root: Path | None, device: str) -> None:
    device, seeds, data = pick_device(device), batch.seeds, batch.recipe.data
    alone = Place()
    first = make_loader(data, "train", root=root, device=device, seed=seeds[0], place=alone)
    if isinstance(first, FolderLoader):
        raise ValueError(f"{data.name} is read from files, too large for a device: use --stack 1")
    loaders = [first, *(first.with_seed(seed) for seed in seeds[1:])]
    test = make_loader(data, "test", root=root, device=device, seed=0, place=alone)
    images = Images.of(first)
    recipes = [batch.recipe.with_settings({"seed": seed}) for seed in seeds]
    models = [make_model(recipe, images).to(device) for recipe in recipes]
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    began = time.time()
    histories = train_stack(models, loaders, batch.recipe.train, seeds=seeds, test=test)
    seconds = (time.time() - began) / len(seeds)
    for recipe, seed, history in zip(recipes, seeds, histories, strict=True):
        facts = facts_of(recipe, device, alone, history, seconds) | {"stacked_with": len(seeds)}
        _write(run_folder(out, batch.case, seed), facts, history)


def _write(folder: Path, facts: Mapping[str, Any], history: History) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(record.as_dict()) + "\n" for record in history.epochs)
    write_atomically(folder / "history.jsonl", lines.encode())
    write_atomically(folder / "run.json", (json.dumps(facts, indent=1) + "\n").encode())
