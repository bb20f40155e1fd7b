"""The memory of an eager training step on a GPU, counted on a CPU."""

import re
from pathlib import Path

import forked
import pytest

COUNT = Path(__file__).parents[2] / "benchmarks" / "counted_eager_memory.py"


def test_an_eager_step_of_the_binary_resnet_takes_less_than_three_fifths_of_the_real_ones() -> None:
    pytest.importorskip("triton", minversion="3.6")
    found = forked.run(COUNT, "--ways", "real|1w1a")
    peaks = {name: float(peak) for name, peak in re.findall(r"^(\w+) +([\d.]+) +[\d.]+$", found.stdout, re.MULTILINE)}
    assert peaks["1w1a"] <= 0.56 * peaks["real"], found.stdout + found.stderr
