"""The grid parameters of an item (nets, methods, shares, …): values asked for, and the command that measures them."""

import json
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from equalbits._text import unknown_name
from equalbits.recipes import FREE, parse_values

#: Name of a grid parameter to its values.
Grid = Mapping[str, Sequence[Any]]


def split(settings: Mapping[str, Any], grid: Grid, *, whole: Grid, item: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate settings of the recipe from grid parameters; a setting named like a grid parameter is one.

    >>> split({"epochs": 2, "nets": "conv2,conv4"}, {}, whole={"nets": ("conv2", "conv4", "conv6")}, item="tab2")
    ({'epochs': 2}, {'nets': ['conv2', 'conv4']})
    """
    own = {name: value for name, value in settings.items() if name not in whole}
    asked = {**grid, **{name: _values(name, value) for name, value in settings.items() if name in whole}}
    parts = {}
    for name, values in asked.items():
        if name not in whole:
            raise unknown_name(f"grid parameter of {item}", name, whole)
        if not values:
            raise ValueError(f"{name} of {item} is empty: give at least one value, or leave it out for all")
        if not isinstance(whole[name][0], str):
            values = [_number(value, name, item, whole[name][0]) for value in values]
        elif "." not in name:  # names of the item; a recipe setting takes other values too
            for value in values:
                if value not in whole[name]:
                    raise unknown_name(f"{name} of {item}", str(value), whole[name])
        parts[name] = list(dict.fromkeys(values))
    return own, parts


def _values(name: str, value: Any) -> list[Any]:
    """Return a list as it is, and the comma-separated values of a string."""
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, str):
        return parse_values(name, value)
    return [value]


def _number(value: Any, name: str, item: str, like: float) -> float:
    """Return a number as the item writes it, since a directory is named after it: 0 as 0.0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} of {item} is {value!r}: it must be a number, as in {name}={like}")
    return int(value) if isinstance(like, int) and float(value).is_integer() else float(value)


def deciding_settings(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings asked for that change a result."""
    return {name: value for name, value in asked["settings"].items() if name not in FREE}


def ranges(numbers: Sequence[int]) -> str:
    """Format whole numbers, consecutive ones as a range.

    >>> ranges([0, 1, 2, 3, 4]), ranges([7]), ranges([0, 1, 5])
    ('0–4', '7', '0–1, 5')
    """
    ordered = sorted(numbers)
    breaks = [at for at, (one, other) in enumerate(pairwise(ordered), start=1) if other != one + 1]
    rows = [ordered[first:last] for first, last in pairwise([0, *breaks, len(ordered)])]
    return ", ".join(str(row[0]) if len(row) == 1 else f"{row[0]}–{row[-1]}" for row in rows)


def command(item: str, asked: Mapping[str, Any], *, data: str = "", out: str) -> str:
    """Return the command that measures an item with these options.

    >>> command("tab2", {"grid": {"nets": ["conv2", "conv4"]}, "seeds": [0, 1]}, out="runs/tab2")
    'equalbits reproduce tab2 --seeds 0-1 --set nets=conv2,conv4 --out runs/tab2'
    """
    words = ["equalbits", "reproduce", item, *(["--quick"] if asked.get("quick") else [])]
    if asked.get("seeds"):
        words += ["--seeds", ranges(asked["seeds"]).replace("–", "-").replace(", ", ",")]
    words += ["--data", data] if data else []
    for name, value in asked.get("settings", {}).items():
        words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    for name, values in asked.get("grid", {}).items():
        shown = ",".join(map(str, values))
        in_list = any("," in str(value) for value in values)
        words += ["--set", f"{name}={json.dumps(list(values)) if in_list else shown}"]
    return shlex.join([*words, "--out", out])
