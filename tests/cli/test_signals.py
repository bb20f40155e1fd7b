"""A run that receives a signal saves, prints how to resume, and exits with the code that shells expect."""

import itertools
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import ForkedPython, run

from equalbits.training import load_checkpoint
from equalbits.training.stop_signals import StopRequest

PACKED = Path(__file__).parents[1] / "golden" / "residual.ebits"
LONG = ["--set", "epochs=30", "--set", "checkpoint_seconds=0", "--device", "cpu"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def start(*words: object, **more: Any) -> ForkedPython:
    return ForkedPython("-m", "equalbits", *words, env=ENVIRONMENT, **more)


def test_sigterm_and_ctrl_c_save_and_print_how_to_resume(call, recipe: str, tmp_path: Path) -> None:
    numbers = (signal.SIGTERM, signal.SIGINT)
    runs = {number: start("train", recipe, "--out", tmp_path / number.name, *LONG) for number in numbers}
    waiting = dict(runs)
    while waiting:
        for number, process in list(waiting.items()):
            assert process.poll() is None, process.communicate()
            if (tmp_path / number.name / "last.safetensors").exists():
                waiting.pop(number).send_signal(number)
        time.sleep(0.002)
    whole = tmp_path / "whole"
    assert call("train", recipe, "--out", whole, *LONG)[0] == 0
    for number, process in runs.items():
        out = tmp_path / number.name
        printed, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + number
        assert printed == ""
        stopped, resume = errors.splitlines()[-2:]
        last = out / "last.safetensors"
        assert stopped == f"equalbits train: stopped by {number.name}; everything up to this step is in {last}"
        assert resume == f"resume with: equalbits train --resume {out} --device cpu"
        assert not (out / "run.json").exists()
        assert load_checkpoint(last)[1]["epoch"] < 30

        program, *words = shlex.split(resume.removeprefix("resume with: "))
        assert program == "equalbits"
        assert call(*words)[0] == 0
        assert len((out / "history.jsonl").read_text().splitlines()) == 30
        mine, theirs = load_checkpoint(last)[0], load_checkpoint(whole / "last.safetensors")[0]
        assert all(torch.equal(mine[name], tensor) for name, tensor in theirs.items())


def test_a_run_continues_after_its_terminal_closes_without_a_signal(recipe: str, tmp_path: Path) -> None:
    ours, its = os.openpty()  # a session without a controlling terminal gets no SIGHUP, as one that was disowned
    words = ["train", recipe, "--out", tmp_path / "a", "--device", "cpu", "--set", "epochs=100"]
    process = start(*words, start_new_session=True, terminal=os.ttyname(its))
    assert os.read(ours, 1)  # the bar begins; the end is far, for a terminal that nobody reads holds a few lines
    os.close(its)
    os.close(ours)
    assert process.wait(timeout=120) == 0
    assert len((tmp_path / "a" / "history.jsonl").read_text().splitlines()) == 100


def train_on_pictures(tmp_path: Path) -> subprocess.Popen[str]:
    """A long run into tmp_path/a with a decoding worker; it has saved once."""
    from PIL import Image

    for split, number in ((split, number) for split in ("train", "test") for number in range(12)):
        folder = tmp_path / split / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64), (20 * number, 9, 9)).save(folder / f"{number}.png")
    (tmp_path / "own.toml").write_text(
        'epochs = 500\ncheckpoint_seconds = 0\n[model]\nname = "conv2"\noptions = {width = 0.05}\n'
        '[data]\nname = "imagefolder"\nbatch_size = 4\nworkers = 1\nresize = 40\ncrop = 32\n'
    )
    out = tmp_path / "a"
    words = ["train", tmp_path / "own.toml", "--out", out, "--data", tmp_path, "--device", "cpu"]
    command = [sys.executable, "-m", "equalbits", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env=ENVIRONMENT, text=True, start_new_session=True, **pipes)
    while not (out / "last.safetensors").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    return process


def assert_stopped(process: subprocess.Popen[str], number: int, tmp_path: Path) -> None:
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    assert f"resume with: equalbits train --resume {tmp_path / 'a'} --data {tmp_path} --device cpu" in errors


def test_ctrl_c_that_reaches_the_decoding_workers_does_no_harm(tmp_path: Path) -> None:
    process = train_on_pictures(tmp_path)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
    assert_stopped(process, signal.SIGINT, tmp_path)


def test_a_terminated_process_group_saves_even_without_its_workers(tmp_path: Path) -> None:
    process = train_on_pictures(tmp_path)
    os.killpg(process.pid, signal.SIGSTOP)
    process.send_signal(signal.SIGCONT)  # its workers still lie there, so that it will wait for a batch
    last, saved = tmp_path / "a" / "last.safetensors", 0
    while saved != (saved := last.stat().st_mtime_ns):
        time.sleep(0.7)
    os.killpg(process.pid, signal.SIGTERM)  # as timeout, systemd and batch systems do
    os.killpg(process.pid, signal.SIGCONT)
    assert_stopped(process, signal.SIGTERM, tmp_path)
    assert last.stat().st_mtime_ns > saved


