"""Python programs forked from a process that has imported torch: a new interpreter takes seconds to do so."""

import multiprocessing
import os
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
import warnings
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

# Also the workers of image loaders are forked from there.
multiprocessing.set_forkserver_preload(
    [
        "equalbits.cli",
        "equalbits.paper",
        "equalbits.recipes",
        "tensorboard.summary.writer.record_writer",
        "torch._dynamo",
        "torch.distributed.run",
        "forked",
    ]
)


class ForkedPython:
    """A running ``python *words`` as ``subprocess.Popen`` gives it, whose output goes to files.

    The words are ``-m module``, ``-c program`` or the path of a script, with arguments; before them ``-W error``.
    """

    def __init__(
        self,
        *words: object,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        start_new_session: bool = False,
        terminal: str = "",
    ) -> None:
        folder = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, folder)
        self.stdout, self.stderr = (Path(folder, name) for name in ("stdout", "stderr"))
        self.args = [str(word) for word in words]
        streams = [terminal] * 2 if terminal else [str(self.stdout), str(self.stderr)]
        settings = dict(os.environ if env is None else env)
        self._process = multiprocessing.get_context("forkserver").Process(
            target=_main, args=(self.args, settings, str(cwd or Path.cwd()), streams, start_new_session)
        )
        self._process.start()
        self.pid = self._process.pid or 0

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    poll = returncode.fget

    def send_signal(self, number: int) -> None:
        if self.returncode is None:  # otherwise another process may have its number
            os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            self._process.kill()
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end and return what it wrote to stdout and to stderr."""
        self.wait(timeout)
        return self.stdout.read_text(), self.stderr.read_text()


def run(
    *words: object, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run ``python *words`` to its end, as ``subprocess.run`` does."""
    process = ForkedPython(*words, env=env, cwd=cwd)
    printed, errors = process.communicate(timeout)
    return subprocess.CompletedProcess(process.args, process.wait(), printed, errors)


def start_ranks(*words: object, count: int = 2) -> list[ForkedPython]:
    """Start ``python *words`` in several processes with the environment variables that ``torchrun`` sets."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    size = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "none", **size}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    return [ForkedPython(*words, env=shared | rank) for rank in ranks]


def _main(words: list[str], settings: dict[str, str], cwd: str, streams: Sequence[str], new_session: bool) -> None:
    if new_session:
        os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(settings)
    for number, path in enumerate(streams, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY), number)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    if words[:2] == ["-W", "error"]:
        warnings.simplefilter("error")
        words = words[2:]
    kind, *rest = words
    if kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(kind).parent))
        runpy.run_path(kind, run_name="__main__")
