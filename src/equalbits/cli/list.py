"""``equalbits list``."""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from equalbits.cli.arguments import add_json
from equalbits.cli.descriptions import describe

if TYPE_CHECKING:
    from equalbits.recipes import Table

_KINDS = ("recipes", "models", "methods", "compare-only", "inputs", "data")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``list``."""
    parser.add_argument(
        "kind", metavar="KIND", nargs="?", choices=_KINDS, help=f"one of {', '.join(_KINDS)} (default: all)"
    )
    parser.add_argument("--settings", action="store_true", help="print a table of all settings that --set accepts")
    parser.add_argument("--match", metavar="PATTERN", default="*", help="only matching names, such as 'cifar10-*'")
    parser.add_argument("--show", metavar="RECIPE", help="print a recipe, given by name or TOML file, as TOML")
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Print names with descriptions, one recipe, or all settings."""
    if options.settings:
        _print_settings(options)
    elif options.show:
        from equalbits.recipes import find_recipe  # here: --help must not import torch

        recipe = find_recipe(options.show)
        print(json.dumps(recipe.as_dict()) if options.json else recipe.to_toml(), end="\n" if options.json else "")
    else:
        _print_names(options)


def _print_names(options: argparse.Namespace) -> None:
    known = descriptions()
    kinds = [options.kind] if options.kind else _KINDS
    found = {kind: {n: line for n, line in known[kind].items() if fnmatchcase(n, options.match)} for kind in kinds}
    if not any(found.values()):
        raise ValueError(f"--match {options.match}: no name matches; equalbits list shows all")
    if options.json:
        print(json.dumps({kind: [*names] for kind, names in found.items()}))
        return
    width = max(len(name) for names in found.values() for name in names)
    for kind, names in found.items():
        if names:
            print(f"{kind}:")
            for name, line in names.items():
                print(f"  {name:<{width}}  {line}".rstrip())


def descriptions() -> dict[str, dict[str, str]]:
    """Return the description of every name, by kind."""
    from equalbits.data import NAMES
    from equalbits.models import list_models, model_builder
    from equalbits.nn import input_quantizer_by_name, list_input_quantizers, list_quantizers, quantizer_by_name
    from equalbits.recipes import get_recipe, list_methods, list_recipes

    methods = list_quantizers()
    return {
        "recipes": {name: get_recipe(name).about for name in list_recipes()},
        "compare-only": {name: describe("compare-only", name) for name in list_methods() if name not in methods},
        "models": {name: describe("models", name, model_builder(name)) for name in list_models()},
        "methods": {name: describe("methods", name, _create(quantizer_by_name, name)) for name in methods},
        "inputs": {
            name: describe("inputs", name, _create(input_quantizer_by_name, name)) for name in list_input_quantizers()
        },
        "data": {name: describe("data", name) for name in NAMES},
    }


def _create(create: Callable[[str], object], name: str) -> object:
    """Create the quantizer of this name; None if it has required arguments."""
    try:
        return create(name)
    except ValueError:
        return None


def _print_settings(options: argparse.Namespace) -> None:
    """Print the tables of docs/settings.md, fitted to a terminal; elsewhere one line per row."""
    if options.kind or options.show:
        raise ValueError("--settings cannot be combined with KIND or --show; select with --match 'optimizer.*'")
    from equalbits.recipes import settings_tables

    tables = [table for table in (_matching(table, options.match) for table in settings_tables()) if table.rows]
    if not tables:
        raise ValueError(f"--match {options.match}: no setting matches; equalbits list --settings shows all")
    if options.json:
        print(json.dumps({table.title: _as_dicts(table) for table in tables}))
    else:
        print("\n\n".join(map(_render, tables)))


def _matching(table: "Table", pattern: str) -> "Table":
    """Return the rows with matching names, without markup."""
    rows = (tuple(cell.replace("``", "") for cell in row) for row in table.rows)
    matching = tuple(row for row in rows if fnmatchcase(row[0], pattern))
    return replace(table, about=table.about.replace("``", ""), rows=matching)


def _as_dicts(table: "Table") -> list[dict[str, str]]:
    keys = [head.replace(" ", "_") for head in table.header]
    return [dict(zip(keys, row, strict=True)) for row in table.rows]


def _render(table: "Table") -> str:
    import rich.table
    from rich.console import Console
    from rich.text import Text

    rendered = rich.table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column, head in enumerate(table.header):
        rendered.add_column(head, no_wrap=column == 0, overflow="fold")  # long names fold instead of being cut
    for row in table.rows:
        rendered.add_row(*map(Text, row))  # as Text, since rich would read brackets as markup
    console = Console(color_system=None, width=None if sys.stdout.isatty() else 10_000)
    with console.capture() as lines:
        console.print(Text(f"{table.title}: {table.about}"), rendered, sep="\n")
    return "\n".join(line.rstrip() for line in lines.get().splitlines())
