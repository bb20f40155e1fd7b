"""Settings as text: dotted names, ``name=value`` words, and TOML."""

import json
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from equalbits._text import bounded


def flatten(table: Mapping[str, object], prefix: str = "", *, whole: Collection[str] = ()) -> dict[str, Any]:
    """Return nested tables as one table of dotted names, with lists for tuples as in JSON.

    Tables named in ``whole`` and the values in them are kept as they are.

    >>> flatten({"seed": 0, "optimizer": {"betas": (0.9, 0.999)}})
    {'seed': 0, 'optimizer.betas': [0.9, 0.999]}
    """
    found: dict[str, Any] = {}
    for name, value in table.items():
        path = prefix + name
        if isinstance(value, Mapping) and path not in whole and path.rpartition(".")[0] not in whole:
            found |= flatten(value, f"{path}.", whole=whole)
        else:
            found[path] = list(value) if isinstance(value, tuple) else value
    return found


def parse_settings(assignments: Iterable[str]) -> dict[str, Any]:
    """Parse ``name=value`` words; a value is TOML, a number such as ``.5`` or ``1.``, or else a string.

    >>> parse_settings(["optimizer.lr=.05", "model.name=conv4", "schedule.milestones=[10, 20]"])
    {'optimizer.lr': 0.05, 'model.name': 'conv4', 'schedule.milestones': [10, 20]}
    """
    settings: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = (part.strip() for part in assignment.partition("="))
        if not equals or not name:
            raise ValueError(f"{bounded(assignment, 80)!r} is not a setting: write name=value, as in optimizer.lr=0.05")
        try:
            settings[name] = tomllib.loads(f"value = {text}")["value"]
        except RecursionError:
            raise ValueError(f"{name}={text[:40]}… is nested too deeply: give a value of a few brackets") from None
        except tomllib.TOMLDecodeError:
            is_number = re.fullmatch(r"[+-]?(\d+\.|\.\d+)(e[+-]?\d+)?", text, re.IGNORECASE)
            settings[name] = float(text) if is_number else text
    return settings


def split_values(text: str) -> list[str]:
    """Split at commas, except inside brackets and between the settings of one method.

    >>> split_values("sign,irnet:t_min=0.1,t_max=5")
    ['sign', 'irnet:t_min=0.1,t_max=5']
    >>> split_values("[10, 20],[30]")
    ['[10, 20]', '[30]']
    """
    found: list[str] = []
    for word in (part.strip() for part in re.split(r",(?![^\[]*\])", text)):
        if found and ":" in found[-1] and re.match(r"\w+\s*=", word):
            found[-1] += f",{word}"  # the second setting of one method
        else:
            found.append(word)
    return found


def parse_values(name: str, text: str) -> list[Any]:
    """Parse values of one setting, separated by commas.

    >>> parse_values("optimizer.lr", ".1, 1")
    [0.1, 1]
    """
    return [parse_settings([f"{name}={value}"])[name] for value in split_values(text)]


def toml_value(value: object) -> str:
    """Return a value as TOML writes it and ``--set`` reads it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON does not escape DEL, TOML must
    return repr(value)


def toml_text(table: Mapping[str, object], path: str = "") -> str:
    """Return a table and the tables in it as TOML."""
    plain = {name: value for name, value in table.items() if not isinstance(value, dict) and value is not None}
    lines = [f"{name} = {toml_value(value)}" for name, value in plain.items()]
    for name, value in table.items():
        if isinstance(value, dict) and (value or path.count(".") > 1):  # inside a setting an empty table is a value
            lines += ["", f"[{path}{name}]", toml_text(value, f"{path}{name}.").rstrip()]
    return "\n".join(lines) + "\n"
