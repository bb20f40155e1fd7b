"""On a busy machine torch's threads do not spin for milliseconds while they wait for each other."""

import os
import re
import subprocess
import sys

import pytest


def spin_count(command: str, **environment: str) -> str:
    """Return for how many rounds OpenMP spins, as its library prints when torch loads it."""
    ours = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    shown = subprocess.run(
        [sys.executable, "-m", "equalbits", *command.split()],
        env={**inherited, "OMP_DISPLAY_ENV": "VERBOSE", "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    found = re.search(r"GOMP_SPINCOUNT = '(\d+)'", shown)
    if not found:
        pytest.skip("torch's OpenMP is not GNU's")
    return found[1]


def test_commands_that_train_or_evaluate_wait_in_short_loops_unless_told_otherwise():
    evaluate = "evaluate zoo:fashion-conv4"
    assert spin_count(evaluate) == "1000"
    assert spin_count(evaluate, GOMP_SPINCOUNT="77") == "77"
    assert int(spin_count(evaluate, OMP_WAIT_POLICY="active")) > 1_000_000
