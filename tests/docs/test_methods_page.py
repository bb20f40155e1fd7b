"""The scores on the page of methods come from results/, and every method that was compared has a row."""

import importlib.util
import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "methods.md").read_text()
PART = PAGE.partition("## Formulas and scores\n")[2].partition("\n## ")[0]


def test_the_scores_are_those_of_the_comparison():
    spec = importlib.util.spec_from_file_location("method_scores", ROOT / "docs" / "site" / "method_scores.py")
    scores = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scores)
    assert scores.with_scores(PAGE) == PAGE, "write it again: make pages"
    assert "– |" not in PART


def test_every_method_that_was_compared_has_its_formula_and_gradient():
    compared = json.loads((ROOT / "results" / "fashion-compare.json").read_text())
    named = re.findall(r"^\| `([\w-]+)` \| \S.* \|$", PART, flags=re.MULTILINE)
    assert sorted(named) == sorted(each["method"] for each in compared["methods"] if each["method"] != "real")
    assert f"over {compared['n']} seeds" in " ".join(PART.split())
