"""Runs that were stopped: the checkpoint each lies in, by itself or with those it was trained beside.

Nets side by side are saved in one file, and beside it lies a note of which they are, and of their images. Called again
they may be grouped otherwise, as with another ``--stack``: they then move, as they are, into a file of those they go on
with.
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
from equalbits.recipes.build import ImageSpec
from equalbits.recipes.recipe import Recipe
from equalbits.recipes.run_dir import FREE
from equalbits.training import CheckpointError, flat, load_checkpoint, prefixed, save_checkpoint, with_prefix


class Member(NamedTuple):
    """A net of a stack: the name of its case, its recipe with its seed, and the folder its result goes to."""

    case: str
    recipe: Recipe
    folder: Path


def stack_file(out: Path, members: Sequence[Member]) -> Path:
    """Where runs side by side are saved: the same name for the same runs, with the settings that decide their result.

    Their weights alone do not tell what they were started from, or which data they have seen.
    """
    cases, settings = [member.case for member in members], [_deciding(member.recipe) for member in members]
    return out / f"stack-{_sum([cases, settings])}.safetensors"


def stack_of(out: Path, member: Member) -> Path | None:
    """The file of the stopped stack that holds a net, where there is one."""
    return next((path for path, names, _ in _noted(out) if _name(out, member) in names and path.exists()), None)


@contextmanager
def taken_over(path: Path, members: Sequence[Member], images: ImageSpec) -> Iterator[None]:
    """Have ``path`` hold these nets as they were stopped, where one stack held them all, while they are trained.

    That it does is noted; where they are refused, or die before they are saved, no note stays either. Nets that were
    stopped on other images are refused.
    """
    _take_over(path, members, images)
    try:
        yield
    finally:
        if not path.exists():
            _note(path).unlink(missing_ok=True)


def _take_over(path: Path, members: Sequence[Member], images: ImageSpec) -> None:
    names, others = [_name(path.parent, member) for member in members], list(_noted(path.parent))
    for other, known, before in others:
        unlike = before.against(images) if before and set(names) <= set(known) and other.exists() else ""
        if unlike:
            raise CheckpointError(
                f"{other} holds nets that were stopped on {unlike}: use the same data, or another --out"
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_note(path, names, images)
    for other, known, _ in others:
        if set(names) <= set(known) and other.exists() and not path.exists():
            _copy(other, path, [known.index(name) for name in names])
    _strike(path.parent, names, but=path)


def forget(path: Path, members: Sequence[Member]) -> None:
    """These nets are done: nothing is kept of them."""
    path.unlink(missing_ok=True)
    _strike(path.parent, [_name(path.parent, member) for member in members])


def tidy(out: Path) -> None:
    """Remove the stacks of a folder all of whose nets are done: a kill came between their results and this."""
    _strike(out, [])


def _copy(path: Path, to: Path, places: Sequence[int]) -> None:
    """Save some nets of a stack as one of their own; which had diverged is told with them."""
    tensors, facts = load_checkpoint(path)
    found: dict[str, Tensor] = {}
    for new, old in enumerate(places):
        found |= prefixed(f"{new}.", with_prefix(f"{old}.", tensors))
    told = {
        kind: {str(new): facts[kind][str(old)] for new, old in enumerate(places) if str(old) in facts[kind]}
        for kind in ("stack", "diverged")
    }
    save_checkpoint(to, found, told)


def _strike(out: Path, names: Sequence[str], *, but: Path | None = None) -> None:
    """Take nets out of the notes, and those that are done; a stack that holds no other is removed."""
    for path, known, images in _noted(out):
        left = ["" if name in names or _is_done(out, name) else name for name in known]
        if path == but or left == known:
            continue
        if any(left):
            _write_note(path, left, images)
        else:
            path.unlink(missing_ok=True)
            _note(path).unlink()


def _noted(out: Path) -> Iterator[tuple[Path, list[str], ImageSpec | None]]:
    """The stacks of a folder: each one's file, the names of its nets in their order, and its images where noted.

    A net that has left is named "". The file is not there where nothing was saved yet. Notes were once names alone.
    """
    for note in sorted(out.glob("stack-*.json")):
        path = note.with_suffix(".safetensors")
        try:
            told = json.loads(note.read_text())
            names, images = (told["nets"], told["images"]) if isinstance(told, dict) else (told, None)
            if not all(isinstance(name, str) for name in names):
                raise ValueError("no names")
            known = ImageSpec.from_dict(images) if images else None
        except (ValueError, TypeError, KeyError) as error:
            what = f"{note} does not name the nets that {path.name} holds ({error})"
            raise CheckpointError(f"{what}: delete both to train them again") from None
        yield path, names, known


def _write_note(path: Path, names: Sequence[str], images: ImageSpec | None) -> None:
    told = {"nets": list(names), "images": asdict(images) if images else None}
    write_atomically(_note(path), json.dumps(told).encode())


def _note(path: Path) -> Path:
    return path.with_suffix(".json")


def _name(out: Path, member: Member) -> str:
    """A net by its folder, and by the settings that decide its result."""
    return f"{member.folder.relative_to(out).as_posix()} {_sum(_deciding(member.recipe))}"


def _is_done(out: Path, name: str) -> bool:
    return bool(name) and (out / name.rpartition(" ")[0] / "run.json").exists()


def _deciding(recipe: Recipe) -> dict[str, object]:
    return {name: value for name, value in flat(recipe.as_dict()).items() if name not in FREE}


def _sum(words: object) -> str:
    return f"{zlib.crc32(json.dumps(words, sort_keys=True).encode()):08x}"
