"""Output goes to stdout, or one line on stderr states the reason, also if Python buffers it to the end."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from equalbits.cli.errors import error_message

PACKED = Path(__file__).parents[1] / "golden" / "residual.ebits"
KEPT_BACK = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
COMMANDS = {
    "inspect": ["inspect", PACKED],
    "bench": ["bench", PACKED, "--seconds", "0"],
    "run": ["run", PACKED, "{images}"],
    "--version": ["--version"],
    "--help": ["--help"],
    "run --help": ["run", "--help"],
}


@pytest.fixture(params=[KEPT_BACK, KEPT_BACK | {"PYTHONUNBUFFERED": "1"}], ids=["kept back", "at once"])
def settings(request):
    return request.param


def words_of(command, tmp_path, *, images=1):
    np.save(tmp_path / "x.npy", np.zeros((images, 3, 8, 8), np.float32))
    words = [str(word).replace("{images}", str(tmp_path / "x.npy")) for word in COMMANDS[command]]
    return [sys.executable, "-m", "equalbits", *words]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_closed_pipe_is_not_an_error(command, settings, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(words_of(command, tmp_path), stdout=writer, stderr=subprocess.PIPE, text=True, env=settings)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
@pytest.mark.parametrize(("command", "images"), [("inspect", 1), ("run", 1), ("run", 500), ("--help", 1)])
def test_a_full_disk_is_reported_in_error_message(command, images, settings, tmp_path):
    words = words_of(command, tmp_path, images=images)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, env=settings)
    who = "equalbits" if command == "--help" else f"equalbits {command}"
    assert (done.returncode, done.stderr) == (1, f"{who}: no space left on the disk; free some space and retry\n")


@pytest.mark.parametrize("words", [["inspect", PACKED], ["--help"]])
def test_an_ascii_pipe_gets_replacement_characters(words, settings):
    command = [sys.executable, "-m", "equalbits", *map(str, words)]
    done = subprocess.run(command, capture_output=True, env=settings | {"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii() and b"?" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such shell here")
def test_a_missing_stdout_is_not_an_error(settings, tmp_path):
    words = ["sh", "-c", '"$@" >&-', "sh", *words_of("run", tmp_path)]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, env=settings)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("number", ["ENOENT", "EACCES", "EPERM", "EEXIST", "EFBIG", "EROFS", "ENOSPC", "EDQUOT"])
def test_file_errors_name_the_file_and_a_remedy(number, tmp_path):
    line = error_message(OSError(getattr(errno, number), "in the system's words", str(tmp_path / "net.ebits")))
    assert line.startswith(f"{tmp_path / 'net.ebits'}: ")
    assert re.search(r"(use another path|check the path|retry)", line) and "in the system's words" not in line
