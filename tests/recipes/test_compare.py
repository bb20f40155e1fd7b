"""Comparing methods: equal in all but the method, stored per run, invalid names refused in one line."""

import json
from dataclasses import replace

import pytest
import torch
from small_recipe import compare

from equalbits.cli import main
from equalbits.nn import BinaryLayer
from equalbits.recipes import Comparison, RunRecord, get_recipe
from equalbits.recipes.build import DataSpec, make_with_common_start
from equalbits.recipes.experiments.compare import _method_result
from equalbits.recipes.experiments.compared_methods import (
    TUNING_SEED,
    case_of,
    list_methods,
    parse_methods,
    recipe_for,
)
from equalbits.report import markdown, text_table

TINY = {"epochs": 1, "data.limit": 128, "data.batch_size": 64, "model.name": "conv2", "model.options.width": 0.05}
RECIPE = get_recipe("fashion-compare").with_settings(TINY)
IMAGES = DataSpec(tuple("0123456789"), 1, 28, (0.5,), (0.5,))


def run_file(out, method, seed):
    return out / case_of(method) / f"seed{seed}" / "run.json"


def first(out, *, methods=("sign", "bihalf"), seeds=(0, 1), **more):
    lines = []
    found = compare(RECIPE, out, methods=methods, seeds=seeds, device="cpu", log=lines.append, **more)
    return found, lines


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("compare")
    return out, first(out)[0]


def test_a_row_states_the_accuracy_of_each_seed(finished) -> None:
    _, found = finished
    sign, half = found.rows
    assert [row.seeds for row in found.rows] == [[0, 1], [0, 1]]
    assert sign.total == half.total == 2000
    assert half.exact_filters == [half.filters] * 2
    assert half.entropy == pytest.approx([half.attainable_entropy] * 2)
    assert half.to_positive == half.to_negative
    assert max(sign.entropy) < half.entropy[0]
    assert half.std == pytest.approx(abs(half.accuracies[0] - half.accuracies[1]) / 2**0.5)
    assert half.packed_bytes < half.float32_bytes / 10


def test_a_second_call_trains_nothing_and_finds_the_same(finished) -> None:
    out, found = finished
    again, lines = first(out)
    assert lines == []
    assert again == found
    assert json.loads((out / "compare.json").read_text()) == json.loads(json.dumps(found.as_dict()))


def test_each_method_reports_progress_while_it_trains(tmp_path) -> None:
    reported: dict[str, list[int]] = {}

    def listeners(method: str) -> list:
        epochs = reported.setdefault(method, [])
        return [lambda record: epochs.append(record.epoch)]

    first(tmp_path, reporters_for=listeners, stack=2)
    assert reported == {f"{method}: seed 0, first of 2 at once": [1] for method in ("sign", "bihalf")}


def test_only_missing_runs_are_trained(finished) -> None:
    out, found = finished
    run_file(out, "bihalf", 1).unlink()
    again, lines = first(out)
    assert len(lines) == 1 and "bihalf" in lines[0] and "seed 1" in lines[0]
    assert [row.correct for row in again.rows] == [row.correct for row in found.rows]


def test_other_settings_in_the_same_folder_are_refused(finished) -> None:
    out, _ = finished
    other = RECIPE.with_settings({"optimizer.lr": 0.02})
    with pytest.raises(ValueError, match=r"optimizer.lr=0.1, this one has optimizer.lr=0.02"):
        compare(other, out, methods=["sign"], seeds=[0], device="cpu")
    with pytest.raises(ValueError, match=r"optimizer.lr=0.1, this one has optimizer.lr=0.02"):
        compare(other, out, methods=["xnor"], seeds=[0], device="cpu")  # one table would stand for both


def test_a_comparison_is_refused_in_several_processes(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="runs in one process: start it without torchrun"):
        compare(RECIPE, tmp_path / "a", methods=["sign"], seeds=[0], device="cpu")
    assert not (tmp_path / "a").exists()


