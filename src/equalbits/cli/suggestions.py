"""Suggest the option or setting that a mistyped one may mean."""

import argparse
from collections.abc import Sequence

import equalbits as eb
from equalbits._text import nearest_name


def suggest_option(unknown: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """Return "; did you mean …?" for an unknown flag: ``--set`` with the setting of that name, or the nearest flag."""
    word = next((word for word in unknown if word.startswith("-")), "")
    name, _, value = word.lstrip("-").partition("=")
    flags = {flag.lstrip("-"): flag for action in parser._actions for flag in action.option_strings}
    if "set" in flags and (setting := _setting_named(name.replace("-", "_"))):
        after = [other for other in unknown[list(unknown).index(word) + 1 :] if not other.startswith("-")]
        return f"; did you mean --set {setting}={value or next(iter(after), 'VALUE')}?"
    nearest = nearest_name(name, flags)
    return f"; did you mean {flags[nearest]}?" if nearest else ""


def _setting_named(name: str) -> str | None:
    """Return the path of a recipe's setting, such as ``optimizer.lr`` for ``lr``."""
    try:
        known = eb.recipes.Recipe.declarations()
    except ImportError:  # without torch
        return None
    return next((path for path in known if name in (path, path.rpartition(".")[2])), None)
