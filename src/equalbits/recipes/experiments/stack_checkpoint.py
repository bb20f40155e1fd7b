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

from equalbits._files import remove_file, write_atomically
from equalbits._toml import flatten
from equalbits.recipes.build import DataSpec
from equalbits.recipes.experiments.run_store import PlannedRun
from equalbits.recipes.run_record import FREE
from equalbits.training import CheckpointError, load_checkpoint, prefixed, save_checkpoint, with_prefix


class _Note(NamedTuple):
    """The runs of a stack checkpoint in their order, and their images; the name of a run that has left is empty."""

    path: Path
    names: list[str]
    images: DataSpec

    @classmethod
    def read_all(cls, out: Path) -> "list[_Note]":
        """Read the notes of a directory; the checkpoint of one may not have been written yet."""
        found = []
        for note in sorted(out.glob("stack-*.json")):
            path = note.with_suffix(".safetensors")
            try:
                table = json.loads(note.read_text())
                if not all(isinstance(name, str) for name in table["runs"]):
                    raise ValueError("a name is not a string")
                found.append(cls(path, table["runs"], DataSpec.from_dict(table["images"])))
            except (ValueError, TypeError, KeyError) as error:
                problem = f"{note} does not name the runs of {path.name} ({error})"
                raise CheckpointError(f"{problem}: delete both to train them again") from None
        return found

    def write(self) -> None:
        content = json.dumps({"runs": self.names, "images": asdict(self.images)})
        write_atomically(self.path.with_suffix(".json"), content.encode())


def find_stack(out: Path, run: PlannedRun) -> Path | None:
    """Return the checkpoint of the interrupted stack that holds a run, if there is one."""
    notes = _Note.read_all(out)
    return next((note.path for note in notes if _name(run) in note.names and note.path.exists()), None)


@contextmanager
def stack_checkpoint(out: Path, runs: Sequence[PlannedRun], images: DataSpec) -> Iterator[Path]:
    """Give the checkpoint to train a stack with; it holds the runs' state where an interrupted stack held them all.

    Raise where that stack was trained on other images. The note is removed if training ends without a checkpoint.
    """
    names = [_name(run) for run in runs]
    path = out / f"stack-{checksum(names)}.safetensors"
    holders = [note for note in _Note.read_all(out) if set(names) <= set(note.names) and note.path.exists()]
    for note in holders:
        if other := note.images.difference(images):
            raise CheckpointError(
                f"{note.path} holds interrupted runs on {other}: use the same data to resume, or another --out"
            )
    out.mkdir(parents=True, exist_ok=True)
    _Note(path, names, images).write()
    for note in holders:
        if not path.exists():
            _copy(note.path, path, [note.names.index(name) for name in names])
    _remove_runs(out, names, keep=path)
    try:
        yield path
    finally:
        if not path.exists():
            remove_file(path.with_suffix(".json"))


def remove_ended_stacks(out: Path) -> None:
    """Remove the checkpoints whose runs all have a record."""
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
    for note in _Note.read_all(out):
        ended = {name for name in note.names if (out / name.rpartition(" ")[0] / "run.json").exists()}
        left = ["" if name in names or name in ended else name for name in note.names]
        if note.path == keep or left == note.names:
            continue
        if any(left):
            note._replace(names=left).write()
        else:
            remove_file(note.path)
            remove_file(note.path.with_suffix(".json"))


def _name(run: PlannedRun) -> str:
    """Identify a run by its directory and the settings that decide its result."""
    settings = {name: value for name, value in flatten(run.recipe.as_dict()).items() if name not in FREE}
    return f"{run.path} {checksum(settings)}"


def checksum(value: object) -> str:
    """Return eight digits that identify a JSON value."""
    return f"{zlib.crc32(json.dumps(value, sort_keys=True).encode()):08x}"
