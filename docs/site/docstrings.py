"""Prepare docstrings for Markdown: doctests become code blocks, Sphinx roles plain code."""

import re

import griffe

_DOCTEST = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", flags=re.MULTILINE)  # up to the next empty line
_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):`~?([^`]+)`")


def to_markdown(text: str) -> str:
    """Return a docstring with its doctests fenced and its roles replaced."""
    fenced = _DOCTEST.sub(lambda found: f"```pycon\n{found.group()}\n```", text)
    return _ROLE.sub(r"`\1`", fenced)


class Docstrings(griffe.Extension):
    """Apply :func:`to_markdown` to every docstring that is collected."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Rewrite one docstring in place."""
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value)
