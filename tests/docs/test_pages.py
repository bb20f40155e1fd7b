"""The code of the README and of all pages runs."""

import argparse
import re
import shlex
import unicodedata
from importlib import import_module
from pathlib import Path

import pytest

from equalbits.cli import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        blocks = re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)
        found += [(f"{page.name}-{number}", block) for number, block in enumerate(blocks)]
    return found


@pytest.mark.filterwarnings("ignore:.torch.jit.:DeprecationWarning", "ignore:You are using the legacy")
@pytest.mark.filterwarnings("ignore:The feature will be removed:DeprecationWarning")
@pytest.mark.parametrize("block", [pytest.param(block, id=name) for name, block in _blocks("python")])
def test_every_python_block_runs(block, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "block", "exec"), {"__name__": "block"})


def _commands() -> list[str]:
    blocks = [re.sub(r"\\\n *", "", block) for _, block in _blocks("bash")]  # with long commands on one line
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line.partition(" > ")[0] for line in lines if re.match(r"equalbits |torchrun ", line)]


@pytest.mark.parametrize("line", sorted(set(_commands())))
def test_every_command_shown_is_parsed(line):
    words = shlex.split(line.partition("equalbits ")[2])
    assert words[0] in COMMANDS
    parser = argparse.ArgumentParser(exit_on_error=False)
    import_module(f"equalbits.cli.{words[0]}").add_arguments(parser)
    parser.parse_args(words[1:])


def test_links_between_pages_have_targets():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_format_page_states_every_limit_and_operation():
    from equalbits.runtime import Limits, container, network, op_specs
    from equalbits.runtime.ops import OPS, pool

    page = (ROOT / "docs" / "format.md").read_text()
    stated = re.findall(r"2([⁰¹²³⁴⁵⁶⁷⁸⁹]+)", page.partition("## Validation")[2])
    limits = (
        *(container.MAX_TABLE_BYTES, network.MAX_OPERATIONS, network.MAX_WORK, op_specs.MAX_ELEMENTS),
        *(op_specs.EXACT, op_specs.MAX_INT, network.MAX_SIDE),
        *(Limits().memory, Limits().work, Limits().work),
    )
    assert [1 << int(unicodedata.normalize("NFKC", digits)) for digits in stated] == list(limits)
    assert pool.MAX_WINDOW == op_specs.MAX_INT  # the page names them together
    operations_said = re.findall(
        r"^\| `(\w+)` \| (?:a|u|f|two)", page.partition("## Operations")[2], flags=re.MULTILINE
    )
    assert operations_said == list(OPS)


def test_make_targets_named_in_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make (\w+)", (ROOT / "README.md").read_text()):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)
