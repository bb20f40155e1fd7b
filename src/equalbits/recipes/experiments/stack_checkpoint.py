"""Checkpoints of nets trained in a stack: one file per stack, and a note of its runs and their images.

An interrupted stack resumes as it was, whatever stack size is asked for then.
"""

import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from equalbits._files import remove_file, write_atomically
from equalbits._toml import flatten
from equalbits.recipes.build import DataSpec
from equalbits.recipes.experiments.run_store import PlannedRun
from equalbits.recipes.run_record import FREE
from equalbits.training import CheckpointError


def stack_path(out: Path, runs: Sequence[PlannedRun]) -> Path:
    """Return the checkpoint of the stack of these runs, in this order."""
    return out / f"stack-{checksum([run_name(run) for run in runs])}.safetensors"


def interrupted_stacks(out: Path) -> list[list[str]]:
    """Return the names of the runs of each stack that has a checkpoint."""
    return [_read_note(note)[0] for note in sorted(out.glob("stack-*.json")) if _checkpoint(note).exists()]


@contextmanager
def stack_checkpoint(out: Path, runs: Sequence[PlannedRun], images: DataSpec) -> Iterator[Path]:
    """Give the checkpoint to train a stack with; raise where an interrupted one was trained on other images.

    The note is removed if training ends without a checkpoint.
    """
    path = stack_path(out, runs)
    note = path.with_suffix(".json")
    if path.exists() and (other := _read_note(note)[1].difference(images)):
        raise CheckpointError(
            f"{path} holds interrupted runs on {other}: use the same data to resume, or another --out"
        )
    out.mkdir(parents=True, exist_ok=True)
    content = {"runs": [run_name(run) for run in runs], "images": asdict(images)}
    write_atomically(note, json.dumps(content).encode())
    try:
        yield path
    finally:
        if not path.exists():
            remove_file(note)


def remove_ended_stacks(out: Path) -> None:
    """Remove the checkpoints whose runs all have a record."""
    for note in out.glob("stack-*.json"):
        names, _ = _read_note(note)
        if all((out / name.rpartition(" ")[0] / "run.json").exists() for name in names):
            remove_file(_checkpoint(note))
            remove_file(note)


def _checkpoint(note: Path) -> Path:
    return note.with_suffix(".safetensors")


def _read_note(note: Path) -> tuple[list[str], DataSpec]:
    """Return the names of a stack's runs in their order, and their images."""
    table = json.loads(note.read_text())
    return table["runs"], DataSpec.from_dict(table["images"])


def run_name(run: PlannedRun) -> str:
    """Identify a run by its directory and the settings that decide its result."""
    settings = {name: value for name, value in flatten(run.recipe.as_dict()).items() if name not in FREE}
    return f"{run.path} {checksum(settings)}"


def checksum(value: object) -> str:
    """Return eight digits that identify a JSON value."""
    return f"{zlib.crc32(json.dumps(value, sort_keys=True).encode()):08x}"
