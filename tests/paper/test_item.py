"""Common to every item: measured once, drawn from stored results, with rows of claims."""

import json
from dataclasses import replace

import pytest

from equalbits._plotting import new_figure
from equalbits.cli import main
from equalbits.paper import Claim, Item, Options, get_item, list_items, reproduce
from equalbits.paper.item import NO_CLAIM


def counting_item(calls):
    def measure(out, options):
        calls.append(options)
        return {"seeds": [0], "value": 3, "notes": ["one note"]}

    def claims(result):
        row = {"claim": "a|b", "paper": "2", "ours": str(result["value"]), "difference": result["value"] - 2.0}
        return [Claim(**row, agrees=False, decided_by="nothing", n=1)]

    return Item(
        name="counted",
        title="Counted",
        needs="",
        measure=measure,
        draw=lambda result: new_figure(2, 2, title=f"value {result['value']}"),
        claims=claims,
    )


def test_a_second_call_draws_without_measuring(tmp_path):
    calls = []
    item = counting_item(calls)
    first = reproduce(item, tmp_path, quick=True, device="cpu")
    (tmp_path / "counted.svg").unlink()
    assert reproduce(item, tmp_path, quick=True, device="cpu") == first
    assert len(calls) == 1
    assert "<!-- value 3 -->" in (tmp_path / "counted.svg").read_text()
    assert (tmp_path / "counted.png").is_file()


def test_the_result_states_its_origin(tmp_path):
    reproduce(counting_item([]), tmp_path, quick=True, device="cpu", settings={"epochs": 1})
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["asked"] == {"quick": True, "seeds": [], "settings": {"epochs": 1}, "grid": {}}
    assert set(result["versions"]) == {"equalbits", "torch", "python"}
    assert result["device"] and result["seconds"] >= 0
    text = (tmp_path / "claims.md").read_text()
    assert "| a∣b | 2 | 3 | +1.00 | no | nothing | 1 |" in text
    assert "- one note" in text
    assert json.loads((tmp_path / "claims.json").read_text())[0]["ours"] == "3"


@pytest.mark.parametrize(
    ("needs", "options", "words"),
    [
        ("cifar10", {"quick": True}, "A quick measurement: small nets on the embedded Fashion-MNIST, not the paper's"),
        ("cifar10", {"settings": {"epochs": 1, "data.workers": 2}}, "Not the paper's setting: it ran with epochs=1."),
        ("cifar10", {"settings": {"data.workers": 2}}, ""),  # which changes no result
        ("", {"quick": True}, ""),  # what needs no data is the same in both
    ],
)
def test_rows_state_differences_from_the_papers_settings(tmp_path, needs, options, words):
    reproduce(replace(counting_item([]), needs=needs), tmp_path, device="cpu", **options)
    line = (tmp_path / "claims.md").read_text().splitlines()[2]
    assert line.startswith(words or "| claim |")


def test_a_sentence_replaces_the_table_where_the_paper_claims_nothing(tmp_path, capsys):
    settings = [
        "model.options.width=0.05",
        "data.name=synthetic:1x8x8:10:20",
        "data.limit=20",
        "epochs=1",
        "nets=conv2",
    ]
    words = ["reproduce", "tab2-irnet", "--quick", "--seeds", "0", "--out", str(tmp_path), "--device", "cpu"]
    assert main(words + [word for setting in settings for word in ("--set", setting)]) == 0
    printed, text = capsys.readouterr().out, (tmp_path / "claims.md").read_text()
    for shown in (printed, text):
        assert NO_CLAIM in shown and "difference" not in shown


@pytest.mark.parametrize("other", [{"quick": False}, {"settings": {"epochs": 2}}])
def test_a_folder_of_another_measurement_is_refused(tmp_path, other):
    reproduce(counting_item([]), tmp_path, quick=True, device="cpu")
    with pytest.raises(ValueError, match=r"was measured with .*another --out"):
        reproduce(counting_item([]), tmp_path, options=Options(**{"quick": True, "device": "cpu", **other}))


def test_a_result_of_another_version_is_named_in_one_line(tmp_path, capsys):
    reproduce("fig6", tmp_path, device="cpu")
    result = json.loads((tmp_path / "result.json").read_text())
    facts = {name: result[name] for name in ("item", "title", "quick", "asked", "device", "versions", "seconds")}
    (tmp_path / "result.json").write_text(json.dumps(facts))
    assert main(["reproduce", "fig6", "--out", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "result.json is not a complete result of fig6 (" in line and line.endswith("delete it to measure again")


def test_a_folder_of_another_item_is_refused(tmp_path):
    reproduce(counting_item([]), tmp_path, device="cpu")
    with pytest.raises(
        ValueError, match="measured with item=counted, not fig6: ask for the same, or use another --out"
    ):
        reproduce("fig6", tmp_path, device="cpu")


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        reproduce("fig6", tmp_path / "taken")


@pytest.mark.parametrize("name", list_items())
def test_every_item_is_listed_under_its_own_name(name):
    item = get_item(name)
    assert item.name == name and item.title


def test_the_command_prints_rows_and_a_wrong_item_names_the_nearest(tmp_path, capsys):
    assert main(["reproduce", "fig6", "--out", str(tmp_path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [row["agrees"] for row in printed["claims"]] == [True] * 6 + [None]
    assert (tmp_path / "fig6.png").exists() and (tmp_path / "fig6.svg").exists()
    assert main(["reproduce", "fgi6", "--out", str(tmp_path)]) == 1
    assert "did you mean 'fig6'?" in capsys.readouterr().err


def test_the_command_without_an_item_lists_them(capsys):
    assert main(["reproduce"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list_items()
    assert main(["reproduce", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {name: get_item(name).title for name in list_items()}


def test_all_items_run_except_those_whose_data_is_missing(tmp_path, capsys):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["reproduce", "all", "--out", str(tmp_path / "all"), "--data", str(empty), "--json"]) == 1
    printed = capsys.readouterr()
    without_data = [name for name in list_items() if not get_item(name).needs]
    assert [json.loads(line)["item"] for line in printed.out.splitlines()] == without_data
    lines = [line for line in printed.err.splitlines() if line.startswith("equalbits reproduce: ")]
    assert len(lines) == len(list_items()) - len(without_data)
    assert all(str(empty) in line for line in lines)
