"""The grid parameters of an item (nets, methods, shares, …): values asked for, and values still missing."""

import json
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from equalbits._text import unknown_name
from equalbits.paper.published import row_of
from equalbits.recipes import parse_settings

#: Name of a grid parameter to its values.
Grid = Mapping[str, Sequence[Any]]


def split(settings: Mapping[str, Any], grid: Grid, *, whole: Grid, item: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate settings of the recipe from grid parameters; a setting named like a grid parameter is one.

    >>> split({"epochs": 2, "nets": "conv2,conv4"}, {}, whole={"nets": ("conv2", "conv4", "conv6")}, item="tab2")
    ({'epochs': 2}, {'nets': ['conv2', 'conv4']})
    """
    own = {name: value for name, value in settings.items() if name not in whole}
    parts = {name: list(values) for name, values in grid.items()}
    parts |= {name: _values(name, value) for name, value in settings.items() if name in whole}
    for name, values in parts.items():
        if name not in whole:
            raise unknown_name(f"grid parameter of {item}", name, whole)
        if not values:
            raise ValueError(f"{name} of {item} is empty: give at least one value, or leave it out for all")
        words = [value for value in whole[name] if isinstance(value, str)]
        for value in values if not words else ():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{name} of {item} is {value!r}: it must be a number, as in {name}={whole[name][0]}")
        values = values if words else [_normalized(value, whole[name]) for value in values]
        parts[name] = [value for place, value in enumerate(values) if value not in values[:place]]
        if "." not in name and words:  # a name of the item, not a recipe setting, which takes other values too
            for value in values:
                if value not in words:
                    raise unknown_name(f"{name} of {item}", str(value), words)
    return own, parts


def _values(name: str, value: Any) -> list[Any]:
    """Return a list as it is, and the comma-separated values of a string."""
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, str):
        return [parse_settings([f"{name}={part}"])[name] for part in value.split(",")]
    return [value]


def _normalized(value: float, like: Sequence[float]) -> float:
    """Return a number as the item writes it, since a directory is named after it.

    >>> _normalized(0, (0.0, 0.5)), _normalized(1, (0.0, 0.5)), _normalized(8.0, (0, 4))
    (0.0, 1.0, 8)
    """
    if value in like:
        return like[like.index(value)]
    if any(isinstance(one, float) for one in like):
        return float(value)
    return int(value) if float(value).is_integer() else value


def contains(more: Grid, less: Grid, whole: Grid) -> bool:
    """Return True if one choice of values contains all of another.

    A parameter that a choice does not name has all values; without those in ``whole`` the answer is False.

    >>> contains({}, {"nets": ["conv2"]}, {"nets": ("conv2", "conv4")})
    True
    >>> contains({}, {"nets": ["conv2"]}, {})
    False
    """
    few, many = {**whole, **less}, {**whole, **more}
    return all(name in few and name in many and set(few[name]) <= set(many[name]) for name in {**less, **more})


def missing(grid: Grid, whole: Grid) -> dict[str, list[Any]]:
    """Return the values that a measurement lacks of the whole item.

    A value is present if another of the same table row is, unless the item itself has several in that row.

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
    """Format whole numbers, consecutive ones as a range.

    >>> ranges([0, 1, 2, 3, 4]), ranges([7]), ranges([0, 1, 5])
    ('0–4', '7', '0–1, 5')
    """
    ordered = sorted(numbers)
    breaks = [at for at, (one, other) in enumerate(pairwise(ordered), start=1) if other != one + 1]
    rows = [ordered[first:last] for first, last in pairwise([0, *breaks, len(ordered)])]
    return ", ".join(str(row[0]) if len(row) == 1 else f"{row[0]}–{row[-1]}" for row in rows)


def seeds_option(seeds: Sequence[int]) -> str:
    """Format seeds as ``--seeds`` takes them.

    >>> seeds_option([0, 1, 2, 7])
    '0-2,7'
    """
    return ranges(seeds).replace("–", "-").replace(", ", ",")


def command(item: str, asked: Mapping[str, Any], *, data: str = "", out: str) -> str:
    """Return the command that measures an item with these options.

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
    """Join values by commas, or as a list where a value contains a comma."""
    shown = [str(value) for value in values]
    return json.dumps(list(values)) if any("," in each for each in shown) else ",".join(shown)
