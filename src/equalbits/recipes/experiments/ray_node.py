"""What a node of a Ray cluster does with a batch: train it in a folder of its own, and tell. Knows nothing of Ray."""

import json
import platform
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import equalbits
from equalbits.recipes.experiments.engine import Batch, train_in_turn, train_side_by_side
from equalbits.training import EpochRecord, StepRecord

_PREFIX = "equalbits-node-"


def train_here(job: str) -> Iterator[dict[str, Any]]:
    """Train a batch given as JSON: yields its records as plain data, at last its files as bytes, or why it failed."""
    told = json.loads(job)
    said: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
    remove_leftovers(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder, _held(Path(folder)):
        # In a thread of its own, so that records can be told while it trains, and signals stay the cluster's affair.
        threading.Thread(target=_train, args=(told, Path(folder), said.put), daemon=True).start()
        while (one := said.get()) is not None:
            yield one


_ALIVE = ".alive"  # a file whose lock ends with the worker that holds it


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder, so that no other worker takes it for a leftover."""
    with (folder / _ALIVE).open("wb") as held:
        _lock(held.fileno())
        yield


def remove_leftovers(within: Path) -> None:
    """Remove the folders of workers that were killed, and so could not do it themselves: those that nobody holds."""
    for folder in within.glob(f"{_PREFIX}*"):
        with suppress(OSError), (folder / _ALIVE).open("rb") as held:
            if _lock(held.fileno()):
                shutil.rmtree(folder, ignore_errors=True)


def _lock(descriptor: int) -> bool:
    """Whether the lock could be had; never where there are none."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _train(told: Mapping[str, Any], folder: Path, say: Callable[[dict[str, Any] | None], None]) -> None:
    began = time.perf_counter()
    end: dict[str, Any] = {"node": platform.node()}
    try:
        if told["version"] != equalbits.__version__:
            raise ValueError(
                f"this node has equalbits {equalbits.__version__}, the sweep is of {told['version']}: install the same"
            )
        root = Path(told["root"]) if told["root"] else None
        batch, listeners = Batch.from_dict(told), [lambda record: say(_plain(record))]
        train_them = train_side_by_side if len(batch.seeds) > 1 else train_in_turn
        train_them([batch], folder, root=root, device=told["device"], reporters=listeners)
    except BaseException as error:  # all of it is told: a thread's error would be lost
        refused = isinstance(error, ValueError | OSError | ImportError)
        why = " ".join(str(error).split()).replace(str(folder), "<out>")
        end |= {"failed": type(error).__name__, "why": why, "refused": refused, "story": traceback.format_exc()}
    say({**end, "files": _files(folder), "seconds": time.perf_counter() - began})
    say(None)


def _plain(record: StepRecord | EpochRecord) -> dict[str, Any]:
    return {"record": "epoch" if isinstance(record, EpochRecord) else "step", "facts": asdict(record)}


def _files(folder: Path) -> dict[str, bytes]:
    """Every file below the folder by its path in it, but for what is hidden."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