STUCK = """
import sys, time, torch
from torch import nn
from equalbits.training import TrainConfig, train

class Stuck:
    def __len__(self): return 2
    def __iter__(self):
        yield torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)
        print("stuck", flush=True)
        while True:
            time.sleep(0.01)

train(nn.Linear(3, 2), Stuck(), TrainConfig(epochs=1), out=sys.argv[1])
"""


TOLD_TWICE = """
import signal, sys, torch
from torch import nn
from equalbits.training import InterruptedTraining, TrainConfig, train

def end(model, step):
    for number in map(int, sys.argv[2:] if step else ()):
        signal.raise_signal(number)

signal.signal(signal.SIGHUP, signal.SIG_DFL)
try:
    batches = [(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))] * 2
    train(nn.Linear(3, 2), batches, TrainConfig(epochs=1), watchers=[end], out=sys.argv[1])
except InterruptedTraining as stopped:
    print(str(stopped).partition(";")[0])
"""


def test_a_second_signal_kills_at_once(tmp_path: Path) -> None:
    process = ForkedPython("-c", STUCK, tmp_path, env=ENVIRONMENT)
    while not process.stdout.exists() or process.stdout.read_text() != "stuck\n":
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None  # it waits for the step to end, which it never does
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == -signal.SIGTERM


def test_a_repeated_signal_within_moments_counts_once() -> None:
    request = StopRequest()
    request(signal.SIGTERM, None)
    request(signal.SIGTERM, None)  # as from timeout, which tells a process and then all of its group
    assert request.signal_number == signal.SIGTERM


@pytest.mark.parametrize("numbers", list(itertools.permutations((signal.SIGTERM, signal.SIGHUP))))
def test_two_signals_at_the_end_of_a_session_save_once(numbers: list[int], tmp_path: Path) -> None:
    """Both signals as systemd sends them to a session; Python receives them in either order."""
    done = run("-c", TOLD_TWICE, tmp_path, *map(int, numbers), env=ENVIRONMENT)
    assert (done.returncode, done.stdout) == (0, f"stopped by {numbers[0].name}\n"), done
    assert load_checkpoint(tmp_path / "last.safetensors")[1]["batch"] == 1


def test_two_signals_from_torchrun_count_once(monkeypatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    request = StopRequest()
    request(signal.SIGINT, None)
    request(signal.SIGTERM, None)
    assert request.signal_number == signal.SIGINT


def test_ctrl_c_outside_of_training_exits_with_130(tmp_path: Path) -> None:
    waits = tmp_path / "own.toml"
    os.mkfifo(waits)
    process = start("list", "--show", waits)
    with waits.open("w"):  # opens when the command does, which then waits for something to read
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=60)
    assert (process.returncode, printed, errors) == (130, "", "equalbits list: interrupted\n")


def test_a_closed_pipe_is_not_an_error() -> None:
    command = f"{sys.executable} -m equalbits inspect {PACKED} --json | head -c 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{", "")


def test_an_interrupted_comparison_resumes_by_the_same_command(call, recipe: str, tmp_path: Path) -> None:
    out = tmp_path / "c"
    words = ["compare", recipe, "--out", out, "--methods", "sign", "--seeds", "0", *LONG]
    process = start(*words)
    while not (saved := list(out.glob("stack-*.safetensors"))):
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=60)
    assert (process.returncode, printed) == (130, "")
    assert errors.splitlines()[-2:] == [
        f"equalbits compare: stopped by SIGINT; everything up to this step is in {saved[0]}",
        "run the same command to resume",
    ]
    done = load_checkpoint(saved[0])[1]["stack"]["0"]["epoch"]
    assert done < 30
    code, _, stderr = call(*words)
    assert code == 0
    assert f"epoch {done + 1:>3}  " in stderr and f"epoch {done:>3}  " not in stderr
    assert not list(out.glob("stack-*"))


def test_an_interrupted_sweep_resumes_by_the_same_command(call, recipe: str, tmp_path: Path) -> None:
    words = ["sweep", recipe, "--out", tmp_path / "s", "--seeds", "0-1", *LONG]
    process = start(*words)
    last = tmp_path / "s" / "own" / "seed0" / "last.safetensors"
    while not last.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    printed, errors = process.communicate(timeout=60)
    assert (process.returncode, printed) == (143, "")
    assert errors.splitlines()[-2:] == [
        f"equalbits sweep: stopped by SIGTERM; everything up to this step is in {last}",
        "run the same command to resume",
    ]
    done = load_checkpoint(last)[1]["epoch"]
    assert done < 30
    code, printed, stderr = call(*words)
    assert code == 0
    assert f"epoch {done + 1:>3}  " in stderr and f"epoch {done:>3}  " not in stderr.partition("seed 0 done")[0]
    assert printed.endswith("n=2)\n")


def test_a_distributed_process_runs_its_exit_handlers() -> None:
    """Otherwise its decoding workers stay, with a warning about leaked semaphores."""
    program = (
        "import atexit, runpy, sys\n"
        "atexit.register(print, 'ended')\n"
        "sys.argv = ['equalbits', 'list']\n"
        "runpy.run_module('equalbits', run_name='__main__')\n"
    )
    settings = os.environ | {"WORLD_SIZE": "2", "RANK": "0"}
    done = run("-c", program, env=settings)
    assert done.returncode == 0 and done.stdout.endswith("ended\n"), done.stderr
