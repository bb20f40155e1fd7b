"""docs/results.md and the README's table are generated from the counts in results/."""

import json
import statistics
from pathlib import Path

import pytest

from equalbits.paper.published_numbers import TABLE_2
from equalbits.paper.results_page import item_sections, last_and_best, readme_table, replace_table, results_page
from equalbits.recipes import Execution, get_recipe, sweep
from equalbits.recipes.experiments.sweep import summarize_sweep

ROOT = Path(__file__).parents[2]


def test_the_committed_page_is_generated_from_the_committed_results():
    assert (ROOT / "docs" / "results.md").read_text() == results_page(ROOT / "results")


def test_the_readme_shows_the_committed_results():
    readme = (ROOT / "README.md").read_text()
    assert readme_table(ROOT / "results") in readme
    assert replace_table(readme, readme_table(ROOT / "results")) == readme


def test_the_readme_states_the_training_time_of_its_table():
    trained = json.loads((ROOT / "results" / "tab2.json").read_text())["trained"]
    minutes, seconds = divmod(round(trained["seconds"]), 60)
    line = f"\n{trained['nets']} nets in {minutes} m {seconds:02} s of training on one NVIDIA H200, up to "
    readme = (ROOT / "README.md").read_text()
    assert line in readme and "of one H200" not in readme


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"seeds": [0, 1, 2]}, False),
        ({"asked": {"grid": {}, "settings": {"epochs": 1}}}, False),
        ({"asked": {"grid": {"nets": ["conv2"]}, "settings": {"evaluate_every": 5}}}, True),
    ],
)
def test_the_readme_shows_only_the_papers_setting_with_all_seeds(tmp_path, change, shown):
    kept = json.loads((ROOT / "results" / "tab2.json").read_text())
    for name in ("tab2", "tab2-tuned"):
        (tmp_path / f"{name}.json").write_text(json.dumps({**kept, **change}))
    table = readme_table(tmp_path)
    assert table.count("| Conv2 |") == table.count("\n60 nets in ") == (2 if shown else 0)
    assert ("with settings tuned" in table) == shown


def test_the_readme_states_how_many_runs_diverged(tmp_path):
    kept = json.loads((ROOT / "results" / "tab2.json").read_text())
    first, second = kept["measured"]["nets"]["conv2"][:2]
    first["runs"][0] = {"seed": 0, "last": None, "diverged": "the loss is nan"}
    second["runs"] = [{"seed": seed, "last": None, "diverged": "the loss is nan"} for seed in range(5)]
    (tmp_path / "tab2.json").write_text(json.dumps(kept))
    row = next(line for line in readme_table(tmp_path).splitlines() if line.startswith("| Conv2 |"))
    assert " (1 of 5 diverged) | " in row and " | diverged | " in row and "%" not in row


def test_the_readme_names_tuned_nets_with_other_epochs_than_the_paper(tmp_path):
    kept = json.loads((ROOT / "results" / "tab2-tuned.json").read_text())
    tuning = kept["measured"]["tuning"]
    for net, epochs in (("conv2", 100), ("conv4", 100), ("conv6", 60), ("conv8", 200)):
        tuning[net]["bihalf"]["picked"]["epochs"] = epochs
    (tmp_path / "tab2-tuned.json").write_text(json.dumps(kept))
    assert "Epochs: Conv6 60, Conv8 200; else 100 as in the paper." in readme_table(tmp_path)
    for methods in tuning.values():
        methods["bihalf"]["picked"]["epochs"] = 100
    (tmp_path / "tab2-tuned.json").write_text(json.dumps(kept))
    assert "Epochs" not in readme_table(tmp_path)