def test_stacked_seeds_equal_single_runs(finished, tmp_path) -> None:
    _, found = finished
    stacked, _ = first(tmp_path, methods=("bihalf",), stack=2)
    assert stacked.rows[0].correct == found.rows[1].correct
    assert stacked.rows[0].to_positive == found.rows[1].to_positive


def test_non_finite_values_fail_one_run_and_not_the_comparison(tmp_path) -> None:
    wild = RECIPE.with_settings({"optimizer.lr": 1e30, "model.options.batch_norm": False})
    found = compare(wild, tmp_path, methods=["real"], seeds=[0, 1], stack=2, device="cpu")
    assert sorted(found.rows[0].failed) == [0, 1] and found.rows[0].mean is None
    assert "failed" in text_table(found)
    assert "real, seed 1: the loss is" in markdown(found)


def test_each_method_may_use_its_best_learning_rate_on_held_out_training_images(tmp_path) -> None:
    found, lines = first(tmp_path, methods=("bihalf",), seeds=(0,), tune=(1e-9, 0.1))
    assert [line.partition(",")[0] for line in lines[:2]] == ["bihalf at lr 1e-09", "bihalf at lr 0.1"]
    trials = {rate: run_file(tmp_path / "tuning" / f"lr{rate:g}", "bihalf", TUNING_SEED) for rate in (1e-9, 0.1)}
    runs = {rate: json.loads(path.read_text()) for rate, path in trials.items()}
    assert {run["last"]["test"]["total"] for run in runs.values()} == {25}  # every fifth of 128
    assert {run["last"]["train"]["total"] for run in runs.values()} == {103}
    best = max(runs, key=lambda rate: (runs[rate]["last"]["test"]["correct"], -rate))
    assert found.rows[0].lr == best and found.facts["tuned_over"] == [1e-9, 0.1]
    assert first(tmp_path, methods=("bihalf",), seeds=(0,), tune=(1e-9, 0.1)) == (found, [])
    assert "of 1e-09, 0.1, with the best accuracy" in markdown(found)


def test_methods_that_flip_bits_are_given_a_gamma_and_keep_the_rate(tmp_path) -> None:
    methods = ("bop", "sign")
    found, lines = first(tmp_path, methods=methods, seeds=(0,), tune=(1e-9, 0.1, 100))
    tried = [line.partition(",")[0] for line in lines if "held-out" in line]
    assert tried[:3] == ["bop at gamma 1e-12", "bop at gamma 0.0001", "bop at gamma 0.1"]
    assert tried[3:] == ["sign at lr 1e-09", "sign at lr 0.1", "sign at lr 100"]
    paths = {g: run_file(tmp_path / "tuning" / f"gamma{g:g}", "bop", TUNING_SEED) for g in (1e-12, 1e-4, 0.1)}
    runs = {gamma: json.loads(path.read_text()) for gamma, path in paths.items()}
    flips = [run["measured"]["to_positive"] for run in runs.values()]
    assert len({str(each) for each in flips}) == 3  # each gamma moves the bits in its own way
    best = max(runs, key=lambda gamma: (runs[gamma]["last"]["test"]["correct"], -gamma))
    bop, sign = found.rows
    assert (bop.lr, bop.gamma, sign.gamma) == (0.1, pytest.approx(best), None)
    assert json.loads(run_file(tmp_path, "bop", 0).read_text())["recipe"]["optimizer"]["gamma"] == pytest.approx(best)
    assert Comparison.from_dict(json.loads((tmp_path / "compare.json").read_text())).rows == found.rows
    page = markdown(found)
    assert f"| 0.1, gamma {best:g} |" in page
    assert "; bop had gamma scaled by the same factors instead; nothing else was tuned" in page


