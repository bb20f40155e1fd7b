"""A sweep trains every combination once, alone or stacked, and counts what it finds."""

import itertools
import json
import os
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_recipe import own, sweep

from equalbits.recipes import DivergedError, evaluate_run, get_recipe, load_run, run_recipe
from equalbits.recipes.experiments.run_store import RunStore, cases_of
from equalbits.recipes.experiments.scheduler import make_stacks
from equalbits.training import CheckpointError, InterruptedTraining, load_checkpoint, save_checkpoint
from equalbits.training.checkpoint_file import WEIGHTS

METHODS = {"model.weight_quantizer": ["sign", "bihalf:p_pos=0.25"]}


def test_every_combination_has_a_folder_of_its_own() -> None:
    cases = cases_of(own(), {**METHODS, "optimizer.lr": [0.1, 0.2]})
    assert [case.name for case in cases] == [
        "sign_0.1", "sign_0.2", "bihalf-p_pos=0.25_0.1", "bihalf-p_pos=0.25_0.2",
    ]  # fmt: skip
    assert cases[3].recipe.train.optimizer.lr == 0.2
    with pytest.raises(ValueError, match="two combinations would share the folder 'a-b'"):
        cases_of(own(), {"about": ["a/b", "a:b"]})


@pytest.mark.parametrize("word", ["..", ".", " ", "a\nb", "a\\b", "ä" * 128])
def test_a_combination_that_can_name_no_folder_of_the_sweeps_is_refused(word: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot name a folder: vary plain words of 255 bytes at most"):
        sweep(own(), tmp_path / "sweep", vary={"about": ["plain", word]}, seeds=[0], device="cpu")
    assert not list(tmp_path.iterdir())


def test_a_stack_equals_single_runs_and_a_second_call_trains_nothing(tmp_path: Path) -> None:
    lines: list[str] = []
    alone = sweep(own(), tmp_path / "alone", vary=METHODS, seeds=[0, 5], device="cpu", log=lines.append)
    stacked = sweep(own(), tmp_path / "stack", vary=METHODS, seeds=[0, 5], stack=2, device="cpu")
    assert [(row.case, row.last, row.best) for row in alone] == [(row.case, row.last, row.best) for row in stacked]
    assert alone[0].mean == pytest.approx(statistics.fmean(alone[0].last))
    assert alone[0].spread == pytest.approx(statistics.stdev(alone[0].last))
    runs = [json.loads((tmp_path / way / "sign" / "seed5" / "run.json").read_text()) for way in ("alone", "stack")]
    assert runs[0]["last"]["train"] == runs[1]["last"]["train"]
    assert [run["seed"] for run in runs] == [5, 5]
    assert runs[1]["stacked_with"] == 2
    assert sum("done in" in line for line in lines) == 4
    lines.clear()
    again = sweep(own(), tmp_path / "alone", vary=METHODS, seeds=[0, 5], device="cpu", log=lines.append)
    assert again == alone
    assert not any("done in" in line for line in lines)


def test_a_stack_keeps_the_same_last_nets_as_single_runs(tmp_path: Path) -> None:
    for way, stack in (("alone", 1), ("stack", 4)):
        sweep(own(), tmp_path / way, vary=METHODS, seeds=[0, 5], stack=stack, device="cpu")
    for case in ("sign", "bihalf-p_pos=0.25"):
        alone, stacked = (tmp_path / way / case / "seed5" for way in ("alone", "stack"))
        nets = [load_run(folder).model.state_dict() for folder in (alone, stacked)]
        assert nets[0].keys() == nets[1].keys()
        assert all(torch.equal(nets[0][name], nets[1][name]) for name in nets[0])
        assert evaluate_run(stacked, device="cpu").correct == noted(stacked)["last"]["test"]["correct"]
        with pytest.raises(CheckpointError, match="in a stack, which keeps the last epoch only: use which='last'"):
            load_run(stacked, which="best")
        assert load_run(alone, which="best")


def test_a_net_of_a_stack_that_restarts_alone_leaves_no_trace_of_the_old_one(tmp_path: Path) -> None:
    sweep(own(), tmp_path / "stack", vary={}, seeds=[0, 5], stack=2, device="cpu")
    folder = next((tmp_path / "stack").glob("*/seed5"))
    recipe = load_run(folder).recipe
    (folder / WEIGHTS).write_bytes(b"not to be read any more")
    run_recipe(recipe, folder, device="cpu")
    assert not (folder / WEIGHTS).exists()
    assert evaluate_run(folder, device="cpu").correct == noted(folder)["last"]["test"]["correct"]


def noted(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


def grouped(tmp_path: Path, stack: int, vary) -> list[list[tuple[str, int]]]:
    runs = [run for case in cases_of(own(), vary) for run in case.runs([0, 5])]
    return [[(run.case, run.seed) for run in group] for group in make_stacks(RunStore(tmp_path), runs, stack)]


def test_seeds_of_compatible_cases_share_a_stack(tmp_path: Path) -> None:
    rates = {"optimizer.lr": [0.1, 0.2, 0.3]}
    first, second = [("0.1", 0), ("0.1", 5), ("0.2", 0)], [("0.2", 5), ("0.3", 0), ("0.3", 5)]
    assert grouped(tmp_path, 3, rates) == [first, second]
    assert grouped(tmp_path, 99, {"data.batch_size": [8, 12]}) == [[("8", 0), ("8", 5)], [("12", 0), ("12", 5)]]
    many = grouped(tmp_path, 99, {"optimizer.lr": [number / 100 for number in range(1, 13)]})
    assert [len({case for case, _ in group}) for group in many] == [8, 4]


def test_runs_that_may_share_a_stack_are_grouped(tmp_path: Path) -> None:
    groups = grouped(tmp_path, 4, {"optimizer.lr": [0.1, 0.2], "data.erase": [0, 2]})
    assert groups == [
        [("0.1_0", 0), ("0.1_0", 5), ("0.2_0", 0), ("0.2_0", 5)],
        [("0.1_2", 0), ("0.1_2", 5), ("0.2_2", 0), ("0.2_2", 5)],
    ]


def test_a_stack_of_several_settings_equals_single_runs(tmp_path: Path) -> None:
    vary = {**METHODS, "optimizer.lr": [0.1, 0.02]}
    alone = sweep(own(), tmp_path / "alone", vary=vary, seeds=[0], device="cpu")
    stacked = sweep(own(), tmp_path / "stack", vary=vary, seeds=[0], stack=4, device="cpu")
    assert [(row.case, row.last) for row in alone] == [(row.case, row.last) for row in stacked]
    for case in ("sign_0.1", "bihalf-p_pos=0.25_0.02"):
        runs = [json.loads((tmp_path / way / case / "seed0" / "run.json").read_text()) for way in ("alone", "stack")]
        assert runs[0]["last"]["train"] == runs[1]["last"]["train"] and runs[1]["stacked_with"] == 4


def test_a_run_that_diverges_is_named_and_the_others_of_its_stack_are_kept(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"^1e\+30 seed 0: ") as caught:
        sweep(own(), tmp_path, vary={"optimizer.lr": [0.1, 1e30]}, seeds=[0], stack=4, device="cpu")
    assert [(run.case, run.seed) for run in caught.value.runs] == [("1e+30", 0)]
    assert noted(tmp_path / "0.1" / "seed0")["status"] == "finished"
    assert noted(tmp_path / "1e+30" / "seed0")["status"] == "diverged"


@pytest.mark.parametrize("stack", [1, 2])
def test_runs_that_diverge_are_named_at_the_end_and_stop_no_other(stack: int, tmp_path: Path) -> None:
    lines: list[str] = []
    vary = {"optimizer.lr": [1e30, 0.1, 0.02]}
    for _ in range(2):  # a diverged run is not trained again, and named again
        with pytest.raises(DivergedError, match=r"^1e\+30 seed 0, 1e\+30 seed 1: .*non-finite weights at step "):
            sweep(own(), tmp_path, vary=vary, seeds=[0, 1], stack=stack, device="cpu", log=lines.append)
    paths = [path for path in tmp_path.glob("*/*/run.json") if noted(path.parent)["status"] == "finished"]
    done = {f"{path.parent.parent.name} {path.parent.name}" for path in paths}
    assert sum("done in" in line for line in lines) == 4 // stack
    assert done == {f"{lr} seed{seed}" for lr in (0.1, 0.02) for seed in (0, 1)}
    assert [case["name"] for case in json.loads((tmp_path / "sweep.json").read_text())["cases"]] == ["0.02", "0.1"]
    assert [line for line in lines if line.startswith("0.1: ") and "n=2" in line]


def test_a_sweep_whose_runs_all_diverge_is_an_error_and_leaves_no_table(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"^own seed 0: "):
        sweep(own(**{"optimizer.lr": 1e30}), tmp_path / "a", vary={}, seeds=[0], device="cpu")
    assert not (tmp_path / "a" / "sweep.json").exists()


def test_an_interrupted_stack_resumes(tmp_path: Path) -> None:
    def stop(record: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    vary = {"optimizer.lr": [0.1, 0.02]}
    alone = sweep(own(), tmp_path / "alone", vary=vary, seeds=[0], device="cpu")
    stacked = {"vary": vary, "seeds": [0], "stack": 2, "device": "cpu"}
    with pytest.raises(InterruptedTraining, match=r"everything up to this step is in .*stack-\w+\.safetensors"):
        sweep(own(), tmp_path / "stack", reporters_for=lambda name: [stop], **stacked)
    assert len(list((tmp_path / "stack").glob("stack-*.safetensors"))) == 1
    reported: list = []
    again = sweep(own(), tmp_path / "stack", reporters_for=lambda name: [reported.append], **stacked)
    assert [record.epoch for record in reported] == [2]
    assert [(row.case, row.last) for row in again] == [(row.case, row.last) for row in alone]
    assert not list((tmp_path / "stack").glob("stack-*"))


def test_the_seconds_of_a_stack_include_earlier_calls_and_depend_on_no_clock(tmp_path, monkeypatch) -> None:
    def stop(record: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    stacked = {"vary": {}, "seeds": [0, 1], "stack": 2, "device": "cpu"}
    with pytest.raises(InterruptedTraining):
        sweep(own(), tmp_path, reporters_for=lambda name: [stop], **stacked)
    (path,) = tmp_path.glob("stack-*.safetensors")
    tensors, facts = load_checkpoint(path)
    for net in facts["stack"].values():
        net["history"][0]["seconds"] = 5000.0
    save_checkpoint(path, tensors, facts)
    days = itertools.count(step=86400.0)
    monkeypatch.setattr(time, "time", lambda: next(days))
    sweep(own(), tmp_path, **stacked)
    taken = [json.loads(path.read_text())["seconds"] for path in tmp_path.glob("own/seed*/run.json")]
    assert len(taken) == 2 and all(5000 <= seconds < 5060 for seconds in taken)  # rounded; a step takes a few ms


def test_a_stack_whose_results_do_not_all_fit_on_the_disk_keeps_none_and_resumes(tmp_path: Path) -> None:
    recipe, stacked = own(checkpoint_seconds=0.0), {"vary": {}, "seeds": [0, 1], "stack": 2, "device": "cpu"}
    in_the_way = tmp_path / "own" / "seed1" / f".run.json.{os.getpid()}.partial"
    in_the_way.mkdir(parents=True)
    with pytest.raises(IsADirectoryError, match=r"seed1/run\.json"):
        sweep(recipe, tmp_path, **stacked)
    assert not list(tmp_path.rglob("run.json"))
    in_the_way.rmdir()
    reported: list = []
    (row,) = sweep(recipe, tmp_path, reporters_for=lambda name: [reported.append], **stacked)
    assert [record.epoch for record in reported] == [2]  # whose last step was saved
    assert row.last == sweep(own(), tmp_path / "whole", **stacked)[0].last


def test_an_interrupted_stack_does_not_resume_with_other_settings(tmp_path: Path) -> None:
    def stop(record: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    stacked = {"vary": {}, "seeds": [0, 1], "stack": 2, "device": "cpu"}
    with pytest.raises(InterruptedTraining):
        sweep(own(), tmp_path / "stopped", reporters_for=lambda name: [stop], **stacked)
    other = own(**{"model.init": "kaiming"})
    fresh = sweep(other, tmp_path / "fresh", **stacked)
    assert [row.last for row in sweep(other, tmp_path / "stopped", **stacked)] == [row.last for row in fresh]
    runs = [json.loads((tmp_path / name / "own" / "seed0" / "run.json").read_text()) for name in ("stopped", "fresh")]
    assert runs[0]["last"]["train"] == runs[1]["last"]["train"]


def test_results_of_other_settings_are_not_reused(tmp_path: Path) -> None:
    sweep(own(epochs=1), tmp_path, vary={}, seeds=[0], stack=2, device="cpu")
    with pytest.raises(CheckpointError, match="holds a run with epochs=1, this one has epochs=2"):
        sweep(own(), tmp_path, vary={}, seeds=[0], stack=2, device="cpu")


def test_one_seed_has_no_spread_and_no_seed_is_refused(tmp_path: Path) -> None:
    (row,) = sweep(own(epochs=1), tmp_path, vary={}, seeds=[3, 3], device="cpu")
    assert row.spread is None
    assert row.seeds == (3,)
    assert "±" not in str(row)
    with pytest.raises(ValueError, match="there is no seed to train with"):
        sweep(own(), tmp_path, vary={}, seeds=[], device="cpu")


def test_an_unknown_method_is_refused_before_any_is_trained(tmp_path):
    recipe = get_recipe("fashion-conv2")
    with pytest.raises(ValueError, match="did you mean 'bihalf'"):
        sweep(recipe, tmp_path, vary={"model.weight_quantizer": ["sign", "bihlaf"]}, seeds=[0], device="cpu")
    assert not list(tmp_path.iterdir())


def test_a_sweep_is_refused_in_several_processes(tmp_path: Path, monkeypatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="a sweep runs in one process: start it without torchrun"):
        sweep(own(), tmp_path, vary={}, seeds=[0], device="cpu")


def without(*names: str, **changed: object) -> Callable[[dict], str]:
    """Text of a run.json without some entries, and with other values."""
    return lambda run: json.dumps({**{name: run[name] for name in run if name not in names}, **changed})


DAMAGES = [without("last"), without("seconds"), without(last=None), without(device=None), lambda _: '{"recipe": ']


@pytest.mark.parametrize("damaged", DAMAGES)
def test_a_damaged_result_of_this_or_an_earlier_sweep_is_named(damaged, tmp_path: Path) -> None:
    recipe, shared = own(epochs=1), {"seeds": [0], "device": "cpu"}
    sweep(recipe, tmp_path, vary={"model.weight_quantizer": ["sign"]}, **shared)
    path = tmp_path / "sign" / "seed0" / "run.json"
    path.write_text(damaged(json.loads(path.read_text())))
    for method in ("sign", "bihalf"):
        with pytest.raises(CheckpointError, match=r"sign/seed0/run\.json is not the record of a run \(.+\): delete it"):
            sweep(recipe, tmp_path, vary={"model.weight_quantizer": [method]}, **shared)
    path.unlink()
    assert len(sweep(recipe, tmp_path, vary={"model.weight_quantizer": ["sign", "bihalf"]}, **shared)) == 2


def test_runs_share_a_teacher_only_on_the_same_images(tmp_path: Path) -> None:
    recipe = own(**{"distill.weight": 0.5, "distill.teacher": "fashion-conv2", "epochs": 1})
    vary = {"data.limit": [8, 16], "optimizer.lr": [0.1, 0.2]}
    sweep(recipe, tmp_path / "sweep", vary=vary, seeds=[0], device="cpu")
    teachers = (load_run(path.parent).recipe for path in tmp_path.glob("sweep/teachers/*/run.json"))
    assert sorted(teacher.data.limit for teacher in teachers) == [8, 16]
