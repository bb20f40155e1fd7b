"""Runs of an item: divergence is recorded, and an invalid run is refused before others train."""

import json
import shutil
import signal
from dataclasses import replace

import pytest

from equalbits.data import DataError
from equalbits.paper import Options, reproduce
from equalbits.paper.claims import accuracies
from equalbits.paper.item_runs import Watch, item_cases, run_cases, run_watched
from equalbits.recipes import get_recipe
from equalbits.training import InterruptedTraining

NARROW = {"model.options.width": 0.05}


def swept(recipe, out, options, *, vary, seeds):
    return run_cases(out, {"all": item_cases(recipe, vary, options)}, replace(options, seeds=tuple(seeds)))["all"]


def test_a_run_that_diverges_is_recorded_and_the_others_continue(tmp_path, tiny):
    recipe = get_recipe("fashion-conv2").with_settings({"speed": "plain", "model.options.batch_norm": False})
    options = tiny({**NARROW, "epochs": 2})
    vary = {"optimizer.lr": [1e30, 0.1]}
    lines = []
    found = swept(recipe, tmp_path, Options(**{**vars(options), "log": lines.append}), vary=vary, seeds=[0])
    assert found[0]["runs"][0]["last"] is None and "diverged" in found[0]["runs"][0]
    assert len(accuracies(found[1])) == 1
    assert any("diverged" in line for line in lines)
    assert swept(recipe, tmp_path, options, vary=vary, seeds=[0]) == found


def test_a_run_that_diverges_in_a_stack_is_noted_and_the_others_are_not_trained_again(tmp_path, tiny):
    recipe = get_recipe("fashion-conv2").with_settings({"speed": "plain", "model.options.batch_norm": False})
    options = tiny({**NARROW, "epochs": 2})
    vary, lines = {"optimizer.lr": [1e30, 0.1]}, []
    stacked = Options(**{**vars(options), "log": lines.append, "stack": 4})
    found = swept(recipe, tmp_path / "stack", stacked, vary=vary, seeds=[0, 1])
    assert [run["last"] for run in found[0]["runs"]] == [None, None] and len(accuracies(found[1])) == 2
    assert sum("done in" in line for line in lines) == 1 and sum("diverged" in line for line in lines) == 2
    alone = swept(recipe, tmp_path / "alone", options, vary=vary, seeds=[0, 1])
    assert accuracies(alone[1]) == accuracies(found[1])
    for _ in range(2):
        (lost,) = swept(recipe, tmp_path / "lost", stacked, vary={"optimizer.lr": [1e30]}, seeds=[0, 1])
        assert [run["last"] for run in lost["runs"]] == [None, None]


@pytest.mark.parametrize("name", ["fig1", "fig5", "fig8"])
def test_an_item_that_needs_two_data_sets_asks_for_the_second_before_it_trains_on_the_first(tmp_path, cifar10, name):
    settings = {**NARROW, "epochs": 1, "data.batch_size": 10, "speed": "plain"}
    with pytest.raises(DataError, match="cifar100 is not in "):
        reproduce(name, tmp_path, root=cifar10, device="cpu", settings=settings)
    assert not list(tmp_path.rglob("recipe.toml"))


@pytest.mark.parametrize(
    ("name", "grid"),
    [("fig1", {}), ("fig5", {"p_pos": [0.5]}), ("fig8", {"nets": ["Conv2", "ResNet-18"], "sparsity": [0.5]})],
)
def test_an_item_whose_runs_are_finished_needs_no_data(tmp_path, cifar10, cifar100, name, grid):
    data = tmp_path / "data"
    for root in (cifar10, cifar100):
        shutil.copytree(root, data, dirs_exist_ok=True)
    settings = {**NARROW, "epochs": 1, "data.batch_size": 10, "speed": "plain"}
    options = {"root": data, "device": "cpu", "settings": settings, "grid": grid}
    claims = reproduce(name, tmp_path / name, **options, **({} if name == "fig1" else {"seeds": [0]}))
    before = json.loads((tmp_path / name / "result.json").read_text())
    shutil.rmtree(data)
    (tmp_path / name / "result.json").unlink()
    assert reproduce(name, tmp_path / name, **options, **({} if name == "fig1" else {"seeds": [0]})) == claims
    after = json.loads((tmp_path / name / "result.json").read_text())
    assert {**after, "seconds": 0} == {**before, "seconds": 0}
    next(path for path in (tmp_path / name).rglob("*.json") if path.name == "run.json").unlink()
    (tmp_path / name / "result.json").unlink()
    with pytest.raises(DataError, match="is not in "):
        reproduce(name, tmp_path / name, **options, **({} if name == "fig1" else {"seeds": [0]}))


