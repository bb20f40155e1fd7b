"""No name of a file or of a run brings control characters to the terminal, also where a command succeeds."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from equalbits.cli import main

NAME = "\x1b[31mr\x07[red]"
CLI = Path(main.__code__.co_filename).parent


@pytest.fixture(scope="module")
def folder(trained: Path, tmp_path_factory) -> Path:
    """A directory whose name holds them, with a run, a packed file and images that do too."""
    folder = tmp_path_factory.mktemp("escapes") / NAME
    folder.mkdir()
    shutil.copytree(trained, folder / f"run{NAME}")
    assert main(["pack", str(folder / f"run{NAME}"), str(folder / f"{NAME}.ebits")]) == 0
    np.save(folder / f"{NAME}.npy", np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 1, 8, 8))
    return folder


@pytest.mark.parametrize(
    "words",
    [
        "run {file} {images}", "inspect {file}", "bench {file} --seconds 0.01", "export {file} {out}.c",
        "export {file} {out}.html", "pack {run} {out}.ebits", "inspect {run}", "evaluate {run}", "report {run}",
        "run {run} {images}", "train --resume {run}", "train {run}/recipe.toml --out {out}",
        "sweep {run}/recipe.toml --seeds 1 --out {out}s", "train {run}/recipe.toml --start-from {run} --out {out}t",
    ],
)  # fmt: skip
def test_a_command_that_succeeds_escapes_the_names_it_prints(words: str, folder: Path, tmp_path: Path, call) -> None:
    names = {"file": folder / f"{NAME}.ebits", "images": folder / f"{NAME}.npy", "run": folder / f"run{NAME}"}
    given = [word.format(out=tmp_path / f"o{NAME}", **names) for word in words.split()]
    code, out, said = call(*given)
    if code and "unrecognized" in said:
        pytest.fail(said)
    assert code == 0, said
    assert not re.search(r"[^\n\t -~¡-\U0010ffff]", out + said), repr(out + said)


def test_commands_print_lines_only_by_the_function_that_escapes_them() -> None:
    for path in CLI.glob("*.py"):
        if path.name in ("terminal.py", "errors.py", "commands.py", "completion.py", "list.py"):
            continue  # these print help, completions and what they have escaped themselves
        for line in path.read_text().splitlines():
            allowed = (
                "print(json.dumps(" in line or "print(escape_control_chars(" in line or 'print(f"  {each.prob' in line
            )
            assert allowed or not re.search(r"(?<![\w.])print\(", line), f"{path.name}: {line.strip()}"
