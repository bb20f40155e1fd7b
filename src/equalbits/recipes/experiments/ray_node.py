"""The work of a node in a Ray cluster: train a group of runs in a temporary directory and send back its files.

It does not import Ray.
"""

import json
import platform
import shutil
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from filelock import FileLock, Timeout

import equalbits
from equalbits.recipes.build import pick_device
from equalbits.recipes.experiments.store import PlannedRun, RunStore
from equalbits.recipes.experiments.train_runs import Trainer
from equalbits.training import EpochRecord, StepRecord

_PREFIX = "equalbits-node-"
_LOCK = ".alive"  # locked by the worker as long as it lives


def train_here(job: str) -> Iterator[dict[str, Any]]:
    """Train runs given as JSON; yield their progress as plain data, and at last their files, or why they failed."""
    table = json.loads(job)
    messages: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
    remove_leftovers(Path(tempfile.gettempdir()))
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder,
        FileLock(Path(folder) / _LOCK, thread_local=False),
    ):
        # In a thread, so that progress can be sent while it trains, and signals are left to the cluster.
        threading.Thread(target=_train, args=(table, Path(folder), messages.put), daemon=True).start()
        while (message := messages.get()) is not None:
            yield message


def remove_leftovers(within: Path) -> None:
    """Remove the temporary directories of workers that were killed: those with a lock file that nobody holds."""
    for folder in within.glob(f"{_PREFIX}*"):
        if (folder / _LOCK).exists():
            with suppress(OSError, Timeout), FileLock(folder / _LOCK, timeout=0):
                shutil.rmtree(folder, ignore_errors=True)


def _train(table: Mapping[str, Any], folder: Path, send: Callable[[dict[str, Any] | None], None]) -> None:
    began = time.perf_counter()
    end: dict[str, Any] = {"node": platform.node()}
    try:
        if table["version"] != equalbits.__version__:
            raise ValueError(
                f"this node has equalbits {equalbits.__version__}, the sweep has {table['version']}: install the same"
            )
        runs = [PlannedRun.from_dict(each) for each in table["runs"]]
        trainer = Trainer(
            RunStore(folder), Path(table["root"]) if table["root"] else None, pick_device(table["device"])
        )
        trainer.train(runs, [lambda record: send(_plain(record))], alone=len(runs) == 1)
    except BaseException as error:  # an exception of this thread would be lost otherwise
        expected = isinstance(error, ValueError | OSError | ImportError)
        reason = " ".join(str(error).split()).replace(str(folder), "<out>")
        end |= {"failed": type(error).__name__, "reason": reason, "expected": expected}
        end |= {"traceback": traceback.format_exc()}
    send({**end, "files": _files(folder), "seconds": time.perf_counter() - began})
    send(None)


def _plain(record: StepRecord | EpochRecord) -> dict[str, Any]:
    return {"record": "epoch" if isinstance(record, EpochRecord) else "step", "facts": asdict(record)}


def _files(folder: Path) -> dict[str, bytes]:
    """Return every file below a directory by its relative path, except hidden ones."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
