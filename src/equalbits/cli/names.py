"""``equalbits list``."""

import argparse
import json
from collections.abc import Callable
from fnmatch import fnmatchcase

_KINDS = ("recipes", "models", "methods", "inputs", "data")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``list`` takes."""
    parser.add_argument("kind", metavar="KIND", nargs="?", choices=_KINDS, help=f"one of {', '.join(_KINDS)}; else all")
    parser.add_argument("--match", metavar="PATTERN", default="*", help="only names like this, as in 'cifar10-*'")
    parser.add_argument("--show", metavar="RECIPE", help="print a recipe (a name or a TOML file) as TOML, to copy")
    parser.add_argument("--json", action="store_true", help="print as one JSON object")


def run(options: argparse.Namespace) -> None:
    """Print the names, or one recipe."""
    from equalbits.recipes import find_recipe, get_recipe  # here, so that --help need not wait for torch

    if options.show:
        recipe = find_recipe(options.show)
        print(json.dumps(recipe.as_dict()) if options.json else recipe.to_toml(), end="\n" if options.json else "")
        return
    kinds = [options.kind] if options.kind else _KINDS
    known = _names()
    names = {kind: [name for name in known[kind]() if fnmatchcase(name, options.match)] for kind in kinds}
    if options.json:
        print(json.dumps(names))
        return
    for kind, found in names.items():
        print(f"{kind}:")
        for name in found:
            about = f"  {get_recipe(name).about}" if kind == "recipes" else ""
            print(f"  {name:<26}{about}".rstrip())


def _names() -> dict[str, Callable[[], list[str]]]:
    from equalbits.data.datasets import NAMES
    from equalbits.models import list_models
    from equalbits.nn import list_input_quantizers, list_quantizers
    from equalbits.recipes import list_recipes

    return {
        "recipes": list_recipes,
        "models": list_models,
        "methods": list_quantizers,
        "inputs": list_input_quantizers,
        "data": lambda: list(NAMES),
    }
