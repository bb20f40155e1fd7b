"""What a folder holds: runs, sweeps, comparisons and items of the paper, found by the files that each leaves."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equalbits.training import EpochRecord

_SKIPPED = {"tensorboard"}
_MARKS = {"item": "result.json", "compare": "compare.json", "sweep": "sweep.json"}  # kind: the file it leaves


@dataclass(frozen=True)
class Run:
    """One run: its facts (empty where it has not ended), its epochs, its recipe as it lies there.

    ``diverged`` says why it never will end, ``trouble`` in one line what could not be read.
    """

    path: Path
    facts: dict[str, Any]
    epochs: tuple[EpochRecord, ...] = ()
    recipe: str = ""
    diverged: str = ""
    trouble: str = ""


@dataclass(frozen=True)
class Found:
    """One thing: its ``kind`` (run, sweep, compare, item, pictures), what its main file says, its runs and pictures.

    ``trouble`` says in one line what could not be read.
    """

    kind: str
    path: Path
    facts: dict[str, Any]
    runs: tuple[Run, ...] = ()
    pictures: tuple[Path, ...] = ()
    claims: tuple[dict[str, Any], ...] = ()
    trouble: str = ""

    @property
    def judged(self) -> list[Run]:
        """The runs without those that only chose a setting: they were scored on training images held out."""
        return [run for run in self.runs if "tuning" not in run.path.relative_to(self.path).parts]


def contents(folder: Path) -> list[Found]:
    """Everything in a folder, in the order of its names; what belongs to a thing is not counted again."""
    if not folder.exists():
        raise ValueError(f"{folder} is not there: name a folder that train, sweep, compare or reproduce made")
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file: name the folder of a run, a sweep, a comparison or an item")
    found = list(_walk(folder))
    if not found:
        raise ValueError(f"{folder} holds nothing to report on: no run, sweep, comparison or item lies in it")
    return found


def _walk(folder: Path) -> Iterator[Found]:
    """What a folder holds itself, then what lies in it beside that."""
    if not _may_be_read(folder):
        yield Found("run", folder, {}, trouble=f"{folder} may not be read by you: change its rights")
        return
    inner, mine = _folders(folder), list[Path]()
    kind, name = next(((kind, name) for kind, name in _MARKS.items() if (folder / name).is_file()), ("", ""))
    if kind:
        mine = [each for each in inner if _belongs(each, kind)]
        yield _thing(kind, folder, name, mine)
    elif _is_run(folder):
        run = _run(folder)
        yield Found("run", folder, run.facts, (run,), _pictures(folder), trouble=run.trouble)
    elif kind := _unfinished(folder):
        mine = [each for each in inner if _belongs(each, kind)]
        yield Found(kind, folder, {}, _runs(mine), _pictures(folder))
    elif (pictures := _pictures(folder)) and any(_is_run(each) for each in inner):  # runs of one picture, as the demo's
        mine = [each for each in inner if _is_run(each)]
        yield Found("pictures", folder, {}, _runs(mine), pictures)
    for each in inner:
        if each not in mine:
            yield from _walk(each)


def _unfinished(folder: Path) -> str:
    """The kind of what has not ended, though runs of it have: a sweep, or a comparison, whose runs name a method.

    A comparison may have tuned only, so far.
    """
    ended = [path for path in folder.glob("*/seed*/run.json") if _has_seeds(path.parents[1])]
    compared = (_run(path.parent) for path in (*ended, *folder.glob("tuning/*/*/seed*/run.json")))
    return "compare" if any("method" in run.facts for run in compared) else "sweep" if ended else ""


def _belongs(folder: Path, kind: str) -> bool:
    """Whether a folder in a thing's holds runs of that thing, not others that were put there."""
    if kind == "item":
        return folder.name in ("runs", "tuning", "weights", "activations")
    return _has_seeds(folder) or (kind == "compare" and folder.name == "tuning")


def _has_seeds(folder: Path) -> bool:
    """Whether it holds the seeds of a case or a method, and is no run itself."""
    return not _is_run(folder) and any(_is_run(each) for each in folder.glob("seed*"))


def _folders(folder: Path) -> list[Path]:
    return sorted(
        each
        for each in folder.iterdir()
        if each.is_dir() and not each.is_symlink() and each.name not in _SKIPPED and not each.name.startswith(".")
    )


def _may_be_read(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK)


def _is_run(folder: Path) -> bool:
    return _may_be_read(folder) and any(
        (folder / name).is_file() for name in ("run.json", "recipe.toml", "diverged.json")
    )


def _thing(kind: str, folder: Path, name: str, mine: Sequence[Path]) -> Found:
    try:
        facts = _object(folder / name)
        claims = _claims(folder / "claims.json") if kind == "item" else []
        return Found(kind, folder, facts, _runs(mine), _pictures(folder), tuple(claims))
    except (OSError, ValueError) as error:
        return Found(kind, folder, {}, trouble=_one_line(error))


def _claims(path: Path) -> list[dict[str, Any]]:
    found = json.loads(path.read_text()) if path.is_file() else []
    if not isinstance(found, list) or not all(isinstance(claim, dict) for claim in found):
        raise ValueError(f"{path} holds no list of claims")
    return found


def _runs(folders: Sequence[Path]) -> tuple[Run, ...]:
    """The runs in these folders, or somewhere below."""
    found: list[Run] = []
    for each in folders:
        found += [_run(each)] if _is_run(each) else _runs(_folders(each))
    return tuple(found)


def _run(folder: Path) -> Run:
    try:
        facts, gone = (
            _object(folder / name) if (folder / name).is_file() else {} for name in ("run.json", "diverged.json")
        )
        recipe = (folder / "recipe.toml").read_text() if (folder / "recipe.toml").is_file() else ""
        return Run(folder, facts, tuple(_epochs(folder / "history.jsonl")), recipe, str(gone.get("diverged", "")))
    except (OSError, ValueError) as error:
        return Run(folder, {}, trouble=_one_line(error))


def _epochs(path: Path) -> Iterator[EpochRecord]:
    lines = path.read_text().splitlines() if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        try:
            yield EpochRecord.from_dict(json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError):
            if number < len(lines):  # the last may be cut off by a kill; others may not
                raise ValueError(f"{path}, line {number} is not an epoch's record") from None


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no JSON object")
    return found


def _pictures(folder: Path) -> tuple[Path, ...]:
    """A folder's pictures, SVG where it is not far larger than the PNG of the same name."""
    found = []
    for stem in sorted({path.stem for path in folder.iterdir() if path.suffix in (".svg", ".png")}):
        svg, png = folder / f"{stem}.svg", folder / f"{stem}.png"
        both = svg.is_file() and png.is_file()
        found.append(png if not svg.is_file() or (both and svg.stat().st_size > 4 * png.stat().st_size) else svg)
    return tuple(found)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
