"""Tables of all settings, for ``equalbits list --settings`` and docs/settings.md."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from typing import Any

from equalbits._settings import toml_value
from equalbits.models import list_models, model_options
from equalbits.nn import input_quantizer_settings, list_input_quantizers, list_quantizers, quantizer_settings
from equalbits.recipes.recipe import Recipe

NONE = "–"
_OPTIONS = (
    "Options of each network with their defaults, set as ``--set model.options.NAME=VALUE``. ``in_channels`` and "
    "``image_size`` come from the data."
)
_COLON = "Settings of each quantizer with their defaults, given after a colon and separated by commas, such as ``{}``."


@dataclass(frozen=True)
class Table:
    """Rows under a heading; cells are plain text, with ``code`` between double backticks."""

    title: str
    about: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def settings_tables() -> list[Table]:
    """Return a table for each group of settings, then the options of each model and quantizer.

    >>> [table.title for table in settings_tables()][:6]
    ['top level', 'model', 'data', 'optimizer', 'schedule', 'distill']
    """
    options = {name: model_options(name) for name in list_models()}
    weights = {name: quantizer_settings(name) for name in list_quantizers()}
    inputs = {name: input_quantizer_settings(name) for name in list_input_quantizers()}
    return [
        *_groups(),
        _names("models", _OPTIONS, "options", options),
        _names("weight quantizers", _COLON.format("bihalf:p_pos=0.25"), "settings", weights),
        _names("input quantizers", _COLON.format("ede:t_max=5"), "settings", inputs),
    ]


def _groups() -> Iterator[Table]:
    """Yield the table of each group, described by the docstring of its class."""
    abouts: dict[str, str] = {}
    rows: dict[str, list[tuple[str, ...]]] = {}
    for kind in Recipe.classes():
        abouts.setdefault(kind.group, (kind.__doc__ or "").partition("\n\n")[0])
        for each in kind.declared.values():
            default = NONE if each.default in (MISSING, None) else f"``{_value(each.default)}``"
            rows.setdefault(kind.group, []).append((f"``{each.name}``", default, each.allowed, each.doc))
    for group, about in abouts.items():
        yield Table(group or "top level", about, ("setting", "default", "values", "meaning"), tuple(rows[group]))


def _names(title: str, about: str, head: str, known: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = []
    for name, accepted in known.items():
        shown = [f"``{k}={_value(v)}``" for k, v in accepted.items() if k not in ("in_channels", "image_size")]
        rows.append((f"``{name}``", ", ".join(shown) or NONE))
    return Table(title, about, ("name", head), tuple(rows))


def _value(value: Any) -> str:
    """Return a default as ``--set`` reads it: strings without quotes, except the empty one."""
    return value if isinstance(value, str) and value else toml_value(value)
