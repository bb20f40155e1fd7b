"""A tiny recipe and a trained run, and a function that calls the command."""

from collections.abc import Callable
from pathlib import Path

import pytest

from equalbits.cli import main

RECIPE = """
epochs = 2
[model]
name = "conv2"
options = {width = 0.05}
[data]
name = "synthetic:1x8x8:4:24"
batch_size = 8
"""

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def recipe(tmp_path_factory) -> str:
    """The path of a TOML file."""
    path = tmp_path_factory.mktemp("recipe") / "own.toml"
    path.write_text(RECIPE)
    return str(path)


@pytest.fixture(scope="session")
def trained(recipe: str, tmp_path_factory) -> Path:
    """A finished run, to read and not to write."""
    out = tmp_path_factory.mktemp("runs") / "a"
    assert main(["train", recipe, "--out", str(out), "--device", "cpu", "--json"]) == 0
    return out


@pytest.fixture
def call(capsys, monkeypatch) -> Call:
    """Call the command: its exit code, stdout and stderr."""
    for name in ("EQUALBITS_TRACEBACK", "EQUALBITS_DATA"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capsys.readouterr()

    return run
