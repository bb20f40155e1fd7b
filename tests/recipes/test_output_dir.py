"""Two jobs never write to one directory: the second is refused, and that of a killed job is taken over."""

import errno
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
from forked import ForkedPython
from small_recipe import own, sweep

from equalbits._files import LockLostError, write_atomically
from equalbits.recipes import RunRecord, run_recipe
from equalbits.recipes.output_dir import DirInUseError, lock_dir
from equalbits.training import EpochRecord, load_checkpoint

HOLDS = """
import signal, sys
from pathlib import Path
from equalbits.recipes.output_dir import lock_dir

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
out, sys.argv = Path(sys.argv[1]), ["equalbits", "sweep", "own"]
with lock_dir(out):
    print("held", flush=True)
    signal.sigwait([signal.SIGTERM])
"""

RECIPE = own(epochs=1)


def test_partial_files_of_a_kill_are_removed_at_the_next_use_of_the_directory(tmp_path) -> None:
    half = tmp_path / ".result.json.4242.partial"
    half.write_text("{")
    with lock_dir(tmp_path):
        assert not half.exists()
        half.write_text("{")
        with lock_dir(tmp_path):  # by the same job, which may be writing it
            assert half.exists()


def test_leftovers_that_cannot_be_removed_are_ignored(tmp_path) -> None:
    (tmp_path / ".result.json.4242.partial").mkdir()
    with lock_dir(tmp_path):
        (tmp_path / "result.json").write_text("{}")


@pytest.fixture
def another_job(tmp_path: Path):
    """A process that holds the folder until it is terminated."""
    process = ForkedPython("-c", HOLDS, tmp_path)
    while not process.stdout.exists() or process.stdout.read_text() != "held\n":
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    yield process
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_second_job_is_refused_in_one_line_until_the_first_has_ended(another_job, tmp_path) -> None:
    for job in (
        lambda: run_recipe(RECIPE, tmp_path, device="cpu"),
        lambda: sweep(RECIPE, tmp_path, vary={}, seeds=[0], device="cpu"),
    ):
        with pytest.raises(DirInUseError) as refused:
            job()
        line = str(refused.value)
        assert line.startswith(f"{tmp_path} is in use by process {another_job.pid} on ")
        assert line.endswith(" (equalbits sweep own): wait for it to end, or use another --out")
    another_job.send_signal(signal.SIGTERM)
    assert another_job.wait() == 0
    assert list(tmp_path.iterdir()) == []
    (row,) = sweep(RECIPE, tmp_path, vary={}, seeds=[0], device="cpu")
    assert row.seeds == (0,)
    assert not list(tmp_path.rglob(".lock"))


def test_the_directory_of_a_killed_job_is_taken_over(another_job, tmp_path) -> None:
    another_job.send_signal(signal.SIGKILL)
    another_job.wait()
    assert json.loads((tmp_path / ".lock").read_text())["process"] == another_job.pid
    with lock_dir(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["process"] == os.getpid()


def test_a_job_may_lock_its_directory_twice_but_not_in_two_threads(tmp_path: Path) -> None:
    found = []

    def other() -> None:
        try:
            with lock_dir(tmp_path):
                found.append("held")
        except DirInUseError as error:
            found.append(str(error))

    with lock_dir(tmp_path), lock_dir(tmp_path):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert "in use by another thread of this process" in found[0]
    other()
    assert found[1] == "held"


def test_a_folder_is_free_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), lock_dir(tmp_path):
        raise KeyError
    with lock_dir(tmp_path):
        pass
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="file is a file: name a folder"), lock_dir(tmp_path / "file"):
        pass


def test_a_full_disk_is_reported_with_the_file_and_leaves_no_lock(tmp_path: Path, monkeypatch) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*a/\.lock'"), lock_dir(tmp_path / "a"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_file_in_place_of_the_lock_stays_and_hides_no_error(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    with lock_dir(tmp_path):
        lock.unlink()
        lock.write_text("another's")
    assert lock.read_text() == "another's"
    with pytest.raises(KeyError), lock_dir(tmp_path):
        lock.unlink()
        lock.mkdir()  # that cannot be unlinked
        raise KeyError
    assert lock.is_dir()


def test_a_job_whose_directory_another_job_took_over_stops_writing(tmp_path: Path) -> None:
    """The directory must not mix run.json of one job with the weights of the other."""
    out, other = tmp_path / "a", own(epochs=1, seed=7)

    def begin_anew(record) -> None:
        if isinstance(record, EpochRecord) and not threading.current_thread().name.startswith("other"):
            shutil.rmtree(out)
            thread = threading.Thread(target=run_recipe, args=(other, out), kwargs={"device": "cpu"}, name="other")
            thread.start()
            thread.join()

    with pytest.raises(LockLostError, match=r"a was removed or taken over by another job.* is not written"):
        run_recipe(own(epochs=3), out, device="cpu", reporters=[begin_anew])
    assert RunRecord.read(out / "run.json").recipe == other
    assert load_checkpoint(out / "last.safetensors")[1]["config"]["seed"] == 7
    assert len((out / "history.jsonl").read_text().splitlines()) == 1
    assert len(list((out / "tensorboard").iterdir())) == 1


def test_a_lock_that_was_replaced_or_a_link_that_leads_elsewhere_stops_every_write_below_the_folder(tmp_path) -> None:
    link, first, second = (tmp_path / name for name in ("link", "first", "second"))
    first.mkdir(), second.mkdir()
    link.symlink_to(first)
    with lock_dir(link):
        write_atomically(link / "fine", b"1")
        link.unlink()
        link.symlink_to(second)
        for name in ("result.json", "seed0/run.json"):
            with pytest.raises(LockLostError):
                write_atomically(link / name, b"1")
        write_atomically(tmp_path / "elsewhere", b"1")
    assert list(second.iterdir()) == []
    write_atomically(second / "result.json", b"1")
