"""Interrupted stacks resume as they were, whatever stack size is asked for, and leave no temporary files."""

import json
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from forked import run
from small_recipe import compare, own, sweep

from equalbits.recipes import DivergedError, get_recipe
from equalbits.training import EpochRecord, InterruptedTraining, load_checkpoint

METHODS = {"model.weight_quantizer": ["sign", "bihalf"]}


def stop(record: object) -> None:
    signal.raise_signal(signal.SIGTERM)


def counted(out: Path) -> dict[str, list]:
    """Results of every run, epoch by epoch, without times."""
    found = {}
    for path in sorted(out.glob("*/seed*/history.jsonl")):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        found[str(path.relative_to(out))] = [(each["train"], each["test"]) for each in records]
        assert (path.parent / "run.json").exists()
    return found


def left_over(out: Path) -> list[str]:
    return [path.name for path in out.rglob("*") if path.name.startswith("stack-") or path.name.endswith(".partial")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, list]:
    out = tmp_path_factory.mktemp("whole")
    sweep(own(), out, vary=METHODS, seeds=[0, 1], stack=4, device="cpu")
    return counted(out)


def test_a_stack_that_is_refused_leaves_no_directory(tmp_path) -> None:
    two = {"seeds": [0, 1], "stack": 2, "device": "cpu"}
    with pytest.raises(ValueError, match="teacher"):
        sweep(own(**{"distill.weight": 1.0}), tmp_path / "sweep", vary={}, **two)
    with pytest.raises(ValueError, match="needs the model on a CUDA device"):
        compare(own(speed="captured"), tmp_path / "compare", methods=["sign"], **two)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("before", "after", "epochs"),
    [
        (4, 4, [[2]]),
        (4, 2, [[2]]),
        (4, 1, [[2]]),
        (2, 4, [[2], [1, 2]]),
        (3, 2, [[2], [1, 2]]),
        (3, 1, [[2], [1, 2]]),
        (2, 1, [[2], [1, 2], [1, 2]]),
        (1, 4, [[2], [1, 2]]),
    ],
)
def test_an_interrupted_stack_resumes_as_it_was_at_any_stack_size(before, after, epochs, undisturbed, tmp_path) -> None:
    four = {"vary": METHODS, "seeds": [0, 1], "device": "cpu"}
    with pytest.raises(InterruptedTraining):
        sweep(own(), tmp_path, stack=before, reporters_for=lambda name: [stop], **four)
    groups: list[list[int]] = []

    def listen(name: str):
        groups.append(ended := [])
        return [lambda record: ended.append(record.epoch) if isinstance(record, EpochRecord) else None]

    sweep(own(), tmp_path, stack=after, reporters_for=listen, **four)
    assert groups == epochs  # of each group's first net: the epoch that was trained is not trained again
    assert counted(tmp_path) == undisturbed and len(undisturbed) == 4
    assert left_over(tmp_path) == []


def test_nets_interrupted_repeatedly_with_other_stack_sizes_lose_nothing(undisturbed, tmp_path) -> None:
    trained: list[int] = []
    for stack in (4, 3, 2, 4, 1, 3, 4, 4):
        epochs: list[int] = []

        def stop_once(record, epochs=epochs) -> None:
            epochs.append(record.epoch)
            if len(epochs) == 1:
                stop(record)

        words = {"stack": stack, "reporters_for": lambda name, once=stop_once: [once]}
        with suppress(InterruptedTraining):
            sweep(own(), tmp_path, vary=METHODS, seeds=[0, 1], device="cpu", **words)
        trained += epochs
    assert counted(tmp_path) == undisturbed
    assert left_over(tmp_path) == [] and trained.count(1) == 1


def test_a_net_stopped_alone_does_not_leave_half_trained_weights_beside_its_result(tmp_path) -> None:
    words = {"vary": {}, "seeds": [0, 1], "device": "cpu"}
    with pytest.raises(InterruptedTraining):
        sweep(own(), tmp_path, reporters_for=lambda name: [stop], **words)
    sweep(own(), tmp_path, stack=2, **words)
    _, facts = load_checkpoint(tmp_path / "own" / "seed0" / "last.safetensors")
    assert facts["epoch"] == 2


def test_a_stack_resumes_after_a_net_of_an_earlier_one_diverged(tmp_path) -> None:
    words = {"vary": {"optimizer.lr": [1e30, 0.1]}, "seeds": [0, 1, 2], "stack": 2, "device": "cpu"}
    with pytest.raises(InterruptedTraining):
        sweep(own(), tmp_path, reporters_for=lambda name: [stop] if "0.1: seed 1" in name else [], **words)
    reported: dict[str, list[int]] = {}

    def listen(name: str):
        return [lambda record: reported.setdefault(name, []).append(record.epoch)]

    with pytest.raises(DivergedError):
        sweep(own(), tmp_path, reporters_for=listen, **words)
    assert reported == {"0.1: seed 1, first of 2 at once": [2]}
    assert left_over(tmp_path) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from equalbits.recipes import Execution, Recipe, sweep

