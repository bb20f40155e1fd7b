"""Fixtures that run Triton kernels without a GPU, in its interpreter."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import equalbits


@pytest.fixture
def hold_interpreted() -> Callable[..., None]:
    """Return a function that checks a law of a test file in a new process: Triton selects its interpreter at import."""
    pytest.importorskip("triton")

    def check(file: str, law: str, *flags: str) -> None:
        source = str(Path(equalbits.__file__).parent.parent)
        settings = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
        run = subprocess.run([sys.executable, *flags, file, law], env=settings, capture_output=True, text=True)
        assert run.returncode == 0 and run.stdout == f"{law} hold\n", run.stdout + run.stderr

    return check
