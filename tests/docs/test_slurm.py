"""The scripts shown for Slurm run, with two programs in place of Slurm's own."""

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
SCRIPTS = [block for block in re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL) if "#SBATCH" in block]

RECIPE = """
epochs = 2
[model]
name = "conv2"
options = {width = 0.05}
[data]
name = "synthetic:1x8x8:4:24"
batch_size = 8
"""


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """Environment of a job of one node with two processes."""
    programs = tmp_path / "bin"
    programs.mkdir()
    program(programs / "scontrol", "#!/bin/sh\necho localhost\necho other\n")
    program(programs / "srun", '#!/bin/sh\nexec "$@"\n')
    program(programs / "torchrun", f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n')
    program(programs / "equalbits", f'#!/bin/sh\nexec {sys.executable} -m equalbits "$@"\n')
    (tmp_path / "own.toml").write_text(RECIPE)
    ours = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_NNODES": "1",
        "SLURM_GPUS_ON_NODE": "2",
        "SLURM_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "3",
        "PORT": "0",
        "RECIPE": str(tmp_path / "own.toml"),
        "OUT": str(tmp_path / "out"),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "default",
    }
    return {**os.environ, **ours}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: "array" if "--array" in script else "nodes")
def test_every_script_is_sound_bash_and_states_its_needs_first(script: str) -> None:
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = script.splitlines()
    assert lines[0] == "#!/bin/bash"
    wanted = [number for number, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert wanted == list(range(1, len(wanted) + 1))  # Slurm reads none after the first command


@pytest.mark.ddp
def test_the_script_for_nodes_trains_in_two_processes(slurm: dict[str, str], tmp_path: Path) -> None:
    (script,) = [script for script in SCRIPTS if "torchrun" in script]
    done = subprocess.run(["bash"], input=script, env=slurm, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "run.json").read_text())["processes"] == 2


def test_the_script_for_an_array_trains_its_own_seed_in_its_own_folder(slurm: dict[str, str], tmp_path: Path) -> None:
    (script,) = [script for script in SCRIPTS if "--array" in script]
    done = subprocess.run(["bash"], input=script, env=slurm, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    runs = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("run.json"))
    assert runs == ["3/bihalf/seed3/run.json", "3/sign/seed3/run.json"]
