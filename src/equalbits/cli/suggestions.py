"""What was likely meant by words that a command does not take."""

import argparse
import difflib
from collections.abc import Iterable, Sequence

#: Options that take several values as one word, and what parts them.
_PARTED_BY = {"--set": "=", "--methods": ",", "--seeds": ",", "--tune": ",", "--vary": ","}


def meant(words: Sequence[str], unread: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """A question to put behind the words that were not read; empty where nothing comes to mind."""
    flag = next((word for word in unread if word.startswith("-")), None)
    found = _joined(words, unread) if flag is None else _flag(flag, unread, parser)
    return f"; did you mean {found}?" if found else ""


def check_none_empty(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Refuse an empty word: a variable of the shell that was never set would stand for the default, unseen."""
    for action in parser._actions:  # argparse has no other way to ask
        if getattr(options, action.dest, None) == "" != action.default:
            parser.error(f"argument {'/'.join(action.option_strings) or action.metavar}: what is given is empty")


def _joined(words: Sequence[str], unread: Sequence[str]) -> str:
    """Values that were parted by spaces, as one word."""
    at = list(words).index(unread[0])
    flag, first = words[max(at - 2, 0)], words[at - 1]
    by = _PARTED_BY.get(flag)
    if by is None or (by == "=" and by in first):
        return ""
    return f"{flag} {by.join([first, *unread])}"


def _flag(word: str, unread: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """The flag nearest to a word, or the setting of that name."""
    name, _, value = word.lstrip("-").partition("=")
    flags = {flag.lstrip("-"): flag for action in parser._actions for flag in action.option_strings}
    close = difflib.get_close_matches(name, flags, n=1)
    if close or "set" not in flags:
        return flags[close[0]] if close else ""
    setting = next((path for path in _settings() if name.replace("-", "_") in (path, path.rpartition(".")[2])), None)
    after = [other for other in unread[list(unread).index(word) + 1 :] if not other.startswith("-")]
    return f"--set {setting}={value or next(iter(after), 'VALUE')}" if setting else ""


def _settings() -> Iterable[str]:
    """The names that ``--set`` knows; none where torch is not installed."""
    try:
        from equalbits.recipes import get_recipe
        from equalbits.training import flat
    except ImportError:
        return ()
    return flat(get_recipe("fashion-conv2").as_dict())
