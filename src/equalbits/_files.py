"""Write files so that a reader finds the old content or the new, never a part of it."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

_PARTIAL = ".partial"
_ATTEMPTS = 9  # another job that starts in the folder may remove the partial file meanwhile


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the content of one file in a single move."""
    write_all_atomically({path: content})


def write_all_atomically(contents: Mapping[Path, bytes]) -> None:
    """Replace the content of several files after all of it is on disk: a full disk leaves every file unchanged."""
    partial = {path: path.with_name(f".{path.name}.{os.getpid()}{_PARTIAL}") for path in contents}
    try:
        for path, content in contents.items():
            with errors_name(path):
                _write(partial[path], content)
        for path, content in contents.items():
            with errors_name(path):
                _move(partial[path], path, content)
    except OSError:
        for each in partial.values():
            with suppress(OSError):  # report the first error, not that the clean-up failed too
                each.unlink()
        raise


@contextmanager
def errors_name(path: Path) -> Iterator[None]:
    """Make an ``OSError`` raised inside the ``with`` name ``path`` instead of the partial file or nothing."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def remove_partial_files(folder: Path) -> None:
    """Remove partial files left by a killed process; files of other programs stay.

    A process id in such a name may belong to another machine or be reused, so the owner cannot be known. A live process
    that loses its partial file writes it again.
    """
    for path in folder.glob(f".*{_PARTIAL}"):
        if re.fullmatch(rf"\..+\.\d+{re.escape(_PARTIAL)}", path.name):
            with suppress(OSError):
                path.unlink()


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _move(partial: Path, path: Path, content: bytes) -> None:
    """Rename the partial file; write it again where another job removed it as a leftover."""
    for _ in range(_ATTEMPTS):
        try:
            partial.replace(path)
            return
        except FileNotFoundError:
            _write(partial, content)
    partial.replace(path)
