"""Suggestions for arguments that a command does not accept."""

import argparse
from collections.abc import Sequence

from equalbits._text import nearest_name

#: Options whose several values are one argument, and the separator.
_SEPARATORS = {"--set": "=", "--methods": ",", "--seeds": ",", "--tune": ",", "--vary": ","}


def suggestion(words: Sequence[str], unknown: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """Return "; did you mean …?" for unrecognized arguments, or nothing."""
    flag = next((word for word in unknown if word.startswith("-")), None)
    found = _joined_values(words, unknown) if flag is None else _similar_flag(flag, unknown, parser)
    return f"; did you mean {found}?" if found else ""


def check_not_empty(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Reject an empty argument: an unset shell variable would otherwise silently mean the default."""
    for action in parser._actions:  # argparse has no public way to list them
        if getattr(options, action.dest, None) == "" != action.default:
            parser.error(f"argument {'/'.join(action.option_strings) or action.metavar}: the value is empty")


def _joined_values(words: Sequence[str], unknown: Sequence[str]) -> str:
    """Return the option with its values joined, where they were separated by spaces."""
    at = list(words).index(unknown[0])
    flag, first = words[max(at - 2, 0)], words[at - 1]
    separator = _SEPARATORS.get(flag)
    if separator is None or (separator == "=" and separator in first):
        return ""
    return f"{flag} {separator.join([first, *unknown])}"


def _similar_flag(word: str, unknown: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """Return the most similar flag, or ``--set`` with the setting of that name."""
    name, _, value = word.lstrip("-").partition("=")
    flags = {flag.lstrip("-"): flag for action in parser._actions for flag in action.option_strings}
    nearest = nearest_name(name, flags)
    if nearest or "set" not in flags:
        return flags[nearest] if nearest else ""
    try:
        from equalbits.recipes import Recipe
    except ImportError:  # without torch
        return ""
    setting = next(
        (path for path in Recipe.declarations() if name.replace("-", "_") in (path, path.rpartition(".")[2])), None
    )
    after = [other for other in unknown[list(unknown).index(word) + 1 :] if not other.startswith("-")]
    return f"--set {setting}={value or next(iter(after), 'VALUE')}" if setting else ""
