"""Kept results: small files, drawn on the page, with missing parts listed."""

import json
import shutil
import statistics
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equalbits.paper import Options, get_item, keep_items, keep_measurements, list_items, reproduce
from equalbits.paper.keep_measurements import keep_item, readable
from equalbits.paper.published_numbers import TABLE_2
from equalbits.paper.results_page import kept_claims, missing_parts, origin, results_page

ROOT = Path(__file__).parents[2]
SMALL = {"epochs": 2, "data.batch_size": 10, "speed": "plain", "model.options.width": 0.05}


@pytest.fixture(scope="module")
def part(tmp_path_factory, cifar10):
    """Table 2 by its own code in the paper's files, but small, and one net of four."""
    out = tmp_path_factory.mktemp("tab2")
    grid = {"nets": ["conv2"], "model.weight_quantizer": ["sign", "irnet-identity", "bihalf"]}
    reproduce("tab2", out, options=Options(root=cifar10, device="cpu", settings=SMALL, grid=grid))
    return out


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A copy of the pages and of their sources."""
    for name in ("results", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in (*(f"results/{name}.json" for name in list_items()), "docs/tab*.png"):
        for path in tmp_path.glob(name):
            path.unlink()
    shutil.copy(ROOT / "README.md", tmp_path)
    for path in tmp_path.rglob("*"):
        path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def keep(*folders):
    """Keep items in the checkout; return what was refused."""
    return keep_items(folders, Path(), log=print)


def row_of(page, name):
    lacking = page.partition("### Not yet measured in full")[2]
    return next((line for line in lacking.splitlines() if line.startswith(f"| {name} |")), None)


def test_the_counts_of_every_seed_are_kept_and_no_weights(part, tmp_path):
    path = keep_item(part, tmp_path, tmp_path)
    assert path == tmp_path / "tab2.json" and path.stat().st_size < 20_000
    assert (tmp_path / "tab2.png").read_bytes().startswith(b"\x89PNG")
    kept, result = json.loads(path.read_text()), json.loads((part / "result.json").read_text())
    assert [asdict(row) for row in kept_claims(get_item("tab2"), kept)] == json.loads(
        (part / "claims.json").read_text()
    )
    for ours, theirs in zip(kept["measured"]["nets"]["conv2"], result["nets"]["conv2"], strict=True):
        assert ours["settings"] == theirs["settings"]
        assert [run["seed"] for run in ours["runs"]] == [0, 1, 2, 3, 4]
        for mine, whole in zip(ours["runs"], theirs["runs"], strict=True):
            assert mine["last"]["test"] == whole["last"]["test"] and mine["last"]["train"] == whole["last"]["train"]
            assert mine["best"]["test"]["correct"] == whole["best"]["test"]["correct"]
    assert kept["trained"]["nets"] == 15 and kept["trained"]["data"] == ["cifar10"]


def test_the_page_shows_rows_picture_and_origin(part, checkout):
    assert keep(part) == []
    page = (checkout / "docs" / "results.md").read_text()
    assert page == results_page(checkout / "results")
    section = page.partition("### Table 2: ")[2].partition("\n##")[0]
    kept = json.loads((checkout / "results" / "tab2.json").read_text())
    case = next(c for c in kept["measured"]["nets"]["conv2"] if c["settings"]["model.weight_quantizer"] == "bihalf")
    scores = [100 * run["last"]["test"]["correct"] / run["last"]["test"]["total"] for run in case["runs"]]
    published = TABLE_2["conv2", "bihalf"]
    ours = f"{statistics.fmean(scores):.2f} ± {statistics.stdev(scores):.2f} %"
    gap = f"{statistics.fmean(scores) - published.mean:+.2f}".replace("-", "−")
    undecided = "not decided | scored on 10 test images, the paper's on 10,000"
    assert (
        f"| Conv2, Bi-half: within 0.3 points of the paper's | 79.25 ± 0.28 % | {ours} | {gap} | {undecided} | 5 |"
        in section
    )
    assert "](tab2.png)" in section and (checkout / "docs" / "tab2.png").exists()
    assert f"15 nets in {kept['seconds']:.1f} s of one {kept['device']}; equalbits" in section
    assert "by `equalbits reproduce tab2 --data DIR --set epochs=2 " in section and "--set nets=conv2 " in section
    assert f"torch {kept['versions']['torch']}" in section and "; seeds 0–4. " in section


def test_missing_parts_are_stated_in_the_section_and_in_the_list(part, checkout):
    assert keep(part) == []
    page = (checkout / "docs" / "results.md").read_text()
    lacking = "nets conv4, conv6, conv8; weight quantizer irnet-stable"
    assert f"**Incomplete.** Missing: {lacking}; the paper's setting: it ran with epochs=2" in page
    row = row_of(page, "tab2")
    assert "nets conv4, conv6, conv8" in row and "`equalbits reproduce tab2 --data DIR --out runs/tab2`" in row
    assert "weight quantizer irnet-stable" in row  # another reading was measured


def test_the_readme_shows_table_2_and_the_rest_is_unchanged(part, checkout):
    before = results_page(checkout / "results").partition("\n## Speed of training")[2]
    assert keep(part) == []
    assert before and (checkout / "docs" / "results.md").read_text().partition("\n## Speed of training")[2] == before
    assert "| Conv2 |" not in (checkout / "README.md").read_text()  # two epochs are not the paper's setting
    path = checkout / "results" / "tab2.json"
    path.write_text(path.read_text().replace(json.dumps(SMALL), "{}"))
    assert keep() == []
    readme = (checkout / "README.md").read_text()
    (row,) = (line for line in readme.splitlines() if line.startswith("| Conv2 |"))
    cells = row.split(" | ")
    assert (
        "IR-Net" not in readme.partition("table: begin")[2].partition("table: end")[0]
    )  # this reading is not the one shown
    assert cells[3] == "79.25 ± 0.28" and cells[4].count(" ± ") == 1


def test_every_item_is_shown_or_listed_with_its_data(part, checkout):
    page = results_page(checkout / "results")
    assert all(row_of(page, name) for name in list_items())
    assert "| imagenet |" in row_of(page, "tab3")
    assert "| none | `equalbits reproduce fig6 --out runs/fig6` |" in row_of(page, "fig6")
    assert keep(part) == []
    page = results_page(checkout / "results")
    assert "| cifar10 |" in row_of(page, "fig3")
    assert "| cifar10 and cifar100 |" in row_of(page, "fig5")


def test_runs_that_store_no_best_epoch_are_kept(checkout, cifar10):
    options = Options(root=cifar10, device="cpu", settings=SMALL, grid={"optimizer.lr": [0.1]}, seeds=(0, 1))
    reproduce("flip-rate", checkout / "out", options=options)
    assert keep(checkout / "out") == []
    page = (checkout / "docs" / "results.md").read_text()
    assert "| bi-half above Sign at the same learning rate |" in page


def test_a_complete_item_is_not_listed_as_incomplete(checkout):
    reproduce("fig6", checkout / "out", device="cpu")
    assert keep(checkout / "out") == []
    page = (checkout / "docs" / "results.md").read_text()
    assert row_of(page, "fig6") is None
    section = page.partition("### Figure 6: ")[2].partition("\n##")[0]
    assert "| full net: unique boundaries | 76 | 76 | +0.00 | yes |" in section
    assert "nets in" not in section and "Incomplete" not in section


def test_nets_that_earlier_calls_trained_are_counted_with_their_time(part, tmp_path):
    kept = json.loads(keep_item(part, tmp_path, tmp_path).read_text())
    reproduced = {**kept, "seconds": 1.0, "trained": {**kept["trained"], "seconds": 1023.2, "side_by_side": 5}}
    line = f"15 nets in 17 m 03 s of training on one {kept['device']}, up to 5 side by side; "
    assert origin(reproduced).startswith(line)


def test_fewer_seeds_are_stated():
    item, kept = (
        get_item("tab2"),
        {"asked": {"grid": {}, "seeds": [], "settings": {"data.workers": 2}}, "seeds": [0, 1, 2]},
    )
    assert missing_parts(item, kept) == ["2 of 5 seeds"]  # and a setting that changes no result is none of its lacks
    assert missing_parts(item, {**kept, "seeds": [0, 1, 2, 3, 4]}) == []


def test_a_quick_measurement_is_refused(checkout, tiny):
    grid = {"nets": ["conv2"], "model.weight_quantizer": ["sign"]}
    reproduce("tab2", checkout / "out", options=tiny({"model.options.width": 0.05}, seeds=(0,), grid=grid))
    assert keep() == []
    before = (checkout / "docs" / "results.md").read_text()
    (line,) = keep(checkout / "out")
    assert "holds a quick measurement" in line and "without --quick" in line
    assert not (checkout / "results" / "tab2.json").exists() and not (checkout / "docs" / "tab2.png").exists()
    assert (checkout / "docs" / "results.md").read_text() == before


def test_an_unfinished_measurement_is_refused(part, checkout):
    shutil.copytree(part, checkout / "cut")
    (checkout / "cut" / "result.json").unlink()
    (line,) = keep(checkout / "cut", part)
    assert "cut holds no result.json" in line and "not finished" in line
    assert "### Table 2: " in (checkout / "docs" / "results.md").read_text()  # the other one was taken


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"item": "tab2"}', '{"item": [], "quick": 0, "asked": {}}'])
def test_a_file_of_another_format_is_refused(tmp_path, text):
    (tmp_path / "result.json").write_text(text)
    for read in (lambda: keep_item(tmp_path, tmp_path, tmp_path), lambda: reproduce("fig6", tmp_path, device="cpu")):
        with pytest.raises(ValueError, match=r"result\.json is not a result of reproduce \(.*\): delete it to measure"):
            read()


def test_a_result_of_another_version_is_refused_and_the_others_are_used(part, checkout, tmp_path_factory):
    old = tmp_path_factory.mktemp("old")
    result = json.loads((part / "result.json").read_text())
    (old / "result.json").write_text(json.dumps({name: value for name, value in result.items() if name != "nets"}))
    (line,) = keep(old, part)
    assert f"{old}/result.json is not a complete result of tab2 (" in line
    assert (checkout / "results" / "tab2.json").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "is not a complete result of tab2"), ('{"asked": {}}', "is not a complete result of tab2")],
)
def test_a_damaged_kept_file_is_named_instead_of_the_new_directory(text, words, part, tmp_path):
    path = tmp_path / "tab2.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"^{path} {words} .*: delete it"):
        keep_item(part, tmp_path, tmp_path)
    assert path.read_text() == text


def test_pages_are_generated_only_into_the_repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"^{tmp_path} has no results/ and docs/: run this beside README.md$"):
        keep()
    assert not list(tmp_path.iterdir())


def test_curves_of_every_step_can_be_excluded_by_name(tmp_path, cifar10, monkeypatch):
    monkeypatch.setattr(keep_measurements, "LONGEST", 5)  # a full measurement has tens of thousands of steps
    reproduce("fig2", tmp_path, options=Options(root=cifar10, device="cpu", settings=SMALL))
    (tmp_path / "kept").mkdir()
    kept = json.loads(keep_item(tmp_path, tmp_path / "kept", tmp_path / "kept").read_text())
    assert "methods.sign.filter.to_positive" in kept["left_out"]
    assert "methods.sign.epochs, but for the last" in kept["left_out"]
    assert "to_positive" not in kept["measured"]["methods"]["sign"]["filter"]
    rows = kept_claims(get_item("fig2"), kept)  # need no curves
    assert [asdict(row) for row in rows] == json.loads((tmp_path / "claims.json").read_text()) and len(rows) == 9
    assert [record["epoch"] for record in kept["measured"]["methods"]["sign"]["epochs"]] == [2]


def test_an_incomplete_measurement_is_resumed(part, tmp_path, cifar10):
    shutil.copytree(part, tmp_path / "more")
    runs = {path: path.stat().st_mtime_ns for path in (tmp_path / "more").rglob("run.json")}
    logged = []
    grid = {"nets": ["conv2", "conv4"], "model.weight_quantizer": ["sign", "irnet-identity", "bihalf"]}
    options = Options(root=cifar10, device="cpu", settings=SMALL, grid=grid, log=logged.append)
    reproduce("tab2", tmp_path / "more", options=options)
    assert any(line.endswith("holds other parts: measuring what is missing") for line in logged)
    result = json.loads((tmp_path / "more" / "result.json").read_text())
    assert list(result["nets"]) == ["conv2", "conv4"] and result["trained"]["nets"] == 30
    assert all(path.stat().st_mtime_ns == before for path, before in runs.items())


def reproduced(folder, root, **options):
    """Reproduce table 2 in a measured directory; return the number of nets trained again."""
    runs = {path: path.stat().st_mtime_ns for path in folder.rglob("run.json")}
    reproduce("tab2", folder, options=Options(**{"root": root, "device": "cpu", "settings": SMALL, **options}))
    assert all(path.stat().st_mtime_ns == before for path, before in runs.items())
    return len(list(folder.rglob("run.json"))) - len(runs)


def test_the_command_on_the_page_measures_the_missing_parts(tmp_path, cifar10):
    some = {"nets": ["conv2", "conv4", "conv6"], "model.weight_quantizer": ["bihalf"]}
    settings = {**SMALL, "evaluate_every": 2}  # changes no result, and the page does not name it
    assert reproduced(tmp_path, cifar10, grid=some, settings=settings, seeds=[0]) == 3
    one = {"model.weight_quantizer": ["bihalf"]}
    assert reproduced(tmp_path, cifar10, grid=one, seeds=[0]) == 1
    assert reproduced(tmp_path, cifar10, grid=one) == 16
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["seeds"] == [0, 1, 2, 3, 4] and missing_parts(get_item("tab2"), result)[0].startswith(
        "weight quantizer sign"
    )


def test_equal_values_in_another_spelling_are_equal(part, tmp_path, cifar10):
    grid = json.loads((part / "result.json").read_text())["asked"]["grid"]
    shutil.copytree(part, tmp_path / "same")
    stamp = (tmp_path / "same" / "result.json").stat().st_mtime_ns
    free = {**SMALL, "data.workers": 0, "evaluate_every": 1}
    assert reproduced(tmp_path / "same", cifar10, grid=grid, settings=free) == 0
    assert (tmp_path / "same" / "result.json").stat().st_mtime_ns == stamp
    for seeds in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0]):
        assert reproduced(tmp_path / "same", cifar10, grid=grid, seeds=seeds) == 0
    assert reproduced(tmp_path / "same", cifar10, grid=grid, seeds=[0, 1, 2, 3]) == 0


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@settings(max_examples=40)
@given(st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_the_readable_form_is_the_same_json(value):
    assert json.loads(readable(value)) == value
