"""Processes that each build one way to compute something, at the same time, and are then asked one by one."""

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Worker:
    """A process that answers words by lines of JSON, and compiles with a few threads."""

    def __init__(self, *words: str) -> None:
        settings = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "3", "OMP_NUM_THREADS": "1"}
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (until the process ends)
        pipes: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": self.errors,
            "text": True,
        }
        self.process = subprocess.Popen([sys.executable, *words], env=settings, **pipes)

    def ask(self, word: str, end: float) -> Any:
        """Return the reply to a word; without one, return its first line; None if it ended, by ``end``."""
        timer = threading.Timer(max(0.0, end - time.monotonic()), self.process.kill)
        timer.start()
        try:
            if word:
                print(word, file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()  # type: ignore[union-attr]
        except BrokenPipeError:
            line = ""
        timer.cancel()
        return json.loads(line) if line.endswith("\n") else None

    def last_error(self) -> str:
        """Return the last line that the process wrote to stderr."""
        self.errors.seek(0)
        return (self.errors.read().strip().splitlines() or [f"it ended with {self.process.wait()}"])[-1][:300]


def replies() -> Callable[[object], None]:
    """Return, in a worker, a function that sends a reply; what else is printed goes to stderr."""
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return lambda value: print(json.dumps(value), file=stream, flush=True)


def take_turns_at_autotuning() -> None:
    """Let one process at a time compare kernels, so that others do not disturb its times."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    lock = Path(tempfile.gettempdir(), "equalbits-autotuning").open("w")  # noqa: SIM115 (until the process ends)
    compare = CachingAutotuner.autotune_to_one_config

    def locked(*args: Any, **settings: Any) -> Any:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return compare(*args, **settings)
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)

    CachingAutotuner.autotune_to_one_config = locked
