"""Thousands of mutated files: each is refused in one line or runs alike in both engines, within limits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def fuzz(first: int, count: int, mark: Path) -> dict[str, int]:
    """Run the cases in a separate process, which may crash or hang."""
    program = [sys.executable, "-W", "error", HERE / "fuzz.py", str(first), str(count), str(mark)]
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(program, capture_output=True, text=True, timeout=600, env=os.environ | threads)
    assert done.returncode == 0, f"at seed {mark.read_text()}: {done.stderr[-2000:]}"
    found: dict[str, int] = json.loads(done.stdout)
    return found


def check(found: dict[str, int]) -> None:
    assert found["peak_mib"] < 500
    # Were all refused, the engines would have seen none.
    assert found["answered alike to the last bit"] > found["files"] / 20
    assert found["refused by the reader"] > found["files"] / 2
    assert "refused by the native engine" not in found


def test_mutated_files_are_refused_or_answered_alike(tmp_path: Path) -> None:
    check(fuzz(0, 2_000, tmp_path / "mark"))


def test_a_header_may_be_changed_twice(tmp_path: Path) -> None:
    assert fuzz(84_083, 1, tmp_path / "mark")["refused by the reader"] == 1


@pytest.mark.slow
def test_many_mutated_files_are_refused_or_answered_alike(tmp_path: Path) -> None:
    check(fuzz(0, 20_000, tmp_path / "mark"))
