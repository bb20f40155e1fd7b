"""A directory that is removed and begun anew by another job, while each command still runs, is the other's alone."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from forked import ForkedPython

from equalbits.recipes import RunRecord

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
LONG = "--set epochs=30 --set checkpoint_seconds=0 --device cpu"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "words",
    [
        f"train {{recipe}} {LONG}",
        f"sweep {{recipe}} --seeds 1,2 {LONG}",
        f"sweep {{recipe}} --seeds 1,2 --stack 2 {LONG}",
        f"compare {{recipe}} --methods sign,bihalf --seeds 1 {LONG}",
        "reproduce tab2-tuned --quick --seeds 0 --device cpu --set model.options.width=0.05",
    ],
    ids=lambda words: " ".join(
        word for word in words.split() if word in ("train", "sweep", "--stack", "compare", "reproduce")
    ),
)
def test_a_command_writes_nothing_into_a_folder_that_another_job_began_anew(
    words: str, recipe: str, tmp_path: Path, call
) -> None:
    out = tmp_path / "a"
    first = ForkedPython("-m", "equalbits", *words.format(recipe=recipe).split(), "--out", out, env=ENVIRONMENT)
    while not any(path.name[0] != "." and path.is_file() for path in out.rglob("*")):
        assert first.poll() is None, first.communicate()
        time.sleep(0.002)
    first.send_signal(signal.SIGSTOP)
    shutil.rmtree(out)
    assert call("train", recipe, "--out", out, "--set", "seed=7", "--device", "cpu")[0] == 0
    before = contents(out)
    first.send_signal(signal.SIGCONT)
    _, said = first.communicate(timeout=120)
    assert first.returncode == 1
    assert "was removed or taken over by another job" in said.splitlines()[-1] and "Traceback" not in said
    assert contents(out) == before
    assert RunRecord.read(out / "run.json").seed == 7
