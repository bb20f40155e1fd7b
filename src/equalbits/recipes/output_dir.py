"""One job a folder: who writes to a folder holds its lock, and a second one is refused, not mixed with the first.

The lock is the kernel's (``flock`` on the file ``.lock``), so it ends with the process that holds it: what a killed job
leaves behind is taken over. Where there is no ``flock`` (Windows, some network disks) nothing is locked.
"""

import json
import os
import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from equalbits._files import errors_name, remove_partial_files

_NAME = ".lock"
_held: dict[Path, int] = {}  # the folders this process holds, and the thread that does
_guard = threading.Lock()


class FolderInUse(ValueError):  # noqa: N818 (it says what is the case)
    """Another job writes to this folder."""


@contextmanager
def in_use(folder: Path, *, command: str | None = None) -> Iterator[None]:
    """Hold the folder, made if need be, while the ``with`` lasts; refuse if another job does.

    A job may hold a folder twice, as an item of the paper does whose runs lie in its own folder. A folder that was made
    here and is empty at the end, since the job failed before its first file, is taken away again. What a kill left
    half-written in it is removed first.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, in_use(Path(folder)), in_use(Path(folder)):
    ...     [path.name for path in Path(folder).iterdir()]
    ['.lock']
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: name a folder, new or of the same run, with --out")
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError:  # a place that takes no folders, as /proc
        raise ValueError(f"{folder} cannot be made: name a folder elsewhere with --out") from None
    place, me = folder.resolve(), threading.get_ident()
    with _guard:
        holder = _held.get(place)
        if holder is None:
            _held[place] = me
    if holder == me:
        yield
        return
    if holder is not None:
        raise FolderInUse(_refusal(folder, f"another thread of this process, {os.getpid()}"))
    descriptor = None
    try:
        descriptor = _locked(folder, command)
        clear_up(folder)
        yield
    finally:
        if descriptor is not None:
            _let_go(folder / _NAME, descriptor)
        with _guard:
            del _held[place]
        _take_away(made)


def clear_up(folder: Path) -> None:
    """Remove what a kill left half-written in a folder of ours; what cannot be removed stops no one."""
    with suppress(OSError):
        remove_partial_files(folder)


def _take_away(folders: list[Path]) -> None:
    """Remove folders, the innermost first, as far as they are empty."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:  # something lies in it
            return


def _locked(folder: Path, command: str | None) -> int | None:
    """The locked file's descriptor; None where files cannot be locked."""
    if sys.platform == "win32":
        return None
    import fcntl

    path = folder / _NAME
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(path)
            os.close(descriptor)
            raise FolderInUse(_refusal(folder, holder)) from None
        except OSError:  # a disk that knows no locks
            os.close(descriptor)
            return None
        if _is_still(path, descriptor):
            note = {"process": os.getpid(), "host": platform.node(), "command": command}
            try:
                with errors_name(path):
                    os.ftruncate(descriptor, 0)
                    os.write(descriptor, json.dumps(note).encode())
            except OSError:
                _let_go(path, descriptor)
                raise
            return descriptor
        os.close(descriptor)  # its holder has just taken it away: the name now belongs to another file, or none


def _let_go(path: Path, descriptor: int) -> None:
    """Remove the lock, if it is still ours, before it is let go, so that no other's is taken away.

    Where it cannot be removed, as in a folder that was made read-only, it stays: it locks nothing any more.
    """
    with suppress(OSError):
        if _is_still(path, descriptor):
            path.unlink()
    os.close(descriptor)


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    """Who holds the lock, in words."""
    try:
        note = json.loads(path.read_text())
        what = f" ({note['command']})" if note["command"] else ""
        return f"process {note['process']} on {note['host']}{what}"
    except (OSError, ValueError, KeyError):  # it is being written or taken away right now
        return "another process"


def _refusal(folder: Path, holder: str) -> str:
    return f"{folder} is in use by {holder}: wait for it to end, or use another --out"
