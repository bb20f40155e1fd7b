"""The record of one run, stored as run.json: its recipe, status, scores and measurements, and where it ran."""

import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import equalbits
from equalbits._toml import flatten
from equalbits.recipes.recipe import Recipe
from equalbits.training import FREE_SETTINGS, CheckpointError, EpochRecord, History, Score, device_name, refuse_changes

#: Settings that do not change the result.
FREE = FREE_SETTINGS | {"name", "about", "expected", "data.workers", "data.test_batch_size", "data.max_pixels"}
FINISHED, DIVERGED = "finished", "diverged"


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run that has ended.

    ``status`` is "finished", or "diverged" with the reason in ``error``. ``last`` and ``best`` are the last and the
    best scored epoch. ``stacked_with`` counts the nets trained at once, ``measured`` holds measurements taken while it
    trained, ``method`` names the compared method and ``node`` the machine of a cluster. ``changes`` lists what was
    changed between interruptions.
    """

    recipe: Recipe
    status: str = FINISHED
    error: str = ""
    device: str
    versions: Mapping[str, str]
    seconds: float
    last: EpochRecord | None = None
    best: EpochRecord | None = None
    measured: Mapping[str, Any] | None = None
    method: str = ""
    stacked_with: int = 1
    processes: int = 1
    peak_device_bytes: int | None = None
    command: str | None = None
    node: str = ""
    changes: Sequence[str] = ()

    @classmethod
    def of(cls, recipe: Recipe, device: str, history: History, seconds: float, **more: Any) -> "RunRecord":
        """Make the record of a run that has just ended here; ``more`` are further fields."""
        peak = torch.cuda.max_memory_allocated(device) if device.startswith("cuda") else None
        where: dict[str, Any] = {**device_and_versions(device), "command": command_line(), "peak_device_bytes": peak}
        scores = {"last": history.last, "best": history.best}
        return cls(**{"recipe": recipe, "seconds": round(seconds, 2), **where, **scores, **more})

    @property
    def seed(self) -> int:
        """The seed it was trained with."""
        return self.recipe.train.seed

    @property
    def software(self) -> str:
        """The versions it was trained with, in one line."""
        return " · ".join(f"{name} {version}" for name, version in self.versions.items())

    @property
    def diverged(self) -> bool:
        """True if its loss or weights became infinite or NaN."""
        return self.status == DIVERGED

    @property
    def scored(self) -> list[tuple[EpochRecord, Score]]:
        """The last and the best epoch with their test scores; empty where it diverged."""
        return [(end, end.test) for end in (self.last, self.best) if end and end.test]

    def as_json(self) -> bytes:
        """The content of run.json; empty optional fields are left out."""
        ends = {name: end.as_dict() if end else None for name, end in (("last", self.last), ("best", self.best))}
        table = {"recipe": self.recipe.as_dict(), "seed": self.seed} | {
            name: value
            for name, value in vars(self).items()
            if name != "recipe" and (value or name not in ("method", "error", "node", "measured", "changes"))
        }
        return (json.dumps({**table, **ends}, indent=1) + "\n").encode()

    @classmethod
    def read(cls, path: Path) -> "RunRecord":
        """Read a run.json; one that lacks a part is refused."""
        try:
            table = json.loads(path.read_text())
            recipe = Recipe.from_dict(table.pop("recipe")).with_settings({"seed": table.pop("seed")})
            scores = {name: EpochRecord.from_dict(end) if (end := table[name]) else None for name in ("last", "best")}
            record = cls(**{**table, "recipe": recipe, **scores})
            if record.status not in (FINISHED, DIVERGED):
                raise ValueError(f"status is {record.status!r}")
            if not record.diverged and len(record.scored) < 2:
                raise ValueError("it has no test score")
            if not (isinstance(record.device, str) and dict(record.versions) and record.seconds >= 0):
                raise ValueError("a part has no value")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{path} is not the record of a run ({error}): delete it to train again") from None
        return record


def check_same_recipe(out: Path, before: Recipe, now: Recipe, *, allow: bool = False) -> list[str]:
    """Raise where two recipes differ in a setting that changes the result; with ``allow`` log and return all."""
    old, new = flatten(before.as_dict()), flatten(now.as_dict())
    names = (name for name in {**old, **new} if name not in FREE and old.get(name) != new.get(name))
    changes = [(name, old.get(name), new.get(name)) for name in names]
    return refuse_changes(out, changes, allow=allow, found="{} holds a run with {}, this one has {}")


def stored_recipe(path: Path, name: str = "recipe") -> Recipe:
    """Read the recipe that a JSON file of results holds under a name."""
    try:
        return Recipe.from_dict(json.loads(path.read_text())[name])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path} holds no recipe ({error}): delete it to measure again") from None


def command_line() -> str | None:
    """Return the command that runs, or None in a program of the user's own."""
    program = Path(sys.argv[0])
    ours = program.name == "equalbits" or program.parts[-2:] == ("equalbits", "__main__.py")
    return shlex.join([*launch_words(), *sys.argv[1:]]) if ours else None


def launch_words() -> list[str]:
    """Return the words that start the command: torchrun's where several processes share a run."""
    processes = os.environ.get("WORLD_SIZE", "1")
    if processes == "1":
        return ["equalbits"]
    return ["torchrun", "--nproc-per-node", os.environ.get("LOCAL_WORLD_SIZE", processes), "-m", "equalbits"]


def device_and_versions(device: str) -> dict[str, Any]:
    """Return the name of the device and the versions that run on it."""
    versions = {"equalbits": equalbits.__version__, "torch": torch.__version__, "python": platform.python_version()}
    return {"device": device_name(device), "versions": versions}
