"""Every number of the README outside its parts on the paper and on packed files, which have tests of their own.

Code is left out, but not the comments in shell blocks. A number that no fact here explains fails.
"""

import inspect
import json
import re
import tomllib
from pathlib import Path

import pytest

from equalbits.cli import main
from equalbits.paper.demo import METHODS
from equalbits.recipes import get_recipe
from equalbits.runtime import PackedModel

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORDS = ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "half"]


def rest_of_the_readme():
    """Return the README in one line without its two tested parts, links' targets and code, comments apart."""
    text = README
    for title in ("## Pack and run", "## Does it reproduce the paper?"):
        before, _, after = text.partition(title)
        text = before + "\n## " + after.partition("\n## ")[2]
    text = re.sub(r"```python.*?```", "", text, flags=re.DOTALL)
    blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    comments = [line.partition("  #")[2] for block in blocks for line in block.splitlines()]
    text = re.sub(r"```bash.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)|`[^`]*`", "]", text)
    return " ".join([*text.split(), *" ".join(comments).split()])


def facts():
    python, torch = PROJECT["requires-python"], PROJECT["optional-dependencies"]["train"][0]
    yield f"Python {python.removeprefix('>=')} or newer, {torch.replace('>=', ' ')} or newer"
    oldest, newest = re.findall(r'torch: "(\d+\.\d+)', (ROOT / ".github/workflows/ci.yml").read_text())
    usual = re.findall(r"^torch==(\d+\.\d+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[0]
    assert torch == f"torch>={oldest}"
    yield f"torch {oldest}, {usual} and {newest}"
    methods = re.search(r"compare --methods (\S+)  ", README)[1].split(",")
    assert methods == list(METHODS) and len(methods) == 3
    yield "three methods compared"
    yield f"top {inspect.signature(PackedModel.predict).parameters['top'].default} classes"
    yield f"{3 * len(methods)} networks"  # seeds 0-2 by default
    steps = get_recipe("cifar10-conv2").train.epochs * -(-50_000 // get_recipe("cifar10-conv2").data.batch_size)
    step = json.loads((ROOT / "results" / "gpu-step.json").read_text())["nets"]["conv2"]["median_ms"]["bihalf"] / 1000
    assert 10 < steps * step < 20  # and about ten seconds of compilation, which is not measured
    yield "half a minute on a GPU"


#: Times on two cores of an idle machine, which no file in results/ holds.
TIMES = r"in two minutes|a run in half a minute|embedded data, half a minute|, about eight minutes on two cores"
#: Names of methods, data sets, tables and symbols, a conference, bits as such, and what a test below checks.
NAMES = (
    r"[Bb]i-half|is the first five|\+1|−1|1-bit|CIFAR-10+|[Tt]able \d|AAAI 2022|x86-64|Apache-2\.0|exact half|"
    r"difference of flips stays 0"
)


@pytest.mark.parametrize("fact", list(facts()))
def test_the_readme_states_what_was_measured(fact):
    assert fact in rest_of_the_readme()


def test_no_number_of_the_readme_is_without_a_fact():
    rest = rest_of_the_readme()
    for fact in sorted(facts(), key=len, reverse=True):
        rest = rest.replace(fact, "…")
    rest = re.sub(f"{NAMES}|{TIMES}", "…", rest)
    shown = rf"[^.…]*(?:\d|\b(?:{'|'.join(WORDS)})\b)[^.…]*"
    assert [found.strip() for found in re.findall(shown, rest)] == []


def test_the_extras_of_the_readme_exist_and_all_is_the_first_of_them():
    listed = re.findall(r"`(\w+)`", re.search(r"Extras: (.*?);\s+`all` is the first", README, flags=re.DOTALL)[1])
    assert set(listed) == set(PROJECT["optional-dependencies"]) - {"all", "dev"}
    (whole,) = PROJECT["optional-dependencies"]["all"]
    first = re.search(r"\[(.*)\]", whole)[1].split(",")
    assert listed[: len(first)] == first and f"`all` is the first {WORDS[len(first) - 2]}" in " ".join(README.split())


def test_the_command_that_compares_takes_three_seeds(capsys):
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    assert "default: 0-2" in " ".join(capsys.readouterr().out.split())
