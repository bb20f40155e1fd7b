"""Find the runs, sweeps, comparisons and paper items in a folder by the files that each command writes."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equalbits._text import one_line
from equalbits.recipes import RunRecord, read_history
from equalbits.training import EpochRecord, History

#: A JSON object as read from disk; it may come from another version or be damaged.
Facts = dict[str, Any]

_MAIN_FILES = {"item": "result.json", "compare": "compare.json", "sweep": "sweep.json"}


@dataclass(frozen=True)
class RunFiles:
    """Contents of one run folder; ``record`` is None until the run has ended.

    ``error`` says in one line what could not be read.
    """

    path: Path
    record: RunRecord | None = None
    epochs: tuple[EpochRecord, ...] = ()
    recipe: str = ""
    error: str = ""

    @property
    def finished(self) -> RunRecord | None:
        """The record, if the run has ended with a score."""
        return None if self.record is None or self.record.diverged else self.record


@dataclass(frozen=True)
class Entry:
    """One thing to report: a run, a sweep, a compare or an item.

    ``facts`` is its main file, empty while it is unfinished. ``error`` says in one line what could not be read.
    """

    kind: str
    path: Path
    facts: Facts
    runs: tuple[RunFiles, ...] = ()
    pictures: tuple[Path, ...] = ()
    claims: tuple[Facts, ...] = ()
    error: str = ""

    @property
    def scored_runs(self) -> list[RunFiles]:
        """All runs but those that tuned a setting: their scores are of held-out training images."""
        return [run for run in self.runs if "tuning" not in run.path.relative_to(self.path).parts]


def scan(folder: Path) -> list[Entry]:
    """Return all entries of a folder in the order of their names; the runs of an entry are no entries of their own."""
    if not folder.exists():
        raise ValueError(f"{folder} does not exist: give a folder written by train, sweep, compare or reproduce")
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file: give the folder of a run, a sweep, a comparison or an item")
    found = list(_walk(folder))
    if not found:
        raise ValueError(f"{folder} holds nothing to report: no run, sweep, comparison or item was found in it")
    return found


def _walk(folder: Path) -> Iterator[Entry]:
    """Yield the entry of the folder itself, then those of its subfolders that do not belong to it."""
    if not _is_readable(folder):
        yield Entry("run", folder, {}, error=f"no permission to read {folder}: change its access rights")
        return
    inner, own = _subfolders(folder), list[Path]()
    kind = next((kind for kind, name in _MAIN_FILES.items() if _is_file(folder / name)), "")
    if kind:
        own = [each for each in inner if _belongs(each, kind)]
        yield _read_entry(kind, folder, own)
    elif _is_run(folder):
        run = _read_run(folder)
        yield Entry("run", folder, {}, (run,), _pictures(folder), error=run.error)
    elif kind := _unfinished_kind(folder):
        own = [each for each in inner if _belongs(each, kind)]
        yield Entry(kind, folder, {}, _read_runs(own), _pictures(folder))
    for each in inner:
        if each not in own:
            yield from _walk(each)


def _unfinished_kind(folder: Path) -> str:
    """Return sweep or compare where finished runs lie in the folder without its main file; else "".

    Runs of a comparison name their method. It may have finished nothing but tuning runs.
    """
    finished = [path for path in folder.glob("*/seed*/run.json") if _has_seeds(path.parents[1])]
    runs = (_read_run(path.parent) for path in (*finished, *folder.glob("tuning/*/*/seed*/run.json")))
    return "compare" if any(run.record and run.record.method for run in runs) else "sweep" if finished else ""


def _belongs(folder: Path, kind: str) -> bool:
    """Return whether a subfolder holds runs of the entry, not something else that was put there."""
    if kind == "item":
        return folder.name in ("runs", "tuning", "weights", "activations")
    return _has_seeds(folder) or (kind == "compare" and folder.name == "tuning")


def _has_seeds(folder: Path) -> bool:
    """Return whether a folder holds the seeds of a case or a method, and is no run itself."""
    return not _is_run(folder) and any(_is_run(each) for each in folder.glob("seed*"))


def _subfolders(folder: Path) -> list[Path]:
    inner = (each for each in folder.iterdir() if each.is_dir() and not each.is_symlink())
    return sorted(each for each in inner if each.name != "tensorboard" and each.name[0] != ".")


def _is_file(path: Path) -> bool:
    """Return whether a path is a file of its own: the page must not show what a link leads to, maybe elsewhere."""
    return path.is_file() and not path.is_symlink()


def _is_readable(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK)


def _is_run(folder: Path) -> bool:
    return _is_readable(folder) and any(_is_file(folder / name) for name in ("run.json", "recipe.toml"))


def _read_entry(kind: str, folder: Path, own: Sequence[Path]) -> Entry:
    main, listed = folder / _MAIN_FILES[kind], folder / "claims.json"
    try:
        facts, claims = _read_json(main), _read_json(listed) if kind == "item" and _is_file(listed) else []
        if not isinstance(facts, dict):
            raise ValueError(f"{main} is not a JSON object")
        if not isinstance(claims, list) or not all(isinstance(claim, dict) for claim in claims):
            raise ValueError(f"{listed} is not a list of claims")
    except (OSError, ValueError) as error:
        return Entry(kind, folder, {}, error=one_line(error))
    return Entry(kind, folder, facts, _read_runs(own), _pictures(folder), tuple(claims))


def _read_runs(folders: Sequence[Path]) -> tuple[RunFiles, ...]:
    """Read the runs in these folders or anywhere below them."""
    found: list[RunFiles] = []
    for each in folders:
        found += [_read_run(each)] if _is_run(each) else _read_runs(_subfolders(each))
    return tuple(found)


def _read_run(folder: Path) -> RunFiles:
    try:
        record = RunRecord.read(folder / "run.json") if _is_file(folder / "run.json") else None
        recipe = (folder / "recipe.toml").read_text() if _is_file(folder / "recipe.toml") else ""
        history = read_history(folder / "history.jsonl") if _is_file(folder / "history.jsonl") else History(())
        return RunFiles(folder, record, history.epochs, recipe)
    except RecursionError:
        return RunFiles(folder, error=f"{folder / 'run.json'} is nested too deeply")
    except (OSError, ValueError) as error:
        return RunFiles(folder, error=one_line(error))


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error})") from None


def _pictures(folder: Path) -> tuple[Path, ...]:
    """Return a folder's pictures: the SVG, or the PNG of the same name where it is less than a quarter of the size."""
    found = []
    for stem in sorted({path.stem for path in folder.iterdir() if path.suffix in (".svg", ".png")}):
        svg, png = folder / f"{stem}.svg", folder / f"{stem}.png"
        smaller = _is_file(svg) and _is_file(png) and 4 * png.stat().st_size < svg.stat().st_size
        found.append(png if smaller or not _is_file(svg) else svg)
    return tuple(found)
