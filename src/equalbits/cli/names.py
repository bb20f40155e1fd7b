"""``equalbits list``. Without torch names come from ``names.json``, written by ``python -m equalbits.cli.names``."""

import argparse
import json
from fnmatch import fnmatchcase
from pathlib import Path

_KINDS = ("recipes", "models", "methods", "compare-only", "inputs", "data")
_STORED = Path(__file__).with_name("names.json")

#: Of each kind, what is said about each name.
Names = dict[str, dict[str, str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``list`` takes."""
    parser.add_argument("kind", metavar="KIND", nargs="?", choices=_KINDS, help=f"one of {', '.join(_KINDS)}; else all")
    parser.add_argument("--match", metavar="PATTERN", default="*", help="only names like this, as in 'cifar10-*'")
    parser.add_argument("--show", metavar="RECIPE", help="print a recipe (a name or a TOML file) as TOML, to copy")
    parser.add_argument("--json", action="store_true", help="print as one JSON object")


def run(options: argparse.Namespace) -> None:
    """Print the names, or one recipe."""
    if options.show:
        from equalbits.recipes import find_recipe  # here, so that --help need not wait for torch

        recipe = find_recipe(options.show)
        print(json.dumps(recipe.as_dict()) if options.json else recipe.to_toml(), end="\n" if options.json else "")
        return
    known = names()
    kinds = [options.kind] if options.kind else _KINDS
    found = {kind: {n: about for n, about in known[kind].items() if fnmatchcase(n, options.match)} for kind in kinds}
    if not any(found.values()):
        raise ValueError(f"--match {options.match}: no name is like this; equalbits list shows all")
    if options.json:
        print(json.dumps({kind: list(rows) for kind, rows in found.items()}))
        return
    for kind, rows in found.items():
        if not rows:
            continue
        print(f"{kind}:")
        for name, about in rows.items():
            print(f"  {name:<26}  {about}".rstrip())


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
    from equalbits.data.datasets import NAMES
    from equalbits.models import list_models
    from equalbits.nn import list_input_quantizers, list_quantizers
    from equalbits.recipes import get_recipe, list_recipes
    from equalbits.recipes.methods import list_methods

    recipes = {name: get_recipe(name).about for name in list_recipes()}
    methods = list_quantizers()
    more = {name: "a method for `equalbits compare` alone" for name in list_methods() if name not in methods}
    plain = {"models": list_models(), "methods": methods, "inputs": list_input_quantizers(), "data": NAMES}
    return {"recipes": recipes, "compare-only": more} | {
        kind: dict.fromkeys(found, "") for kind, found in plain.items()
    }


if __name__ == "__main__":
    _STORED.write_text(json.dumps(live_names(), indent=1) + "\n", encoding="utf-8")
