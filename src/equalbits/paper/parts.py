"""The parts an item goes through (nets, methods, shares, …): which were asked for, and which a measurement lacks."""

import json
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from equalbits._text import unknown_name
from equalbits.paper.published import row_of
from equalbits.recipes import parse_settings

#: Name of a part to its values.
Grid = Mapping[str, Sequence[Any]]


def split(settings: Mapping[str, Any], grid: Grid, *, whole: Grid, item: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the recipe, and the values to go through; a setting that names a part of the item is the latter.

    >>> split({"epochs": 2, "nets": "conv2,conv4"}, {}, whole={"nets": ("conv2", "conv4", "conv6")}, item="tab2")
    ({'epochs': 2}, {'nets': ['conv2', 'conv4']})
    """
    own = {name: value for name, value in settings.items() if name not in whole}
    parts = {name: list(values) for name, values in grid.items()}
    parts |= {name: _values(name, value) for name, value in settings.items() if name in whole}
    for name, values in parts.items():
        if name not in whole:
            raise unknown_name(f"part of {item}", name, whole)
        if not values:
            raise ValueError(f"{name} of {item} is empty: give a value or more, or leave it away for all")
        words = [value for value in whole[name] if isinstance(value, str)]
        for value in values if not words else ():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{name} of {item} is {value!r}: it must be a number, as in {name}={whole[name][0]}")
        values = values if words else [_spelt(value, whole[name]) for value in values]
        parts[name] = [value for place, value in enumerate(values) if value not in values[:place]]
        if "." not in name and words:  # a name of the item's own, not a recipe's setting that takes other values too
            for value in values:
                if value not in words:
                    raise unknown_name(f"{name} of {item}", str(value), words)
    return own, parts


def _values(name: str, value: Any) -> list[Any]:
    """A list as it is; words between commas one by one."""
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, str):
        return [parse_settings([f"{name}={part}"])[name] for part in value.split(",")]
    return [value]


def _spelt(value: float, like: Sequence[float]) -> float:
    """A number as the item writes it, for a run's folder is named by it.

    >>> _spelt(0, (0.0, 0.5)), _spelt(1, (0.0, 0.5)), _spelt(8.0, (0, 4))
    (0.0, 1.0, 8)
    """
    if value in like:
        return like[like.index(value)]
    if any(isinstance(one, float) for one in like):
        return float(value)
    return int(value) if float(value).is_integer() else value


def holds(more: Grid, less: Grid, whole: Grid) -> bool:
    """Whether one choice of parts holds all of another.

    A part that one does not name is whole; where ``whole`` does not say what that is, none holds the other.

    >>> holds({}, {"nets": ["conv2"]}, {"nets": ("conv2", "conv4")})
    True
    >>> holds({}, {"nets": ["conv2"]}, {})
    False
    """
    few, many = {**whole, **less}, {**whole, **more}
    return all(name in few and name in many and set(few[name]) <= set(many[name]) for name in {**less, **more})


def missing(grid: Grid, whole: Grid) -> dict[str, list[Any]]:
    """What a measurement lacks of the whole item, part by part.

    One that stands in the same row of a table is there, unless the item itself has several to a row.

    >>> missing({"nets": ["conv2"]}, {"nets": ("conv2", "conv4")})
    {'nets': ['conv4']}
    """
    found = {}
    for name, values in whole.items():
        rows = [row_of(value) for value in values]
        there = {each for value in grid.get(name, values) for each in (value, row_of(value))}
        if lacking := [
            value
            for value, row in zip(values, rows, strict=True)
            if value not in there and (row not in there or rows.count(row) > 1)
        ]:
            found[name] = lacking
    return found


def ranges(numbers: Sequence[int]) -> str:
    """Whole numbers, those in a row by their first and last.

    >>> ranges([0, 1, 2, 3, 4]), ranges([7]), ranges([0, 1, 5])
    ('0–4', '7', '0–1, 5')
    """
    ordered = sorted(numbers)
    breaks = [at for at, (one, other) in enumerate(pairwise(ordered), start=1) if other != one + 1]
    rows = [ordered[first:last] for first, last in pairwise([0, *breaks, len(ordered)])]
    return ", ".join(str(row[0]) if len(row) == 1 else f"{row[0]}–{row[-1]}" for row in rows)


def seeds_option(seeds: Sequence[int]) -> str:
    """Seeds as ``--seeds`` takes them.

    >>> seeds_option([0, 1, 2, 7])
    '0-2,7'
    """
    return ranges(seeds).replace("–", "-").replace(", ", ",")


def command(item: str, asked: Mapping[str, Any], *, data: str = "", out: str) -> str:
    """The command that measures an item as it was asked for.

    >>> command("tab2", {"grid": {"nets": ["conv2", "conv4"]}, "seeds": [0, 1]}, out="runs/tab2")
    'equalbits reproduce tab2 --seeds 0-1 --set nets=conv2,conv4 --out runs/tab2'
    """
    words = ["equalbits", "reproduce", item, *(["--quick"] if asked.get("quick") else [])]
    words += ["--seeds", seeds_option(asked["seeds"])] if asked.get("seeds") else []
    words += ["--data", data] if data else []
    for name, value in asked.get("settings", {}).items():
        words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    for name, values in asked.get("grid", {}).items():
        words += ["--set", f"{name}={_joined(values)}"]
    return shlex.join([*words, "--out", out])


def _joined(values: Sequence[Any]) -> str:
    """Values between commas; as a list where one has a comma of its own."""
    shown = [str(value) for value in values]
    return json.dumps(list(values)) if any("," in each for each in shown) else ",".join(shown)
