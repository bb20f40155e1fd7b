"""Fill the column of scores in docs/methods.md: ``python docs/site/method_scores.py``, also run by ``make pages``."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "methods.md"


def with_scores(page: str) -> str:
    """Return the page with the accuracy of every method in the last column of its table of formulas."""
    found = json.loads((ROOT / "results" / "fashion-compare.json").read_text())
    scores = {each["method"]: f"{each['mean']:.2f} ± {each['std']:.2f} %" for each in found["methods"]}
    before, title, rest = page.partition("## Formulas and scores\n")
    part, mark, after = rest.partition("\n## ")
    row = re.compile(r"^(\| `([\w-]+)` \|.*\|)[^|\n]*\|$", flags=re.MULTILINE)
    return before + title + row.sub(lambda line: f"{line[1]} {scores.get(line[2], '–')} |", part) + mark + after


if __name__ == "__main__":
    PAGE.write_text(with_scores(PAGE.read_text()))
