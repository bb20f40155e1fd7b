"""SIGKILL at random moments: files on the disk are whole, and the resumed run ends with the same bits."""

import json
import multiprocessing
import random
import signal
import time
from pathlib import Path

import torch

from equalbits.cli import main
from equalbits.training import load_checkpoint

KILLS = 8
# VGG has dropout and batch norm; SGD has momentum; 5 batches an epoch, the last one smaller.
WORDS = [
    "--set", "epochs=12", "--set", "checkpoint_seconds=0", "--set", "schedule.per=step", "--device", "cpu", "--json",
]  # fmt: skip
RECIPE = """
epochs = 1
[model]
name = "vgg16"
options = {width = 0.03125, dropout = 0.3}
[data]
name = "synthetic:1x32x32:4:18"
batch_size = 4
[optimizer]
lr = 0.01
[schedule]
per = "epoch"
"""


def start(words: list[str]) -> multiprocessing.Process:
    """A training process, forked from one that has imported everything already."""
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=main, args=(words,))
    process.start()
    return process


def saved(path: Path) -> tuple[int, int] | None:
    """Inode and time of the file at the path; None if it is missing."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def kill_after(process: multiprocessing.Process, path: Path, *, saves: int, delay: float) -> bool:
    """Kill a process shortly after it has saved ``saves`` times; False if it ended before."""
    known = saved(path)
    while saves and process.is_alive():
        if saved(path) != known:
            known, saves = saved(path), saves - 1
        time.sleep(0.0005)
    time.sleep(delay)
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def test_a_run_killed_again_and_again_ends_with_the_same_bits(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    recipe = tmp_path / "own.toml"
    recipe.write_text(RECIPE)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(["train", str(recipe), "--out", str(whole), *WORDS]) == 0

    chance, places = random.Random(7), []
    for _ in range(KILLS):
        process = start(["train", str(recipe), "--out", str(parts), *WORDS])
        last = parts / "last.safetensors"
        assert kill_after(process, last, saves=chance.randint(1, 2), delay=chance.uniform(0, 0.03)), "it finished early"
        _, facts = load_checkpoint(last)  # never torn
        places.append((facts["epoch"], facts["batch"]))
        assert not (parts / "run.json").exists()
    assert len(set(places)) == KILLS and places == sorted(places)
    assert any(batch not in (0, 5) for _, batch in places)  # inside an epoch

    (parts / ".last.safetensors.1.partial").write_bytes(b"half a file")
    process = start(["train", str(recipe), "--out", str(parts), *WORDS])
    process.join()
    assert process.exitcode == 0
    mine, facts = load_checkpoint(parts / "last.safetensors")
    theirs, expected = load_checkpoint(whole / "last.safetensors")
    assert sorted(mine) == sorted(theirs)
    assert any(name.startswith("optimizer.") for name in mine)
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name
    without_seconds = [[{**r, "seconds": 0} for r in some["history"]] for some in (facts, expected)]
    assert without_seconds[0] == without_seconds[1]
    lines = [json.loads(line) for line in (parts / "history.jsonl").read_text().splitlines()]
    assert [{**line, "seconds": 0} for line in lines] == without_seconds[1]
    assert not list(parts.glob(".*.partial"))
    assert sorted(path.name for path in parts.iterdir()) == sorted(path.name for path in whole.iterdir())
