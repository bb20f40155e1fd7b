"""Tables of all settings of a recipe, generated from the settings classes and their docstrings."""

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin, get_type_hints

from equalbits.models import list_models, model_options
from equalbits.nn import input_quantizer_settings, list_input_quantizers, list_quantizers, quantizer_settings
from equalbits.recipes.recipe import WORDS, Recipe, toml_value
from equalbits.training import OneOf, rules_of

NONE = "–"
_SETTING = ("setting", "default", "values", "meaning")
_OPTIONS = (
    "Options of each network with their defaults, set as ``--set model.options.NAME=VALUE``. ``in_channels`` and "
    "``image_size`` come from the data."
)
_COLON = "Settings of each quantizer with their defaults, given after a colon and separated by commas, such as ``{}``."


@dataclass(frozen=True)
class Table:
    """Table with a title; cells are text with code in double backticks."""

    title: str
    about: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def settings_tables() -> list[Table]:
    """Return a table for each group of settings, then tables of the options of models and quantizers.

    >>> [table.title for table in settings_tables()][:6]
    ['top level', 'model', 'data', 'optimizer', 'schedule', 'distill']
    """
    groups: dict[str, list[tuple[str, ...]]] = {}
    kinds: dict[str, type] = {}
    for group, kind in _groups(Recipe):
        kinds.setdefault(group, kind)
        groups.setdefault(group, []).extend(_rows(kind, group))
    tables = [
        Table(group or "top level", _first(kinds[group]), _SETTING, tuple(rows)) for group, rows in groups.items()
    ]
    return [*tables, *_named()]


def _groups(kind: type, group: str = "") -> Iterator[tuple[str, type]]:
    """Yield every settings class with its group; those of :class:`TrainConfig` are at the top level."""
    yield group, kind
    for name, hint in get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            yield from _groups(hint, "" if name == "train" else name)  # type: ignore[arg-type]


def _rows(kind: type, group: str) -> Iterator[tuple[str, ...]]:
    hints, meanings = get_type_hints(kind), _meanings(kind)
    prefix = f"{group}." if group else ""
    for field in dataclasses.fields(kind):
        if not dataclasses.is_dataclass(hints[field.name]):
            name = f"{prefix}{field.name}" + (".NAME" if get_origin(hints[field.name]) is dict else "")
            default = NONE if field.default in (dataclasses.MISSING, None) else f"``{_value(field.default)}``"
            values = _values(hints[field.name], rules_of(kind).get(field.name, ""))
            yield f"``{name}``", default, values, meanings.get(field.name, "")


def _meanings(kind: type) -> dict[str, str]:
    """Return the meaning of each field from the list in the class's docstring."""
    items = re.findall(r"^- ``(\w+)``: (.+(?:\n  .+)*)", inspect.getdoc(kind) or "", flags=re.MULTILINE)
    return {name: " ".join(meaning.split()) for name, meaning in items}


def _first(kind: type) -> str:
    """Return the first paragraph of the class's docstring."""
    return " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())


def _values(hint: Any, rule: object) -> str:
    """Describe the type and the constraint."""
    if isinstance(rule, str) and rule:
        return rule
    if isinstance(rule, OneOf):
        return ", ".join(f"``{choice}``" for choice in rule.choices)
    if get_origin(hint) is tuple:
        inner, *others = get_args(hint)
        count = "" if others == [...] else f"{1 + len(others)} "
        return f"a list of {count}{WORDS[inner].removeprefix('an ').removeprefix('a ')}s" + (
            f", each {rule}" if rule else ""
        )
    words = WORDS[float] if hint == float | None else WORDS[hint]
    return f"{words}, {rule}" if rule else words


def _named() -> list[Table]:
    """Return the tables of the options of models and quantizers."""
    models = {name: model_options(name) for name in list_models()}
    options = {
        name: {option: value for option, value in taken.items() if option not in ("in_channels", "image_size")}
        for name, taken in models.items()
    }
    weights = {name: quantizer_settings(name) for name in list_quantizers()}
    inputs = {name: input_quantizer_settings(name) for name in list_input_quantizers()}
    return [
        _names("models", _OPTIONS, "options", options),
        _names("weight quantizers", _COLON.format("bihalf:p_pos=0.25"), "settings", weights),
        _names("input quantizers", _COLON.format("ede:t_max=5"), "settings", inputs),
    ]


def _names(title: str, about: str, head: str, known: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = (
        (f"``{name}``", ", ".join(f"``{setting}={_value(value)}``" for setting, value in taken.items()) or NONE)
        for name, taken in known.items()
    )
    return Table(title, about, ("name", head), tuple(rows))


def _value(value: Any) -> str:
    """Return a default as it is written: strings without quotes, except the empty one."""
    return value if isinstance(value, str) and value else toml_value(value)
