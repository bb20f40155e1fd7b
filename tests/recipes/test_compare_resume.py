"""A comparison that is interrupted or killed resumes with the same results."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from small_recipe import compare

from equalbits.recipes import Comparison, Recipe, get_recipe
from equalbits.recipes.bit_measurements import BitMeasurements
from equalbits.recipes.build import DataSpec, make_with_common_start
from equalbits.recipes.experiments.compared_methods import list_methods
from equalbits.training import EpochRecord, InterruptedTraining

BLINK = get_recipe("fashion-compare").with_settings({
    "epochs": 3, "data.name": "synthetic:1x8x8:4:24", "data.batch_size": 8, "model.name": "conv2",
    "model.options.width": 0.05,
})  # fmt: skip
IMAGES = DataSpec(tuple("0123"), 1, 8, (0.5,), (0.5,))


def interrupted_and_resumed(out: Path, recipe: Recipe, **words) -> tuple[Comparison, list[int]]:
    """A comparison interrupted at the end of every net's first epoch; returns the epochs it took."""
    reported: list[int] = []

    def stop(record: EpochRecord) -> None:
        reported.append(record.epoch)
        if record.epoch == 1:
            signal.raise_signal(signal.SIGTERM)

    while True:
        try:
            return compare(recipe, out, device="cpu", reporters_for=lambda method: [stop], **words), reported
        except InterruptedTraining:
            assert len(list(out.glob("**/stack-*.safetensors"))) == 1


def counted(out: Path) -> dict[Path, dict]:
    """Results of all runs of a comparison, without times."""
    runs = {path.relative_to(out): json.loads(path.read_text()) for path in out.glob("**/run.json")}
    for run in runs.values():
        for record in (run["last"], run["best"], run["measured"]):
            record.pop("seconds", None)
        run.pop("seconds")
    return runs


@pytest.mark.parametrize("stack", [1, 2])
def test_an_interrupted_net_resumes_with_the_same_counts(stack, tmp_path) -> None:
    words = {"methods": ["sign", "real"], "seeds": [0, 1], "stack": stack}
    whole, out = compare(BLINK, tmp_path / "whole", device="cpu", **words), tmp_path / "stopped"
    again, reported = interrupted_and_resumed(out, BLINK, **words)
    assert reported == [1, 2, 3] * (4 // stack)  # no epoch twice
    assert counted(out) == counted(tmp_path / "whole")
    assert [row.correct for row in again.rows] == [row.correct for row in whole.rows]
    assert not list(out.glob("**/stack-*"))


@pytest.mark.parametrize("method", list_methods())
def test_every_method_can_be_interrupted_and_resumed(method, tmp_path) -> None:
    compare(BLINK, tmp_path / "whole", methods=[method], seeds=[0], device="cpu")
    interrupted_and_resumed(tmp_path / "stopped", BLINK, methods=[method], seeds=[0])
    assert counted(tmp_path / "stopped") == counted(tmp_path / "whole")


def test_a_killed_net_resumes_from_its_last_checkpoint_and_counts_no_epoch_twice(tmp_path) -> None:
    def die(record: EpochRecord) -> None:
        if record.epoch == 2:
            raise OSError("the disk is gone")

    recipe, words = BLINK.with_settings({"checkpoint_seconds": 0}), {"methods": ["sign"], "seeds": [0], "device": "cpu"}
    compare(recipe, tmp_path / "whole", **words)
    with pytest.raises(OSError, match="the disk is gone"):
        compare(recipe, tmp_path / "died", reporters_for=lambda method: [die], **words)
    reported: list = []
    compare(recipe, tmp_path / "died", reporters_for=lambda method: [reported.append], **words)
    assert [record.epoch for record in reported] == [2, 3]
    assert counted(tmp_path / "died") == counted(tmp_path / "whole")


def test_the_seconds_before_an_interruption_count_and_those_between_do_not(tmp_path, monkeypatch) -> None:
    look, clock = BitMeasurements(make_with_common_start(BLINK, IMAGES)), iter((100.0, 1000.0, 1007.0))
    look.began = 95.0
    monkeypatch.setattr("equalbits.recipes.bit_measurements.time.perf_counter", lambda: next(clock))
    look.load_state_dict(look.state_dict())
    assert look.seconds == 12.0


def test_a_net_that_leaves_a_stack_keeps_its_share_of_the_seconds(tmp_path, monkeypatch) -> None:
    began, ahead = time.perf_counter, [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: began() + ahead[0])

    def stop(record: EpochRecord) -> None:
        ahead[0] += 3000
        signal.raise_signal(signal.SIGTERM)

    words = {"methods": ["sign"], "seeds": [0, 1, 2], "device": "cpu"}
    with pytest.raises(InterruptedTraining):
        compare(BLINK, tmp_path, stack=3, reporters_for=lambda method: [stop], **words)
    row = compare(BLINK, tmp_path, stack=1, **words).rows[0]
    assert [round(seconds, -2) for seconds in row.seconds] == [1000, 1000, 1000]


def test_seeds_whose_results_do_not_all_fit_on_the_disk_leave_none_and_resume(tmp_path) -> None:
    recipe = BLINK.with_settings({"checkpoint_seconds": 0})
    words = {"methods": ["sign"], "seeds": [0, 1], "stack": 2, "device": "cpu"}
    compare(recipe, tmp_path / "whole", **words)
    in_the_way = tmp_path / "sign" / "seed1" / f".run.json.{os.getpid()}.partial"
    in_the_way.mkdir(parents=True)
    with pytest.raises(IsADirectoryError, match=r"seed1/run\.json"):
        compare(recipe, tmp_path, **words)
    assert not list(tmp_path.glob("sign/*/run.json"))
    in_the_way.rmdir()
    reported: list = []
    compare(recipe, tmp_path, reporters_for=lambda method: [reported.append], **words)
    assert [record.epoch for record in reported] == [3]  # whose last step was saved
    assert counted(tmp_path / "sign") == counted(tmp_path / "whole" / "sign")


def test_a_record_without_measurements_is_trained_again(tmp_path) -> None:
    words = {"methods": ["sign"], "seeds": [0], "device": "cpu"}
    whole = compare(BLINK, tmp_path, **words).rows[0]
    path = tmp_path / "sign" / "seed0" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "measured": None}))
    assert compare(BLINK, tmp_path, **words).rows[0].correct == whole.correct
    assert json.loads(path.read_text())["measured"]
