"""Every example runs from a folder of its own, as a reader would run it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import equalbits

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def run(example: Path, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(equalbits.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", str(example)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_without_a_warning_and_prints_something(example, tmp_path):
    assert run(example, tmp_path).strip()


def test_a_model_of_ones_own_is_reported_audited_and_summed_up(tmp_path):
    printed = run(next(path for path in EXAMPLES if path.stem == "own_model"), tmp_path)
    assert "4 layers made binary, 2 left real" in printed
    assert "4 of 4 layers promise a share of +1; all 192 filters hold it" in printed
    assert "times smaller" in printed


def test_a_quantizer_of_ones_own_works_and_is_counted(tmp_path):
    printed = run(next(path for path in EXAMPLES if path.stem == "own_quantizer"), tmp_path)
    assert "1 layer made binary" in printed
    assert "0 of 1 layers promise a share of +1" in printed
