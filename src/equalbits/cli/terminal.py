"""What is told ends no training where the terminal that showed it has gone."""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast


@contextmanager
def terminal_may_go() -> Iterator[None]:
    """Have the command outlive its terminal while the ``with`` lasts: what is told after that goes nowhere."""
    with ExitStack() as at_the_end:
        for redirect, stream in ((redirect_stdout, sys.stdout), (redirect_stderr, sys.stderr)):
            if stream is not None and stream.isatty():
                at_the_end.enter_context(redirect(cast("TextIO", _Terminal(stream))))
        yield


def to_nowhere(stream: TextIO) -> None:
    """Let what is written to the stream, and what it still holds, go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class _Terminal:
    """The stream of a terminal, as long as that is there."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._unless_gone(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._unless_gone(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _unless_gone(self, work: Callable[[], object]) -> None:
        try:
            work()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            to_nowhere(self._stream)
