"""Two processes train as one does, stop together, and end if one of them dies."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from forked import ForkedPython, start_ranks

from equalbits.cli import main
from equalbits.training import load_checkpoint

# 45 images in batches of 8: the last batch has 5, which two processes share as 3 and 2. No batch norm.
RECIPE = """
epochs = 12
checkpoint_seconds = 0
clip_norm = 2.0
[model]
name = "conv2"
options = {width = 0.05}
[data]
name = "synthetic:1x8x8:4:45"
batch_size = 8
test_batch_size = 4
[optimizer]
lr = 0.01
"""


def torchrun(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "equalbits", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_epoch(out: Path, launcher: subprocess.Popen[str] | ForkedPython, epoch: int) -> None:
    path = out / "last.safetensors"
    while not path.exists() or load_checkpoint(path)[1]["epoch"] < epoch:
        assert launcher.poll() is None, launcher.communicate()
        time.sleep(0.005)


def assert_same_end(out: Path, whole: Path) -> None:
    (mine, facts), (theirs, expected) = (load_checkpoint(path / "last.safetensors") for path in (out, whole))
    assert sorted(mine) == sorted(theirs)
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-5, msg=name)
    assert len(facts["history"]) == 12
    for record, other in zip(facts["history"], expected["history"], strict=True):
        assert record["train"]["total"] == 45
        assert record["test"]["total"] == 11
        assert record["train"]["loss_sum"] == pytest.approx(other["train"]["loss_sum"], rel=1e-4)
        assert record["test"]["loss_sum"] == pytest.approx(other["test"]["loss_sum"], rel=1e-4)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "own.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def whole(recipe: Path, tmp_path_factory) -> Path:
    """The same run in one process."""
    out = tmp_path_factory.mktemp("whole")
    assert main(["train", str(recipe), "--out", str(out), "--device", "cpu"]) == 0
    return out


@pytest.mark.ddp
def test_two_processes_stop_together_and_resume_to_the_result_of_one(recipe: Path, whole: Path, tmp_path) -> None:
    out = tmp_path / "a"
    started = torchrun("train", str(recipe), "--out", str(out), "--device", "cpu")
    wait_for_epoch(out, started, 2)
    started.send_signal(signal.SIGTERM)
    printed, errors = started.communicate(timeout=120)
    assert started.returncode != 0
    assert printed == ""
    assert errors.count("equalbits train: stopped by SIGTERM; everything up to this step is in") == 1
    again = errors.split("resume with: ")[1].splitlines()[0]
    assert again == f"torchrun --nproc-per-node 2 -m equalbits train --resume {out} --device cpu"

    resumed = start_ranks("-m", *shlex.split(again)[4:], "--json")
    (printed, errors), (silence, _) = [rank.communicate(timeout=240) for rank in resumed]
    assert [rank.returncode for rank in resumed] == [0, 0], errors
    assert silence == ""
    facts = json.loads(printed)  # one process speaks
    assert (facts["processes"], facts["command"]) == (2, f"{again} --json")
    assert_same_end(out, whole)


@pytest.mark.ddp
def test_a_killed_process_ends_its_peers_with_one_line_and_one_process_can_resume(
    recipe: Path, whole: Path, tmp_path, capsys
) -> None:
    out = tmp_path / "a"
    started, killed = start_ranks("-m", "equalbits", "train", recipe, "--out", out, "--device", "cpu")
    wait_for_epoch(out, started, 1)
    killed.send_signal(signal.SIGKILL)
    _, errors = started.communicate(timeout=120)
    assert started.returncode != 0
    (line,) = [line for line in errors.splitlines() if line.startswith("equalbits train")]
    assert line.startswith("equalbits train (process 0): another process of this run has ended or does not answer (")
    assert line.endswith(f"; the last checkpoint is {out / 'last.safetensors'}: resume with the same command")
    assert main(["train", "--resume", str(out), "--device", "cpu"]) == 0
    assert_same_end(out, whole)
