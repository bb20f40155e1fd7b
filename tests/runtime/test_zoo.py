"""The networks of the package: each file gives the logits and the accuracy that its card and its examples state."""

import json
import os
import runpy
from pathlib import Path

import numpy as np
import pytest

import equalbits as eb
from equalbits.cli import main
from equalbits.runtime import find_packed, list_zoo, zoo_card

ENTRIES = list_zoo()
ROOT = Path(__file__).parents[2]


def examples(name: str) -> dict[str, np.ndarray]:
    with np.load(find_packed(f"zoo:{name}").with_suffix(".npz"), allow_pickle=False) as stored:
        return dict(stored)


@pytest.mark.parametrize("engine", ["auto", "numpy"])
@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_gives_the_stored_logits(name: str, engine: str) -> None:
    stored = examples(name)
    few = slice(None) if engine == "auto" else slice(2)  # numpy is slow
    logits = eb.load_packed(f"zoo:{name}", engine=engine)(stored["images"][few])
    np.testing.assert_allclose(logits, stored["logits"][few], rtol=1e-4, atol=1e-3 * np.abs(stored["logits"]).max())
    assert (logits.argmax(1) == stored["logits"][few].argmax(1)).all()


@pytest.mark.parametrize("name", ENTRIES)
def test_the_page_lists_every_entry_as_its_card_does(name: str) -> None:
    card = zoo_card(name)
    page = (ROOT / "docs" / "zoo.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `zoo:{name}` |"))
    assert row.endswith(f"| {card['test']['accuracy']:.2f} % of {card['test']['total']:,} | {card['bytes']:,} |")


def test_the_script_that_adds_an_entry_writes_the_table_of_the_page() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "zoo_entry.py"))
    page = (ROOT / "docs" / "zoo.md").read_text(encoding="utf-8")
    assert script["with_table"](page) == page
    kept = [line for line in page.splitlines(keepends=True) if not line.startswith("| `zoo:cifar10-conv6`")]
    assert script["with_table"]("".join(kept)) == page


@pytest.mark.parametrize("name", ENTRIES)
def test_a_card_describes_its_file(name: str) -> None:
    card, model = zoo_card(name), eb.load_packed(f"zoo:{name}")
    assert (card["name"], card["bytes"]) == (name, find_packed(f"zoo:{name}").stat().st_size)
    assert (card["classes"], card["bits_exact"]) == (len(model.classes), model.audit().exact)
    assert card["test"]["accuracy"] == round(100 * card["test"]["correct"] / card["test"]["total"], 2)
    assert card["test"]["total"] in (2000, 10000)


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_has_the_accuracy_of_its_card_on_all_test_images(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = zoo_card(name)["data"]
    if data != "fashion" and not os.environ.get("EQUALBITS_DATA"):
        pytest.skip(f"set EQUALBITS_DATA to the directory of {data}")
    assert main(["evaluate", f"zoo:{name}", "--dataset", data, "--json"]) == 0
    score = json.loads(capsys.readouterr().out)
    stated = zoo_card(name)["test"]
    assert score["total"] == stated["total"]
    assert abs(score["correct"] - stated["correct"]) <= stated["total"] / 200  # another CPU rounds another way


def test_the_zoo_is_small() -> None:
    folder = find_packed(f"zoo:{ENTRIES[0]}").parent
    assert sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) <= 10_000_000


def test_commands_take_the_name_of_an_entry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "zoo:fashion-conv4"
    picture = tmp_path / "shoe.npy"
    np.save(picture, examples("fashion-conv4")["images"][0])
    assert main(["run", name, str(picture), "--top", "1"]) == 0
    best = examples("fashion-conv4")["logits"][0].argmax()
    assert eb.load_packed(name).classes[best] in capsys.readouterr().out
    assert main(["list", "zoo"]) == 0
    printed = capsys.readouterr().out
    assert all(f"  zoo:{entry} " in printed for entry in ENTRIES)
    assert main(["list", "zoo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"zoo": {f"zoo:{entry}": zoo_card(entry) for entry in ENTRIES}}
    assert main(["inspect", name]) == 0
    assert capsys.readouterr().out.startswith(f"{name}: ")
    assert main(["bench", name, "--seconds", "0"]) == 0
    assert capsys.readouterr().out.startswith(f"{name}: ")
    pytest.importorskip("onnx")
    assert main(["export", name, str(tmp_path / "net.onnx")]) == 0


def test_an_unknown_entry_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "zoo:fashion-conv5", "x.png"]) == 1
    assert "did you mean 'fashion-conv4'?" in capsys.readouterr().err
    assert main(["inspect", "zoo:"]) == 1
    with pytest.raises(ValueError, match="zoo entry 'nothing' is not known"):
        eb.load_packed("zoo:nothing")


def test_training_starts_from_the_weights_of_an_entry(tmp_path: Path) -> None:
    settings = {"model.init_from": "zoo:fashion-conv4", "epochs": 1, "data.limit": 128, "optimizer.lr": 1e-3}
    run = eb.run_recipe(eb.get_recipe("fashion-conv4").with_settings(settings), tmp_path / "run")
    assert run.history.last is not None and run.history.last.test is not None
    assert run.history.last.test.accuracy > 75  # one step of a new network is near chance
