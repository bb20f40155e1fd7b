"""Mutated checkpoints, recipes, settings and data: each is refused in one short line, or used as a valid one."""

from pathlib import Path

import pytest
from fuzz_inputs import KINDS, outcomes


@pytest.mark.parametrize("kind", KINDS)
def test_mutated_inputs_are_refused_in_one_line_or_valid(kind: str, tmp_path: Path) -> None:
    found = outcomes(kind, 0, 150, tmp_path / "x")
    assert found["refused in one line"] > 30
    assert found.total() - found["refused in one line"] > 10, "were all refused, nothing behind the checks was reached"
