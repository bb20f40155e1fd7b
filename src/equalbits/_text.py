"""Text for people: suggestions for unknown names, plain tables, safe terminal output."""

import shutil
import sys
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


#: Cells without content.
_EMPTY = ("", "–")


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """Return the error for an unknown name, with the closest known name and all of them.

    >>> unknown_name("fruit", "aple", ["apple", "pear"])
    ValueError("fruit 'aple' is not known: did you mean 'apple'? There are: 'apple', 'pear'")
    """
    names, name = sorted(known), bounded(str(name), 200)
    if not names:
        return ValueError(f"{kind} {name!r} is not known: there is none to give")
    nearest = nearest_name(name, names)
    hint = f"did you mean {nearest!r}? There are" if nearest else "there are"
    return ValueError(f"{kind} {name!r} is not known: {hint}: {', '.join(map(repr, names))}")


def nearest_name(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name most similar to ``name``; None if none is similar enough.

    >>> nearest_name("conv3", ["conv2", "resnet18"]), nearest_name("vgg", ["conv2", "resnet18"])
    ('conv2', None)
    """
    names, name = sorted(known), str(name).lower()
    near = get_close_matches(name, names, n=max(1, len(names)), cutoff=cutoff)
    return max(sorted(near), key=lambda other: SequenceMatcher(None, other, name).ratio(), default=None)


def terminal_width() -> int | None:
    """Return the columns of the terminal that shows the output; None for a file or a pipe, which take any width."""
    return table_width() if sys.stdout is not None and sys.stdout.isatty() else None


def table_width() -> int:
    """Return the columns for a table: ``$COLUMNS``, else those of the terminal, else 80, as in a file or a pipe."""
    return shutil.get_terminal_size().columns


def format_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, left: Iterable[int] = (0,), width: int | None = None
) -> str:
    """Align columns under their headings: to the right, except the columns listed in ``left``.

    A table wider than ``width`` (default: :func:`table_width`) continues below itself, with the first column repeated;
    rows without content are left out there.

    >>> rows = [("conv1", "27", "yes"), ("relu", "9", "–"), ("fc", "1,000", "no")]
    >>> print(format_table(("layer", "weights", "exact"), rows, width=16))
    layer  weights
    conv1       27
    relu         9
    fc       1,000
    <BLANKLINE>
    layer  exact
    conv1    yes
    fc        no
    """
    lines = [tuple(header), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left, most = set(left), width or table_width()
    blocks, used = [[0]], widths[0]
    for column in range(1, len(widths)):
        if used + 2 + widths[column] > most and len(blocks[-1]) > 1:
            blocks.append([0])
            used = widths[0]
        blocks[-1].append(column)
        used += 2 + widths[column]

    def aligned(line: Sequence[str], columns: Sequence[int]) -> str:
        cells = (line[c].ljust(widths[c]) if c in left else line[c].rjust(widths[c]) for c in columns)
        return "  ".join(cells).rstrip()

    def shown(columns: Sequence[int]) -> Iterable[tuple[str, ...]]:
        return lines if 1 in columns else (line for line in lines if any(line[c] not in _EMPTY for c in columns[1:]))

    return "\n\n".join("\n".join(aligned(line, columns) for line in shown(columns)) for columns in blocks)


def used_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Leave out columns without any content.

    >>> used_columns(("layer", "bits"), [("conv1", "–"), ("total", "")])
    (('layer',), [('conv1',), ('total',)])
    """
    kept = [place for place in range(len(header)) if any(row[place] not in _EMPTY for row in rows)]
    return tuple(header[place] for place in kept), [tuple(row[place] for place in kept) for row in rows]


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a ``|`` inside a cell is replaced by a similar character.

    >>> print(markdown_table(("layer", "weights"), [("conv1", "27")]))
    | layer | weights |
    |---|---|
    | conv1 | 27 |
    """
    lines = [" | ".join(cell.replace("|", "∣") for cell in row) for row in (header, *rows)]
    head, *body = (f"| {line} |" for line in lines)
    return "\n".join([head, "|---" * len(header) + "|", *body])


def html_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, left: Iterable[int] = (0,), note: str = ""
) -> str:
    """Return a table for notebooks, aligned as by :func:`format_table`, with lines of notes below it.

    >>> html_table(("layer",), [], note="<b>")
    '<table><tr><th style="text-align:left">layer</th></tr></table>&lt;b&gt;'
    """
    left = set(left)

    def line(kind: str, cells: Sequence[str]) -> str:
        sides = ("left" if column in left else "right" for column in range(len(cells)))
        both = zip(cells, sides, strict=True)
        return "".join(f'<{kind} style="text-align:{side}">{escape(cell)}</{kind}>' for cell, side in both)

    lines = [line("th", header), *(line("td", row) for row in rows)]
    below = escape(note).replace("\n", "<br>")
    return f"<table>{''.join(f'<tr>{cells}</tr>' for cells in lines)}</table>{below}"


def size_ratio(size: int, other: int) -> str:
    """Compare two sizes in words.

    >>> size_ratio(1000, 1020), size_ratio(100, 250)
    ('as large as', '2.5 times smaller than')
    """
    factor = max(size, other) / max(1, min(size, other))
    return "as large as" if factor < 1.05 else f"{factor:.1f} times {'smaller' if size < other else 'larger'} than"


def format_range(counts: "NDArray[np.int64]") -> str:
    """Return the one number where all are equal, else the smallest and the largest.

    >>> import numpy as np
    >>> format_range(np.array([4, 4])), format_range(np.array([3, 9000, 5]))
    ('4', '3…9,000')
    """
    if not len(counts):
        return "–"
    low, high = int(counts.min()), int(counts.max())
    return f"{low:,}" if low == high else f"{low:,}…{high:,}"


def escape_control_chars(text: str) -> str:
    r"""Return text from a file as it may be printed: line breaks and terminal control characters are escaped.

    >>> print(escape_control_chars("naïve\x1b[2J\n"))
    naïve\x1b[2J\n
    """
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def one_line(error: object, limit: int = 300) -> str:
    """Return the message of an error on one line, with its middle left out where it is long.

    >>> one_line(ValueError("first line\\n  second line"))
    'first line second line'
    """
    return bounded(" ".join(str(error).split()), limit)


def bounded(text: str, limit: int = 1000) -> str:
    """Return a text of an error with its middle left out where it is long: it may quote a file of any size.

    >>> bounded("the input has shape " + "1, " * 1000 + "1: give three numbers", limit=60)
    'the input has shape 1, 1, 1, 1, 1, 1, … 1: give three numbers'
    """
    if len(text) <= limit:
        return text
    return f"{text[: limit * 5 // 8].rstrip()} … {text[len(text) - limit * 3 // 8 :].lstrip()}"
