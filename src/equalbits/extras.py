"""How to get a package that is not everyone's: said the same way wherever one is missing."""


def with_extra(extra: str) -> str:
    """How equalbits is installed with an extra, from an index and from a clone.

    >>> with_extra("plot")
    "install equalbits with the extra plot (pip install 'equalbits[plot]', in a clone pip install -c ... '.[plot]')"
    """
    here = f"pip install -c constraints.txt '.[{extra}]'"
    return f"install equalbits with the extra {extra} (pip install 'equalbits[{extra}]', in a clone {here})"
