"""Facts about a release that live in several files."""

import re
from pathlib import Path

import pytest

import equalbits

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "name", ["pyproject.toml", "CITATION.cff", "README.md", "Makefile", ".github/workflows/ci.yml"]
)
def test_the_version_is_stated_in_the_package_alone(name: str) -> None:
    assert equalbits.__version__ not in re.findall(r"[\d.]+\d", (ROOT / name).read_text(encoding="utf-8"))


def test_the_public_checks_run_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    used = set(re.findall(r"run: make (\S+)", (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")))
    assert {"test", "docs", "wheel"} <= used <= targets
