"""What a sweep hands out, here or to another machine: a case and some seeds; trained in turn, or side by side."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from equalbits._files import write_all_atomically
from equalbits.recipes.build import ImageSpec, make_loader, make_model, on_device, pick_device
from equalbits.recipes.experiments.stack_checkpoint import Member, forget, stack_file, stack_of, taken_over
from equalbits.recipes.output_dir import clear_up
from equalbits.recipes.recipe import Recipe, recipe_from_dict
from equalbits.recipes.run import run_recipe
from equalbits.recipes.run_dir import facts_of, net_files
from equalbits.training import LAST, History, NonFiniteError, Place, Reporter, StackError, shared, train_stack


@dataclass(frozen=True)
class Batch:
    """A case's recipe, the name of its folder, and the seeds."""

    recipe: Recipe
    case: str
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        """The batch in words.

        >>> from equalbits.recipes import get_recipe
        >>> Batch(get_recipe("fashion-conv2"), "sign", (0, 1)).name
        'sign: seeds 0, 1'
        """
        return f"{self.case}: seed{'s' if len(self.seeds) > 1 else ''} {', '.join(map(str, self.seeds))}"

    def as_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON; the inverse of :meth:`from_dict`."""
        return {"recipe": self.recipe.as_dict(), "case": self.case, "seeds": list(self.seeds)}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> "Batch":
        """Rebuild a batch from plain data, its recipe checked anew."""
        return cls(recipe_from_dict(table["recipe"]), table["case"], tuple(table["seeds"]))

    def seeded(self) -> list[Recipe]:
        """The recipe with each of the seeds."""
        return [self.recipe.with_settings({"seed": seed}) for seed in self.seeds]

    def members(self, out: Path) -> list[Member]:
        """Its nets, as a stack in the sweep's folder knows them."""
        return [Member(self.case, each, run_folder(out, self.case, each.train.seed)) for each in self.seeded()]


def run_folder(out: Path, case: str, seed: int) -> Path:
    """Where a sweep keeps one seed of a case."""
    return Path(out) / case / f"seed{seed}"


def train_in_turn(
    batches: Sequence[Batch], out: Path, *, root: Path | None, device: str, reporters: Sequence[Reporter] = ()
) -> None:
    """Train run after run into ``out/<case>/seed<n>``; run.json is written last, and says that one is done."""
    for batch in batches:
        for recipe in batch.seeded():
            folder = run_folder(out, batch.case, recipe.train.seed)
            run_recipe(recipe, folder, root=root, device=device, reporters=reporters)


class DivergedError(NonFiniteError):
    """Some of several runs left the finite; the others are done and written. ``runs`` names them."""

    def __init__(self, runs: "Sequence[Diverged]") -> None:
        names = ", ".join(f"{run.case} seed {run.recipe.train.seed}" for run in runs)
        super().__init__(f"{names}: {runs[0].error}")
        self.runs = list(runs)


class Diverged(NamedTuple):
    """A run that left the finite: its case, its recipe with its seed, and what was seen."""

    case: str
    recipe: Recipe
    error: NonFiniteError


def train_side_by_side(
    batches: Sequence[Batch],
    out: Path,
    *,
    root: Path | None,
    device: str,
    reporters: Sequence[Reporter] = (),
    keep_nets: bool = True,
) -> None:
    """Train all seeds of several batches at once on one device; their recipes agree in :func:`beside`.

    ``reporters`` hear of the first. While they train they are saved in a file of ``out``, and go on from it, or from
    that of a larger stack which held them all. Runs that diverge do not stop the others: :class:`DivergedError` tells
    of them when those are written. Results are left of them and, with ``keep_nets``, the nets of their last epoch.
    """
    device, alone = pick_device(device), Place()
    members = [member for batch in batches for member in batch.members(out)]
    recipes = [member.recipe for member in members]
    data, seeds = recipes[0].data, [recipe.train.seed for recipe in recipes]
    first = on_device(make_loader(data, "train", root=root, device=device, seed=seeds[0], place=alone))
    loaders = [first, *(first.with_seed(seed) for seed in seeds[1:])]
    test = on_device(make_loader(data, "test", root=root, device=device, seed=0, place=alone))
    images = ImageSpec.of(first)
    models = [make_model(recipe, images).to(device) for recipe in recipes]
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    began, errors, shared_file = time.perf_counter(), {}, stack_file(out, members)
    histories: Sequence[History | None]
    try:
        told = [reporters, *[()] * (len(seeds) - 1)]
        configs = [recipe.train for recipe in recipes]
        with taken_over(shared_file, members, images):
            histories = train_stack(models, loaders, configs, test=test, reporters=told, checkpoint=shared_file)
    except StackError as some:
        histories, errors = some.histories, some.errors
    share = (time.perf_counter() - began) / len(seeds)
    done: dict[Path, bytes] = {}
    for member, model, history in zip(members, models, histories, strict=True):
        if history is not None:
            seconds = max(share, sum(record.seconds for record in history.epochs))  # where earlier calls began it
            facts = facts_of(member.recipe, device, alone, history, seconds) | {"stacked_with": len(seeds)}
            done |= net_files(member.folder, member.recipe, images, model, root=root) if keep_nets else {}
            done |= _files(member.folder, facts, history)
    write_all_atomically(done)  # or none of them: what is saved of the stack serves all of it, and no part
    forget(shared_file, members)
    if errors:
        gone = [(members[place], error) for place, error in errors.items()]
        raise DivergedError([Diverged(member.case, member.recipe, error) for member, error in gone])


def stopped_in(out: Path, batch: Batch) -> Path | None:
    """The checkpoint that the first net of a batch was stopped in: its own, that of a stack, or None."""
    own = run_folder(out, batch.case, batch.seeds[0]) / LAST
    return own if own.exists() else stack_of(out, batch.members(out)[0])


def goes_alone(out: Path, group: Sequence[Batch], stack: int) -> bool:
    """Whether a group, which is one net then, is to be trained by itself: as it was when it was stopped, if it was."""
    path = stopped_in(out, group[0])
    return stack == 1 if path is None else path.name == LAST


def beside(recipe: Recipe) -> tuple[object, ...]:
    """What recipes must agree in to be trained side by side."""
    return recipe.data, shared(recipe.train)


def _files(folder: Path, facts: Mapping[str, Any], history: History) -> dict[Path, bytes]:
    """What a run that is done leaves in its folder, which is made, or swept of what a kill left half-written."""
    folder.mkdir(parents=True, exist_ok=True)
    clear_up(folder)
    lines = "".join(json.dumps(record.as_dict()) + "\n" for record in history.epochs)
    return {
        folder / "history.jsonl": lines.encode(),
        folder / "run.json": (json.dumps(facts, indent=1) + "\n").encode(),
    }
