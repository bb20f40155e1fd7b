"""How to get a package that is not everyone's: said the same way wherever one is missing."""


def with_extra(extra: str) -> str:
    """How equalbits is installed with an extra.

    >>> with_extra("plot")
    "install equalbits with the extra plot (in its clone: pip install -c constraints.txt -e '.[plot]')"
    """
    return f"install equalbits with the extra {extra} (in its clone: pip install -c constraints.txt -e '.[{extra}]')"
