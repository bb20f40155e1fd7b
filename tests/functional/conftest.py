"""Fixtures that run Triton kernels without a GPU, in its interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import equalbits


@pytest.fixture(scope="module")
def errors_interpreted(request) -> dict[str, str]:
    """Errors of the laws of a test file, checked in a new process: Triton selects its interpreter at import."""
    pytest.importorskip("triton")
    source = str(Path(equalbits.__file__).parent.parent)
    settings = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, str(request.path)], env=settings, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads(run.stdout)
