"""How to get a package that is not everyone's: said the same way wherever one is missing."""

from importlib.util import find_spec


def check_can_draw() -> None:
    """Refuse before the training, not after it, where the picture at its end cannot be drawn."""
    if find_spec("matplotlib") is None:
        raise ValueError(f"the picture needs matplotlib: {with_extra('plot')}")


def with_extra(extra: str) -> str:
    """How equalbits is installed with an extra.

    >>> with_extra("plot")
    "install equalbits with the extra plot (in its clone: pip install -c constraints.txt -e '.[plot]')"
    """
    return f"install equalbits with the extra {extra} (in its clone: pip install -c constraints.txt -e '.[{extra}]')"
