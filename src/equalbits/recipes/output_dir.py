"""Output directories: detect which command wrote one, and lock it while a command writes."""

import errno
import json
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from equalbits._files import errors_name, remove_partial_files, write_only_if_locked
from equalbits.recipes.run_record import command_line

#: Kind of directory, the files that are all present in one, and its description.
_MARKS = (
    ("item", ("result.json",), "an item of the paper"),
    ("compare", ("compare.json",), "a comparison"),
    ("sweep", ("sweep.json",), "a sweep"),
    ("demo", ("demo.png", "report.html"), "the demo"),
    ("run", ("recipe.toml", "model.json"), "a run"),  # a recipe.toml alone may be the user's own
    ("run", ("run.json",), "a run"),
)


class DirInUseError(ValueError):
    """Another process or thread writes to this directory."""


def check_kind(out: Path, kind: str) -> None:
    """Raise where ``out`` holds the output of another command; a directory that only holds others is fine.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "sweep.json").touch()
    >>> check_kind(folder, "sweep")
    >>> check_kind(folder, "run")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: ... holds a sweep: give --out another folder
    """
    for held, files, description in _MARKS:
        if all((out / name).is_file() for name in files):
            if held != kind:
                raise ValueError(f"{out} holds {description}: give --out another folder")
            return
    seed = next((path.parent for path in sorted(out.glob("seed*/run.json"))), None)
    if seed and kind == "run":
        raise ValueError(f"{out} holds runs of a sweep or a comparison, as {seed.name}: give --out another folder")


@contextmanager
def lock_dir(out: Path) -> Iterator[None]:
    """Create ``out`` if needed and lock it; raise :class:`DirInUseError` where another process or thread holds it.

    The lock is released when its process ends, also by a kill, and one thread may take it twice. File systems without
    locks are not locked. Partial files of a killed process are removed. A directory created here is removed again if
    it is still empty at the end. If the directory is removed or its lock replaced meanwhile, later writes raise
    :class:`LockLostError`, so that the files of two jobs do not mix.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, lock_dir(Path(folder)), lock_dir(Path(folder)):
    ...     [path.name for path in Path(folder).iterdir()]
    ['.lock']
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: name a folder, new or of the same run, with --out")
    created = [each for each in (out, *out.parents) if not each.exists()]
    with ExitStack() as at_exit:
        at_exit.callback(_remove_empty, created)
        try:
            out.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError:  # /proc and the like
            raise ValueError(f"{out} cannot be created: name a folder elsewhere with --out") from None
        path = out.resolve() / ".lock"
        lock = FileLock(path, timeout=0, is_singleton=True)  # one per path and thread: the same thread may nest it
        try:
            lock.acquire()
        except Timeout:
            holder = _holder(path)
            raise DirInUseError(f"{out} is in use by {holder}: wait for it to end, or use another --out") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):  # a network disk without locks
                raise
        at_exit.callback(lock.release)
        if lock.lock_counter < 2:  # the outermost of nested calls
            if lock.is_locked:
                at_exit.callback(_remove_own, path, path.stat())
            note = {"process": os.getpid(), "host": platform.node(), "command": command_line()}
            with errors_name(path):
                path.write_text(json.dumps(note))
            remove_partial_files(out)
            if lock.is_locked:
                at_exit.enter_context(write_only_if_locked(out, path))
        yield


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove folders, innermost first, up to the first that holds something."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _remove_own(lock: Path, own: os.stat_result) -> None:
    """Remove a lock file, unless another replaced it; one that cannot be removed locks nothing."""
    with suppress(OSError):
        if os.path.samestat(lock.stat(), own):
            lock.unlink()


def _holder(path: Path) -> str:
    """Describe the process that holds a lock."""
    try:
        note = json.loads(path.read_text())
        command = f" ({note['command']})" if note["command"] else ""
        if (note["process"], note["host"]) == (os.getpid(), platform.node()):
            return f"another thread of this process, {os.getpid()}"
        return f"process {note['process']} on {note['host']}{command}"
    except (OSError, ValueError, KeyError):  # written or removed at this moment
        return "another process"
