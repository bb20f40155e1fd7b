"""Checkpoints of nets trained in a stack: one file per stack, and a note of its runs and their images.

An interrupted sweep may resume with stacks of another size: runs are then copied, as they are, from the checkpoint of
the old stack to that of the new one.
"""

import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from equalbits._files import write_atomically
from equalbits._settings import flatten
from equalbits.recipes.build import DataSpec
from equalbits.recipes.experiments.store import PlannedRun
from equalbits.recipes.recipe import Recipe
from equalbits.recipes.run_record import FREE
from equalbits.training import CheckpointError, load_checkpoint, prefixed, save_checkpoint, with_prefix


class _Note(NamedTuple):
    """The runs of a stack checkpoint in their order, and their images; the name of a run that has left is empty."""

    path: Path
    names: list[str]
    images: DataSpec


def stack_path(out: Path, runs: Sequence[PlannedRun]) -> Path:
    """Return the checkpoint of a stack: the same name for the same runs with the same settings."""
    key = [run.path for run in runs], [_deciding_settings(run.recipe) for run in runs]
    return out / f"stack-{_checksum(key)}.safetensors"


def find_stack(out: Path, run: PlannedRun) -> Path | None:
    """Return the checkpoint of the interrupted stack that holds a run, if there is one."""
    return next((note.path for note in _notes(out) if _name(run) in note.names and note.path.exists()), None)


@contextmanager
def stack_checkpoint(out: Path, runs: Sequence[PlannedRun], images: DataSpec) -> Iterator[Path]:
    """Give the checkpoint to train a stack with; it holds the runs' state where an interrupted stack held them all.

    Raise where that stack was trained on other images. The note is removed if training ends without a checkpoint.
    """
    path = stack_path(out, runs)
    _take_over(path, [_name(run) for run in runs], images)
    try:
        yield path
    finally:
        if not path.exists():
            _note_path(path).unlink(missing_ok=True)


def _take_over(path: Path, names: list[str], images: DataSpec) -> None:
    holders = [note for note in _notes(path.parent) if set(names) <= set(note.names) and note.path.exists()]
    for note in holders:
        if other := note.images.difference(images):
            raise CheckpointError(
                f"{note.path} holds interrupted runs on {other}: use the same data to resume, or another --out"
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_note(_Note(path, names, images))
    for note in holders:
        if not path.exists():
            _copy(note.path, path, [note.names.index(name) for name in names])
    _remove_runs(path.parent, names, keep=path)


def discard_stack(path: Path, runs: Sequence[PlannedRun]) -> None:
    """Remove the checkpoint of runs that have ended."""
    path.unlink(missing_ok=True)
    _remove_runs(path.parent, [_name(run) for run in runs])


def remove_ended_stacks(out: Path) -> None:
    """Remove checkpoints whose runs have all ended, left by a kill just after their records were written."""
    _remove_runs(out, [])


def _copy(path: Path, to: Path, places: Sequence[int]) -> None:
    """Save some runs of a stack as a stack of their own, with the errors of those that diverged."""
    tensors, facts = load_checkpoint(path)
    copied: dict[str, Tensor] = {}
    for new, old in enumerate(places):
        copied |= prefixed(f"{new}.", with_prefix(f"{old}.", tensors))
    renumbered = {
        kind: {str(new): facts[kind][str(old)] for new, old in enumerate(places) if str(old) in facts[kind]}
        for kind in ("stack", "diverged")
    }
    save_checkpoint(to, copied, renumbered)


def _remove_runs(out: Path, names: Sequence[str], *, keep: Path | None = None) -> None:
    """Take runs, and those that have ended, out of the notes; remove checkpoints without any run left."""
    for note in _notes(out):
        left = ["" if name in names or _has_ended(out, name) else name for name in note.names]
        if note.path == keep or left == note.names:
            continue
        if any(left):
            _write_note(note._replace(names=left))
        else:
            note.path.unlink(missing_ok=True)
            _note_path(note.path).unlink()


def _notes(out: Path) -> list[_Note]:
    """Read the notes of a directory; the checkpoint of one may not have been written yet."""
    found = []
    for note in sorted(out.glob("stack-*.json")):
        path = note.with_suffix(".safetensors")
        try:
            table = json.loads(note.read_text())
            if not all(isinstance(name, str) for name in table["runs"]):
                raise ValueError("a name is not a string")
            found.append(_Note(path, table["runs"], DataSpec.from_dict(table["images"])))
        except (ValueError, TypeError, KeyError) as error:
            problem = f"{note} does not name the runs of {path.name} ({error})"
            raise CheckpointError(f"{problem}: delete both to train them again") from None
    return found


def _write_note(note: _Note) -> None:
    content = json.dumps({"runs": note.names, "images": asdict(note.images)})
    write_atomically(_note_path(note.path), content.encode())


def _note_path(path: Path) -> Path:
    return path.with_suffix(".json")


def _name(run: PlannedRun) -> str:
    """Identify a run by its directory and the settings that decide its result."""
    return f"{run.path} {_checksum(_deciding_settings(run.recipe))}"


def _has_ended(out: Path, name: str) -> bool:
    return bool(name) and (out / name.rpartition(" ")[0] / "run.json").exists()


def _deciding_settings(recipe: Recipe) -> dict[str, object]:
    return {name: value for name, value in flatten(recipe.as_dict()).items() if name not in FREE}


def _checksum(value: object) -> str:
    return f"{zlib.crc32(json.dumps(value, sort_keys=True).encode()):08x}"