def test_too_few_images_for_a_hold_out_set_are_refused(tmp_path) -> None:
    few = RECIPE.with_settings({"data.name": "synthetic:1x8x8:4:24", "data.batch_size": 8, "data.limit": 4})
    with pytest.raises(ValueError, match="--tune holds out one training image in 5, and there are 4: train on more"):
        compare(few, tmp_path, methods=["sign"], seeds=[0], tune=[0.1], device="cpu")


def test_a_row_names_the_speed_of_every_seed(finished) -> None:
    out, _ = finished
    records = [RunRecord.read(run_file(out, "sign", seed)) for seed in (0, 1)]
    mixed = [
        replace(record, recipe=record.recipe.with_settings({"speed": speed}))
        for record, speed in zip(records, ("recorded", "plain"), strict=True)
    ]
    assert _method_result("sign", mixed).speed == "plain and recorded"


@pytest.mark.parametrize("method", list_methods())
def test_every_method_starts_from_the_same_latents(method) -> None:
    start = dict(make_with_common_start(recipe_for("sign", RECIPE), IMAGES).named_parameters())
    model = make_with_common_start(recipe_for(method, RECIPE), IMAGES)
    bits = "bop" in method
    for name, tensor in start.items():
        mine = dict(model.named_parameters())[name]
        if method == "bop" and mine.dim() > 1:
            assert torch.equal(mine, torch.where(tensor >= 0, 1.0, -1.0))
        elif not bits:
            assert torch.equal(mine, tensor)
    layers = [layer for layer in model.modules() if isinstance(layer, BinaryLayer)]
    assert bool(layers) != (method == "real")


def test_a_gain_fitted_to_latents_is_fitted_to_those_it_starts_from() -> None:
    model = make_with_common_start(recipe_for("recu", RECIPE), IMAGES)
    layer = next(layer for layer in model.modules() if isinstance(layer, BinaryLayer))
    torch.testing.assert_close(layer.weight_quantizer.gains, layer.weight.abs().flatten(1).mean(dim=1))


def test_all_names_every_method_once() -> None:
    every = parse_methods("all")
    assert every == list_methods() and len(set(every)) == len(every) >= 20
    assert not {"bnn", "reactnet", "bits"} & set(every)
    assert parse_methods("all,sign,bihalf:p_pos=0.25") == [*every, "bihalf:p_pos=0.25"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "bihlaf"], "method 'bihlaf' is not known: did you mean 'bihalf'?"),
        (["--methods", "bihalf:p=0.5"], "setting 'p' is not known: there are: 'estimator', 'p_pos'"),
        (["--methods", ","], "names none"),
        (
            ["--methods", "bop:gamma=1"],
            "method 'bop' takes no settings: write bop, and set those of its optimizer by",
        ),
        (["--stack", "0"], "--stack 0"),
        (["--tune", ","], "--tune ,: give learning rates, such as 0.03,0.1,0.3"),
        (["--tune", "0.1", "--set", "optimizer.lr=0.2"], "--set optimizer.lr=0.2 and --tune: omit one of them"),
        (["--seeds", "x"], "--seeds x"),
        (["--tune", "0.1,fast"], "--tune 0.1,fast: give learning rates"),
        (["fashion-compair"], "did you mean 'fashion-compare'?"),
        (["--set", "optimizer.lrr=1"], "no setting 'optimizer.lrr'; did you mean 'optimizer.lr'?"),
    ],
)
def test_an_invalid_item_name_is_refused_in_one_line(words, message, tmp_path, capsys) -> None:
    assert main(["compare", *words, "--out", str(tmp_path / "out")]) == 1
    stderr = capsys.readouterr().err
    assert message in stderr and stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_command_prints_the_content_of_the_file(finished, capsys) -> None:
    out, _ = finished
    sets = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
    words = ["compare", "--methods", "sign,bihalf", "--seeds", "0-1", *sets, "--out", str(out), "--device", "cpu"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((out / "compare.json").read_text())
    assert main(words) == 0
    assert "bihalf" in capsys.readouterr().out
