"""``equalbits list``. Without torch names come from ``names.json``, written by ``python -m equalbits.cli.names``."""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from equalbits.cli.about import about

if TYPE_CHECKING:
    from equalbits.recipes import Table

_KINDS = ("recipes", "models", "methods", "compare-only", "inputs", "data")
_STORED = Path(__file__).with_name("names.json")

#: Of each kind, what is said about each name.
Names = dict[str, dict[str, str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``list`` takes."""
    parser.add_argument("kind", metavar="KIND", nargs="?", choices=_KINDS, help=f"one of {', '.join(_KINDS)}; else all")
    parser.add_argument("--settings", action="store_true", help="print every setting that --set takes, as a table")
    parser.add_argument("--match", metavar="PATTERN", default="*", help="only names like this, as in 'cifar10-*'")
    parser.add_argument("--show", metavar="RECIPE", help="print a recipe (a name or a TOML file) as TOML, to copy")
    parser.add_argument("--json", action="store_true", help="print as one JSON object")


def run(options: argparse.Namespace) -> None:
    """Print the names, one recipe, or all settings."""
    if options.settings:
        _print_settings(options)
        return
    if options.show:
        from equalbits.recipes import find_recipe  # here, so that --help need not wait for torch

        recipe = find_recipe(options.show)
        print(json.dumps(recipe.as_dict()) if options.json else recipe.to_toml(), end="\n" if options.json else "")
        return
    known = names()
    kinds = [options.kind] if options.kind else _KINDS
    found = {kind: {n: words for n, words in known[kind].items() if fnmatchcase(n, options.match)} for kind in kinds}
    if not any(found.values()):
        raise ValueError(f"--match {options.match}: no name is like this; equalbits list shows all")
    if options.json:
        print(json.dumps({kind: list(rows) for kind, rows in found.items()}))
        return
    width = max(len(name) for rows in found.values() for name in rows)
    for kind, rows in found.items():
        if not rows:
            continue
        print(f"{kind}:")
        for name, words in rows.items():
            print(f"  {name:<{width}}  {words}".rstrip())


def _print_settings(options: argparse.Namespace) -> None:
    """The tables of docs/settings.md, as wide as the terminal; elsewhere a row is a line."""
    if options.kind or options.show:
        raise ValueError("--settings stands alone: leave KIND and --show away, and choose with --match 'optimizer.*'")
    from equalbits.recipes import settings_tables

    tables = [_matching(table, options.match) for table in settings_tables()]
    found = [table for table in tables if table.rows]
    if not found:
        raise ValueError(f"--match {options.match}: no setting is like this; equalbits list --settings shows all")
    if options.json:
        print(json.dumps({table.title: _as_dicts(table) for table in found}))
    else:
        print("\n\n".join(map(_drawn, found)))


def _matching(table: "Table", pattern: str) -> "Table":
    """The rows whose names match, without the marks of code."""
    rows = (tuple(cell.replace("``", "") for cell in row) for row in table.rows)
    matching = tuple(row for row in rows if fnmatchcase(row[0], pattern))
    return replace(table, about=table.about.replace("``", ""), rows=matching)


def _as_dicts(table: "Table") -> list[dict[str, str]]:
    keys = [head.replace(" ", "_") for head in table.header]
    return [dict(zip(keys, row, strict=True)) for row in table.rows]


def _drawn(table: "Table") -> str:
    import rich.table
    from rich.console import Console
    from rich.text import Text

    drawn = rich.table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, head in enumerate(table.header):
        drawn.add_column(head, no_wrap=place == 0, overflow="fold")  # a name too long for a narrow terminal is not cut
    for row in table.rows:
        drawn.add_row(*map(Text, row))  # not as markup: a list has brackets, too
    console = Console(color_system=None, width=None if sys.stdout.isatty() else 10_000)
    with console.capture() as lines:
        console.print(Text(f"{table.title}: {table.about}"), drawn, sep="\n")
    return "\n".join(line.rstrip() for line in lines.get().splitlines())


def names() -> Names:
    """All names there are: asked of those who hold them, or where torch is not installed, as they were stored."""
    try:
        return live_names()
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
    stored: Names = json.loads(_STORED.read_text(encoding="utf-8"))
    return stored


def live_names() -> Names:
    """All names there are; needs torch."""
    from equalbits.data import NAMES
    from equalbits.models import list_models, model_builder
    from equalbits.nn import input_quantizer_by_name, list_input_quantizers, list_quantizers, quantizer_by_name
    from equalbits.recipes import get_recipe, list_methods, list_recipes

    methods = list_quantizers()
    return {
        "recipes": {name: get_recipe(name).about for name in list_recipes()},
        "compare-only": {name: about("compare-only", name) for name in list_methods() if name not in methods},
        "models": {name: about("models", name, model_builder(name)) for name in list_models()},
        "methods": {name: about("methods", name, _made(quantizer_by_name, name)) for name in methods},
        "inputs": {
            name: about("inputs", name, _made(input_quantizer_by_name, name)) for name in list_input_quantizers()
        },
        "data": {name: about("data", name) for name in NAMES},
    }


def _made(make: Callable[[str], object], name: str) -> object:
    """What a name makes; nothing where it makes nothing without settings."""
    try:
        return make(name)
    except ValueError:
        return None


if __name__ == "__main__":
    _STORED.write_text(json.dumps(live_names(), indent=1) + "\n", encoding="utf-8")
