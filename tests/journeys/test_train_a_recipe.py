"""Journey A: a recipe by name, on the embedded data, from the command to the score."""

import json
from pathlib import Path

from forked import run

from equalbits.analysis import audit
from equalbits.recipes import load_run


def equalbits(*words: object) -> str:
    done = run("-m", "equalbits", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_recipe_is_trained_scored_inspected_and_read_back(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "a"
    small = ["--set", "epochs=2", "--set", "data.limit=2000", "--set", "model.options.width=0.125"]
    printed = equalbits("train", "fashion-conv2", *small, "--out", out, "--device", "cpu")
    assert printed.startswith("fashion-conv2: last epoch ")

    facts = json.loads((out / "run.json").read_text())
    assert facts["last"]["test"]["total"] == 2000  # every test image
    assert facts["last"]["test"]["correct"] > 500  # ten classes: 200 by chance
    assert facts["recipe"]["model"]["weight_quantizer"] == "bihalf"

    score = json.loads(equalbits("evaluate", out, "--device", "cpu", "--json"))
    assert score["correct"] == facts["last"]["test"]["correct"]

    run = load_run(out)
    recipe, model = run.recipe, run.model
    assert recipe.name == "fashion-conv2"
    report = audit(model)
    assert report.as_dict() == json.loads(equalbits("inspect", out, "--json"))["audit"]
