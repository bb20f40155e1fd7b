"""``equalbits list``."""

import argparse
import json
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import equalbits as eb
from equalbits._text import format_table, terminal_width
from equalbits.cli.arguments import add_json
from equalbits.cli.descriptions import DESCRIPTIONS

_KINDS = ("recipes", "models", "methods", "compare-only", "inputs", "data", "zoo")


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
        recipe = eb.recipes.find_recipe(options.show)
        print(json.dumps(recipe.as_dict()) if options.json else recipe.to_toml(), end="\n" if options.json else "")
    else:
        _print_names(options)


def _print_names(options: argparse.Namespace) -> None:

    known = {} if options.kind == "zoo" else descriptions()
    known["zoo"] = {f"zoo:{name}": "" for name in eb.runtime.list_zoo()}
    kinds = [options.kind] if options.kind else _KINDS
    found = {kind: {n: line for n, line in known[kind].items() if fnmatchcase(n, options.match)} for kind in kinds}
    if not any(found.values()):
        raise ValueError(f"--match {options.match}: no name matches; equalbits list shows all")
    if options.json:
        listed: dict[str, object] = {kind: [*names] for kind, names in found.items() if kind != "zoo"}
        zoo = {name: eb.runtime.zoo_card(name.removeprefix("zoo:")) for name in found.get("zoo", ())}
        print(json.dumps(listed | ({"zoo": zoo} if "zoo" in found else {})))
        return
    width = max(len(name) for names in found.values() for name in names)
    for kind, names in found.items():
        if names:
            print(f"{kind}:")
            print("\n".join(_zoo_table(list(names)) if kind == "zoo" else _wrapped(names, width)))


def _wrapped(names: Mapping[str, str], width: int) -> list[str]:
    """Return names with descriptions, which a terminal wraps beside the names."""
    indent, most = " " * (width + 4), terminal_width() or sys.maxsize
    most = max(most, width + 30)
    lines = (
        textwrap.wrap(f"  {name:<{width}}  {line}", most, subsequent_indent=indent) for name, line in names.items()
    )
    return [line for each in lines for line in each]


def _zoo_table(names: Sequence[str]) -> list[str]:
    """Return the lines of a table of trained networks of the package; needs no torch."""
    rows = []
    for name in names:
        card = eb.runtime.zoo_card(name.removeprefix("zoo:"))
        test, ms = card["test"], card["milliseconds"]
        sizes = (f"{test['accuracy']:.2f}", card["data"], f"{card['bytes']:,}", f"{ms['median']:.3f}")
        rows.append((f"  {name}", *sizes, "yes" if eb.runtime.has_weights(name) else "no"))
    header = ("  name", "accuracy, %", "data", "bytes", "ms", "to fine-tune")
    cpus = " and ".join(
        sorted({str(eb.runtime.zoo_card(name.removeprefix("zoo:"))["milliseconds"]["cpu"]) for name in names})
    )
    note = f"accuracy of the packed file on all test images; median ms of one image on one core of: {cpus}"
    lines = format_table(header, rows, left=(0, 2)).splitlines()
    return [*lines, *textwrap.wrap(note, terminal_width() or sys.maxsize, subsequent_indent="  ", initial_indent="  ")]


def descriptions() -> dict[str, dict[str, str]]:
    """Return the description of every name, by kind."""
    methods = eb.nn.list_quantizers()
    found = {"recipes": {name: eb.recipes.get_recipe(name).about for name in eb.recipes.list_recipes()}}
    for kind, names, create in (
        ("compare-only", [name for name in eb.recipes.list_methods() if name not in methods], None),
        ("models", eb.models.list_models(), eb.models.model_builder),
        ("methods", methods, eb.nn.quantizer_by_name),
        ("inputs", eb.nn.list_input_quantizers(), eb.nn.input_quantizer_by_name),
        ("data", eb.data.NAMES, None),
    ):
        found[kind] = {name: DESCRIPTIONS[kind].get(name) or _first_line(create, name) for name in names}
    return found


def _first_line(create: Callable[[str], object] | None, name: str) -> str:
    """Return the first docstring line of a registered model or quantizer; empty if it has required arguments."""
    try:
        created = create(name) if create else None
    except ValueError:
        return ""
    return (getattr(created, "__doc__", None) or "").strip().partition("\n")[0].replace("``", "").rstrip(".")


def _print_settings(options: argparse.Namespace) -> None:
    """Print the tables of docs/settings.md, fitted to a terminal; elsewhere one line per row."""
    if options.kind or options.show:
        raise ValueError("--settings cannot be combined with KIND or --show; select with --match 'optimizer.*'")

    tables = []
    for table in eb.recipes.settings_tables():
        rows = (tuple(cell.replace("``", "") for cell in row) for row in table.rows)
        if matching := tuple(row for row in rows if fnmatchcase(row[0], options.match)):
            tables.append(replace(table, about=table.about.replace("``", ""), rows=matching))
    if not tables:
        raise ValueError(f"--match {options.match}: no setting matches; equalbits list --settings shows all")
    if options.json:
        as_dicts = {table.title: [dict(zip(table.header, row, strict=True)) for row in table.rows] for table in tables}
        print(json.dumps(as_dicts))
    else:
        print("\n\n".join(map(_render, tables)))


def _render(table: "eb.recipes.Table") -> str:
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
