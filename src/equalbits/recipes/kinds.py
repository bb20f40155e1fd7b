"""One kind of job a folder: what a folder holds is told by the files each kind leaves, and no other writes into it."""

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# kind: (the files that all lie there where it is, how it is named)
_MARKS = (
    ("item", ("result.json",), "the item"),
    ("compare", ("compare.json",), "a comparison on"),
    ("sweep", ("sweep.json",), "a sweep of"),
    ("demo", ("demo.png", "report.html"), "the"),
    ("run", ("recipe.toml", "model.json"), "a run of"),  # a recipe.toml alone may be someone's own
    ("run", ("run.json",), "a run of"),
)


def check_kind(out: Path, kind: str) -> None:
    """Refuse a folder that holds another kind of job than ``kind``; one that merely holds folders is anyone's.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "sweep.json").write_text('{"recipe": "fashion-conv2"}')
    >>> check_kind(folder, "sweep")
    >>> check_kind(folder, "run")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: ... holds a sweep of fashion-conv2: give --out another folder
    """
    for held, files, words in _MARKS:
        if all((out / name).is_file() for name in files):
            if held != kind:
                raise ValueError(f"{out} holds {words} {_name(out / files[0])}: give --out another folder")
            return
    seed = next((path.parent for path in sorted(out.glob("seed*/run.json"))), None)
    if seed and kind == "run":
        raise ValueError(f"{out} holds runs of a sweep or a comparison, as {seed.name}: give --out another folder")


def check_none_in(folders: Iterable[Path]) -> None:
    """Refuse, before a sweep or a comparison puts its seeds into these folders, one that holds a job of its own."""
    for folder in folders:
        check_kind(folder, "seeds")


def _name(path: Path) -> str:
    """What the job was about, as its file says."""
    if path.suffix == ".png":
        return path.stem
    try:
        text = path.read_text()
        table: dict[str, Any] = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        recipe = table.get("recipe", table.get("name", table.get("item")))
        return str(recipe["name"] if isinstance(recipe, dict) else recipe or "something")
    except (OSError, ValueError, AttributeError, KeyError):
        return f"something ({path.name} cannot be read)"