whole = os.replace
if sys.argv[2] == "unlink":  # the last file is in its place, and what is saved of the stack is still there
    from equalbits.recipes.experiments import train_runs
    train_runs.remove_ended_stacks = lambda out: os.kill(os.getpid(), signal.SIGKILL)
def replace(old, new, **words):
    if str(new).endswith(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(old, new, **words)
os.replace = os.rename = replace
import pathlib
pathlib.Path.replace = lambda self, new: replace(self, new)
recipe = Recipe.from_dict({"name": "own", "epochs": 2, "checkpoint_seconds": 0.0,
    "model": {"name": "conv2", "options": {"width": 0.05}}, "data": {"name": "synthetic:1x8x8:4:24", "batch_size": 8}})
sweep(recipe, Path(sys.argv[1]), vary={"model.weight_quantizer": ["sign", "bihalf"]}, seeds=[0, 1],
    execution=Execution(stack=4, device="cpu"))
"""


@pytest.mark.parametrize("killed_at", ["sign/seed1/run.json", "bihalf/seed0/history.jsonl", "sweep.json", "unlink"])
def test_a_kill_while_a_stack_writes_results_costs_no_epoch_and_leaves_no_partial_files(
    killed_at, undisturbed, tmp_path
) -> None:
    done = run("-c", KILLED, tmp_path, killed_at)
    assert done.returncode == -signal.SIGKILL
    assert left_over(tmp_path)
    reported: list[int] = []

    def listen(name: str):
        return [lambda record: reported.append(record.epoch)]

    sweep(own(), tmp_path, vary=METHODS, seeds=[0, 1], stack=4, device="cpu", reporters_for=listen)
    assert counted(tmp_path) == undisturbed
    assert left_over(tmp_path) == [] and reported in ([2], [])  # whose last step was saved


COMPARED = get_recipe("fashion-compare").with_settings({
    "epochs": 2, "data.name": "synthetic:1x8x8:4:24", "data.batch_size": 8, "model.name": "conv2",
    "model.options.width": 0.05,
})  # fmt: skip


def test_tuning_killed_after_a_result_leaves_no_files_once_it_has_resumed(tmp_path, monkeypatch) -> None:
    recipe = COMPARED.with_settings({"checkpoint_seconds": 0})
    words = {"methods": ["sign"], "seeds": [0], "device": "cpu", "tune": [0.1]}

    def die(out: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("equalbits.recipes.experiments.train_runs.remove_ended_stacks", die)
        compare(recipe, tmp_path, **words)
    assert list(tmp_path.glob("tuning/*/sign/*/run.json")) and len(left_over(tmp_path)) == 2
    compare(recipe, tmp_path, **words)
    assert left_over(tmp_path) == []


def test_runs_of_an_interrupted_stack_start_over_where_only_some_are_asked_for(undisturbed, tmp_path) -> None:
    with pytest.raises(InterruptedTraining):
        sweep(own(), tmp_path, vary=METHODS, seeds=[0, 1], stack=4, device="cpu", reporters_for=lambda name: [stop])
    sweep(own(), tmp_path, vary=METHODS, seeds=[1], stack=4, device="cpu")
    assert counted(tmp_path) == {
        name: epochs for name, epochs in undisturbed.items() if name.endswith("seed1/history.jsonl")
    }
    sweep(own(), tmp_path, vary=METHODS, seeds=[0, 1], stack=4, device="cpu")
    assert counted(tmp_path) == undisturbed and left_over(tmp_path) == []


def test_a_comparison_resumes_with_another_stack_size(tmp_path) -> None:
    recipe = COMPARED
    words = {"methods": ["sign"], "seeds": [0, 1, 2], "device": "cpu"}
    whole = compare(recipe, tmp_path / "whole", stack=3, **words).rows[0]
    with pytest.raises(InterruptedTraining):
        compare(recipe, tmp_path / "out", stack=3, reporters_for=lambda name: [stop], **words)
    reported: list[int] = []
    again = compare(
        recipe, tmp_path / "out", stack=2, reporters_for=lambda name: [lambda r: reported.append(r.epoch)], **words
    ).rows[0]
    assert reported == [2]
    assert (again.correct, again.to_positive, again.entropy) == (whole.correct, whole.to_positive, whole.entropy)
    assert left_over(tmp_path / "out") == []
