"""Hints for missing optional packages, worded the same everywhere."""

from importlib.util import find_spec


def require_matplotlib() -> None:
    """Raise before the training, not after it, where its plot could not be drawn."""
    if find_spec("matplotlib") is None:
        raise ValueError(f"plotting needs matplotlib: {install_hint('plot')}")


def install_hint(extra: str) -> str:
    """Return the command that installs equalbits with an extra.

    >>> install_hint("plot")
    "install equalbits with the extra plot (in its clone: pip install -c constraints.txt -e '.[plot]')"
    """
    return f"install equalbits with the extra {extra} (in its clone: pip install -c constraints.txt -e '.[{extra}]')"
