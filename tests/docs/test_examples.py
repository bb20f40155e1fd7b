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


#: What a reader must find in what an example prints.
EXPECTED = {
    "own_model": (
        "4 layers made binary, 2 left real",
        "4 of 4 layers promise a share of +1; all 192 filters hold it",
        "times smaller",
    ),
    "own_quantizer": ("1 layer made binary, 2 left real", "0 of 1 layers promise a share of +1"),
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_without_a_warning_and_prints_what_it_should(example, tmp_path):
    printed = run(example, tmp_path)
    assert printed.strip()
    for line in EXPECTED.get(example.stem, ()):
        assert line in printed


def test_every_expectation_is_of_an_example_that_is_there():
    assert set(EXPECTED) <= {example.stem for example in EXAMPLES}
