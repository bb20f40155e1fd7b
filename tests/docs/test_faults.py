"""The page of faults names tests that exist, one for each promise."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (.+?) \| (.+?) \| `(\S+)::(test_\w+)` \|$")


def test_every_fault_names_a_test_that_exists() -> None:
    lines = (ROOT / "docs" / "faults.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| fault ")]
    assert len(rows) >= 50
    named = []
    for line in rows:
        row = ROW.match(line)
        assert row, f"a row is fault, promise and test: {line}"
        file, test = row[3], row[4]
        assert re.search(rf"^def {test}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE), f"{file} has no {test}"
        named.append(test)
    assert len(set(named)) == len(named), "each fault has a test of its own"


def test_the_security_page_leads_to_the_page_of_faults() -> None:
    assert "(docs/faults.md)" in (ROOT / "SECURITY.md").read_text()