def test_the_title_of_the_tuned_table_names_the_tuned_methods(tmp_path):
    kept = json.loads((ROOT / "results" / "tab2-tuned.json").read_text())
    (tmp_path / "tab2-tuned.json").write_text(json.dumps(kept))
    assert readme_table(tmp_path).startswith("Bi-half alone, with settings tuned on held-out training images")
    assert "### Table 2: Shallow binary nets, tuned on held-out images, Bi-half alone\n" in item_sections(tmp_path)
    kept["asked"]["grid"] = {}
    for cases in kept["measured"]["nets"].values():
        cases.append({**cases[0], "settings": {"model.weight_quantizer": "sign"}})
    (tmp_path / "tab2-tuned.json").write_text(json.dumps(kept))
    assert readme_table(tmp_path).startswith("Sign and Bi-half, with settings tuned")
    assert "Bi-half alone" not in item_sections(tmp_path)


def test_last_and_best_epoch_stand_side_by_side(tmp_path):
    kept = json.loads((ROOT / "results" / "tab2.json").read_text())
    run = kept["measured"]["nets"]["conv2"][0]["runs"][0]
    run["best"] = {"epoch": 75, "test": {**run["best"]["test"], "correct": run["last"]["test"]["correct"] + 60}}
    (tmp_path / "tab2.json").write_text(json.dumps(kept))
    page = item_sections(tmp_path).partition("### Last epoch and best epoch")[2]
    (row,) = (line.split(" | ") for line in page.splitlines() if line.startswith("| tab2 | 8"))
    assert float(row[2].rstrip(" %")) - float(row[1].rstrip(" %")) == pytest.approx(0.01, abs=0.0011)
    assert row[3:] == ["1 of 60", "0.60 points |"]


def test_items_tested_after_the_last_epoch_only_are_not_compared_with_their_best():
    kept = {name: json.loads((ROOT / "results" / f"{name}.json").read_text()) for name in ("fig4", "tab2")}
    page = last_and_best(kept)
    assert "| fig4 |" not in page and "| tab2 |" in page  # tab2: every 25 epochs
    assert last_and_best({"fig4": kept["fig4"]}) == ""
    run = kept["fig4"]["measured"]["methods"]["sign"]["runs"][0]
    run["best"] = {**run["best"], "epoch": 75}
    assert "| fig4 |" in last_and_best(kept)


@pytest.mark.parametrize("readme", ["", "<!-- results table: begin -->\nall the rest"])
def test_a_readme_without_markers_is_refused(readme):
    with pytest.raises(ValueError, match="put both around the place of the table"):
        replace_table(readme, "| a |")


@pytest.mark.parametrize("net", ["conv2", "conv4", "conv6", "conv8"])
@pytest.mark.parametrize("method", ["sign", "bihalf"])
def test_table_2_reproduces_the_papers_numbers_with_five_seeds(net, method):
    cases = json.loads((ROOT / "results" / "tab2.json").read_text())["measured"]["nets"][net]
    (case,) = (case for case in cases if case["settings"] == {"model.weight_quantizer": method})
    assert [run["seed"] for run in case["runs"]] == [0, 1, 2, 3, 4]
    assert {run["last"]["test"]["total"] for run in case["runs"]} == {10_000}
    mean = statistics.fmean(run["last"]["test"]["correct"] / 100 for run in case["runs"])
    assert round(abs(mean - TABLE_2[net, method].mean), 2) <= 0.3


def test_the_sweep_file_states_shared_settings_once(tmp_path):
    recipe = get_recipe("fashion-conv2").with_settings(
        {"epochs": 1, "data.limit": 32, "data.batch_size": 16, "model.options.width": 0.05}
    )
    vary = {"model.weight_quantizer": ["sign", "bihalf"]}
    sweep(recipe, tmp_path, vary=vary, seeds=[0, 1], execution=Execution(device="cpu", stack=2))
    ledger = json.loads((tmp_path / "sweep.json").read_text())
    assert ledger == summarize_sweep(tmp_path)
    assert ledger["settings"]["epochs"] == 1
    assert [case["settings"] for case in ledger["cases"]] == [
        {"model.weight_quantizer": "bihalf"},
        {"model.weight_quantizer": "sign"},
    ]
    for case in ledger["cases"]:
        assert [run["seed"] for run in case["runs"]] == [0, 1]
        assert all(0 <= run["last"]["correct"] <= run["last"]["total"] == 2000 for run in case["runs"])
