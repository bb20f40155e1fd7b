"""A machine without torch runs packed files; other commands name in one line what to install."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest

import equalbits
from equalbits._extras import install_hint
from equalbits.cli import COMMANDS

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"

FORBID = """
import sys
class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "safetensors", "triton", "matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])
sys.meta_path.insert(0, Forbid())
"""
ANSWER = """
import runpy, sys
import numpy as np
import equalbits
for name in ("residual", "plain"):
    for engine in sys.argv[2:]:
        model = equalbits.load_packed(f"{sys.argv[1]}/{name}.ebits", engine=engine)
        images = runpy.run_path(f"{sys.argv[1]}/make_packed.py")["image"](model.network)
        assert (model(images) == np.load(f"{sys.argv[1]}/{name}.npy")).all(), (name, engine)
assert "torch" not in sys.modules
print("the same logits")
"""
ENGINES = ["numpy"] if equalbits.load_packed(GOLDEN / "plain.ebits").engine == "numpy" else ["numpy", "native"]


def without_torch(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", FORBID + code, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120)


def command(*words: object) -> subprocess.CompletedProcess[str]:
    return without_torch("from equalbits.cli import main; sys.exit(main(sys.argv[1:]))", *words)


def test_stored_files_give_the_logits_they_gave() -> None:
    done = without_torch(ANSWER, GOLDEN, *ENGINES)
    assert done.stdout == "the same logits\n", done.stderr


def test_commands_that_need_no_torch_run(tmp_path: Path) -> None:
    np.save(tmp_path / "image.npy", np.zeros((3, 8, 8), np.float32))
    for words in (
        ["--help"],
        ["completion", "bash"],
        ["list", "zoo"],
        ["inspect", "zoo:fashion-conv4"],
        ["inspect", GOLDEN / "residual.ebits"],
        ["run", GOLDEN / "residual.ebits", tmp_path / "image.npy"],
        ["bench", GOLDEN / "residual.ebits", "--seconds", "0.1"],
    ):
        done = command(*words)
        assert done.returncode == 0 and done.stdout, (words, done.stderr)


@pytest.mark.parametrize(
    "words",
    [
        ["train", "fashion-conv2"],
        ["demo"],
        ["evaluate", "."],
        ["reproduce", "fig6"],
        ["pack", "runs/a", "net.ebits"],
        ["list"],
        ["list", "--show", "fashion-conv2"],
        ["list", "--settings"],
    ],
    ids=lambda words: words[0],
)
def test_other_commands_name_the_extra_they_need(words: list[str]) -> None:
    assert words[0] in COMMANDS
    done = command(*words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"equalbits {words[0]}: this needs torch: {install_hint('train')}\n"


def test_every_public_name_exists_or_names_the_extra_it_needs() -> None:
    code = (
        "import equalbits\n"
        "for name in equalbits.__all__:\n"
        "    try: getattr(equalbits, name)\n"
        "    except ImportError as error: print(error)\n"
    )
    found = without_torch(code).stdout.splitlines()
    needing = [name for name in equalbits.__all__ if name not in ("__version__", "load_packed")]
    assert found == [f"equalbits.{name} needs torch: {install_hint('train')}" for name in needing]


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["there is", "there is none"])
def test_a_fresh_environment_installs_and_runs_with_and_without_a_compiler(tmp_path: Path, compiler: str) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    broken = {"CC": "/bin/false", "CXX": "/bin/false"} if compiler == "there is none" else {}
    install = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", ROOT]
    settings = ["--config-settings", f"build-dir={tmp_path / 'build'}"]
    subprocess.run([*install, *settings], check=True, env=os.environ | broken, timeout=600)
    assert subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 1
    engines = ["numpy"] if broken else ["numpy", "native"]
    done = subprocess.run(
        [python, "-c", ANSWER, GOLDEN, *engines], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.stdout == "the same logits\n", done.stderr
    word = "numpy" if broken else "native"
    engine = f"import equalbits, sys; print(equalbits.load_packed(r'{GOLDEN / 'plain.ebits'}').engine)"
    assert subprocess.run([python, "-c", engine], capture_output=True, text=True, cwd=tmp_path).stdout.startswith(word)
