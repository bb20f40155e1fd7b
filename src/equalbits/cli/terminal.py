"""The terminal: fit tables to it, and ignore write errors after it has closed."""

import errno
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast

from equalbits._text import escape_control_chars, table_width


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[str]) -> None:
    """Print columns, those in ``right`` to the right; cells fold where the lines are short, so that no digit is cut."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in header:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(escape_control_chars, row))
    Console(highlight=False, markup=False, width=table_width()).print(table)


def say(text: str, *, error: bool = False) -> None:
    """Print lines, to standard error with ``error``; control characters in them, as in file names, are escaped."""
    lines = "\n".join(map(escape_control_chars, text.split("\n")))
    print(lines, file=sys.stderr if error else sys.stdout, flush=True)


@contextmanager
def ignore_closed_terminal() -> Iterator[None]:
    """Keep the command running when its terminal closes; later output is dropped."""
    with ExitStack() as stack:
        for redirect, stream in ((redirect_stdout, sys.stdout), (redirect_stderr, sys.stderr)):
            if stream is not None and stream.isatty():
                stack.enter_context(redirect(cast("TextIO", _TerminalStream(stream))))
        yield


def discard_output(stream: TextIO) -> None:
    """Redirect a stream, including what it has buffered, to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


class _TerminalStream:
    """Stream that drops its output once the terminal is gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _attempt(self, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            discard_output(self._stream)