@pytest.mark.parametrize("stack", [1, 3, 4])
def test_an_interrupted_item_resumes_with_any_stack_size(tmp_path, tiny, stack):
    def stop(record):
        signal.raise_signal(signal.SIGTERM)

    grid = {"nets": ["conv2"], "model.weight_quantizer": ["sign", "bihalf"]}
    shared = {"settings": {**NARROW, "epochs": 2}, "seeds": [0, 1], "grid": grid}
    with pytest.raises(InterruptedTraining):
        reproduce("tab2", tmp_path / "a", options=tiny(**shared, stack=2, reporters_for=lambda name: [stop]))
    reported = []
    listen = {"reporters_for": lambda name: [lambda record: reported.append(record.epoch)]}
    claims = reproduce("tab2", tmp_path / "a", options=tiny(**shared, stack=stack, **listen))
    assert claims == reproduce("tab2", tmp_path / "b", options=tiny(**shared))
    assert reported == ([2, 1, 2, 1, 2] if stack == 1 else [2, 1, 2]) and not list(tmp_path.rglob("stack-*"))


@pytest.mark.parametrize(
    ("name", "grid", "words"),
    [
        ("fig5", {"p_pos": [0.5, 1.5]}, "p_pos=1.5 is not a share"),
        ("fig8", {"sparsity": [0.5, 2.0]}, "sparsity=2.0 is not a share"),
        ("tab2", {"model.weight_quantizer": ["sign", "bogus"]}, "weight quantizer 'bogus' is not known"),
    ],
)
def test_an_invalid_last_value_is_refused_before_the_first_trains(tmp_path, tiny, name, grid, words):
    with pytest.raises(ValueError, match=words):
        reproduce(name, tmp_path, options=tiny(NARROW, grid=grid, seeds=[0]))
    assert not list(tmp_path.rglob("run.json"))


@pytest.mark.parametrize("text", ["{", "[]", '{"recipe": 3}'])
def test_a_damaged_file_of_a_run_is_named_with_a_remedy(tmp_path, tiny, text):
    options = tiny({**NARROW, "optimizer.lr": 1e30}, seeds=(0,))
    swept(get_recipe("fashion-conv2"), tmp_path / "a", options, vary={"model.weight_quantizer": ["sign"]}, seeds=[0])
    lost = tmp_path / "a" / "sign" / "seed0" / "run.json"
    assert json.loads(lost.read_text())["status"] == "diverged"
    seen = tmp_path / "b" / "sign" / "seed0" / "run.json"
    seen.parent.mkdir(parents=True)
    for path in (lost, seen):
        path.write_text(text)
    with pytest.raises(ValueError, match=r"run\.json is not the record of a run .*: delete it to train again"):
        swept(
            get_recipe("fashion-conv2"), tmp_path / "a", options, vary={"model.weight_quantizer": ["sign"]}, seeds=[0]
        )
    with pytest.raises(ValueError, match=r"run\.json is not the record of a run .*: delete it to train again"):
        recipes = {"sign": get_recipe("fashion-conv2")}
        run_watched(tmp_path / "b", recipes, options, lambda name: Watch([], lambda finished: {}))


def test_every_run_is_reported_with_the_number_of_remaining_runs(tmp_path, tiny):
    asked, lines = [], []

    def reporters_for(name):
        asked.append(name)
        return ()

    grid = {"nets": ["conv2"], "model.weight_quantizer": ["sign", "bihalf"]}
    for seeds, stack in (((0,), 1), ((0, 1, 2), 3)):
        options = {"grid": grid, "seeds": seeds, "stack": stack, "log": lines.append, "reporters_for": reporters_for}
        reproduce("tab2", tmp_path / "tab2", options=tiny(NARROW, **options))
    reproduce("tab1", tmp_path / "tab1", options=tiny(NARROW, reporters_for=reporters_for))
    assert asked[:4] == [
        "conv2/sign: seed 0", "conv2/bihalf: seed 0", "conv2/sign: seed 1, first of 3 at once",
        "conv2/bihalf: seed 2",
    ]  # fmt: skip
    assert asked[4:6] == ["sign", "irnet-stable"]
    reproduce("fig1", tmp_path / "fig1", options=tiny(NARROW, reporters_for=reporters_for, grid={"parts": ["weights"]}))
    assert asked[-3:] == ["weights/sign", "weights/irnet-stable", "weights/bihalf"]
    assert [line for line in lines if "to train" in line] == [
        "2 of 2 runs to train",
        "4 of 6 runs to train",
    ]


def test_a_damaged_run_of_a_watched_net_is_named_with_a_remedy(tmp_path, tiny):
    options = tiny(NARROW)
    reproduce("tab1", tmp_path, options=options)
    before = json.loads((tmp_path / "result.json").read_text())
    damaged = tmp_path / "runs" / "sign" / "seed0" / "run.json"
    (tmp_path / "result.json").unlink()
    for text in ("{", "null", '{"recipe": {"data": {"name": "fashion"}}, "versions": {}}'):
        damaged.write_text(text)
        with pytest.raises(ValueError, match=rf"^{damaged} is not the record of a run .*: delete it to train again"):
            reproduce("tab1", tmp_path, options=options)
    damaged.unlink()
    reproduce("tab1", tmp_path, options=options)
    after = json.loads((tmp_path / "result.json").read_text())
    assert {**after["trained"], "seconds": 0} == {**before["trained"], "seconds": 0}
