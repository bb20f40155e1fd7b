"""Write files so that a reader finds the old content or the new, never a part of it."""

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import IO

_PARTIAL = ".partial"
_ATTEMPTS = 9  # another job that starts in the folder may remove the partial file meanwhile
#: Directories that this thread has locked, and the lock file of each as it was created.
_locked: ContextVar[Mapping[Path, tuple[str, os.stat_result]]] = ContextVar("locked", default=MappingProxyType({}))


class LockLostError(ValueError):
    """The directory that this job writes to was removed or taken over by another job."""


@contextmanager
def write_only_if_locked(folder: Path, lock: Path) -> Iterator[None]:
    """Inside the ``with``, refuse writes below ``folder`` once its lock file is not the one that is there now.

    A file that is missing then raises :class:`LockLostError` too.
    """
    name = folder.absolute()  # not resolved: a symbolic link may later lead elsewhere
    before = _locked.set({**_locked.get(), name: (lock.name, lock.stat())})
    try:
        yield
    except FileNotFoundError as error:
        check_lock(Path(error.filename or name / lock.name))
        raise
    finally:
        _locked.reset(before)


def check_lock(path: Path) -> None:
    """Raise :class:`LockLostError` where a directory above ``path`` is no longer the one that was locked."""
    target = path.absolute()
    for folder, (lock, taken) in _locked.get().items():
        held = not target.is_relative_to(folder)
        with suppress(OSError):
            held = held or os.path.samestat((folder / lock).stat(), taken)
        if not held:
            raise LockLostError(
                f"{folder} was removed or taken over by another job, its {lock} is not the one of this job: "
                f"{path.name} is not written; use another --out for each job"
            )


def append(path: Path, content: bytes) -> None:
    """Append to a file, unless another job has taken over its directory."""
    check_lock(path)
    with errors_name(path), path.open("ab") as file:
        file.write(content)


def remove_file(path: Path) -> None:
    """Remove a file, if it is there, unless another job has taken over its directory."""
    check_lock(path)
    path.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the content of one file in a single move."""
    write_all_atomically({path: content})


def write_all_atomically(contents: Mapping[Path, bytes]) -> None:
    """Replace the content of several files after all of it is on disk: a full disk leaves every file unchanged."""
    partial = {path: path.with_name(f".{path.name}.{os.getpid()}{_PARTIAL}") for path in contents}
    try:
        for path, content in contents.items():
            check_lock(path)
            with errors_name(path):
                _write(partial[path], content)
        for path, content in contents.items():
            check_lock(path)  # again: writing may have taken long
            with errors_name(path):
                _move(partial[path], path, content)
    except (OSError, LockLostError):
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
        error.filename = str(path)
        del error.filename2  # None would be printed
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


def lock_while_open(file: IO[bytes]) -> None:
    """Mark a partial file as being written; where there are no locks, do nothing."""
    with suppress(OSError, ImportError):  # Windows has no fcntl
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def remove_dead_partial_files(folder: Path, pattern: str) -> None:
    """Remove files of such names that are a minute old and that no process holds by :func:`lock_while_open`."""
    for path in folder.glob(f".*{_PARTIAL}"):
        if not re.fullmatch(pattern, path.name):
            continue
        with suppress(OSError, ImportError):
            import fcntl

            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(file.fileno()).st_mtime > 60:
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
