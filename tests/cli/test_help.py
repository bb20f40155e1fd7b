"""Help is fast and complete; public names are imported on first use."""

import subprocess
import sys

import pytest

import equalbits
from equalbits.cli import COMMANDS


def output_of(code: str) -> str:
    """Return what a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_imports_neither_torch_nor_numpy() -> None:
    heavy = "[name for name in ('torch', 'numpy', 'rich', 'safetensors') if name in sys.modules]"
    assert output_of(f"import sys, equalbits; print({heavy})") == "[]"


def test_help_imports_neither_torch_nor_numpy() -> None:
    code = """
import contextlib, io, sys
from equalbits.cli import COMMANDS, main
for words in (["--help"], [], ["--version"], *([name, "--help"] for name in COMMANDS)):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main(words)
    assert out.getvalue(), words
print([name for name in ("torch", "numpy") if name in sys.modules])
"""
    assert output_of(code) == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_documents_its_arguments(name: str, call) -> None:
    code, printed, errors = call(name, "--help")
    assert (code, errors) == (0, "")
    assert printed.startswith(f"usage: equalbits {name}")
    assert COMMANDS[name][1:30] in " ".join(printed.split())
    assert max(map(len, printed.splitlines())) <= 120
    described = [line for line in printed.splitlines() if line.startswith("  --")]
    options = [option.split()[0].rstrip(",") for option in described]
    assert len(options) == len(set(options))


def test_help_lists_every_command(call) -> None:
    code, printed, _ = call("--help")
    assert code == 0
    words = " ".join(printed.split())
    for name, line in COMMANDS.items():
        assert f"{name} {line}" in words
    assert call() == call("--help")


def test_items_are_listed_with_aligned_titles(call) -> None:
    code, printed, _ = call("reproduce")
    names = [line.split()[0] for line in printed.splitlines()]
    assert code == 0
    assert {line[: max(map(len, names)) + 2].strip() for line in printed.splitlines()} == set(names)


def test_version_is_that_of_the_package(call) -> None:
    assert call("--version") == (0, f"equalbits {equalbits.__version__}\n", "")


@pytest.mark.parametrize("name", equalbits.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(equalbits, name) is not None
    assert name in dir(equalbits)


def test_every_subpackage_is_an_attribute_without_importing_it() -> None:
    packages = "functional runtime nn optim models data training analysis deploy recipes paper"
    code = (  # lower layers first, so that none is loaded by another
        "import sys, equalbits\n"
        f"for package in {packages.split()}:\n"
        "    assert f'equalbits.{package}' not in sys.modules and package in dir(equalbits)\n"
        "    assert getattr(equalbits, package) is sys.modules[f'equalbits.{package}']\n"
    )
    assert output_of(code) == ""


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'binarise_'; did you mean 'binarize_'"):
        equalbits.binarise_  # noqa: B018
    with pytest.raises(AttributeError, match="module 'equalbits' has no attribute 'nothing'"):
        equalbits.nothing  # noqa: B018


def test_reproduce_states_how_many_runs_it_stacks(call) -> None:
    from equalbits.paper.item_runs import _MAX_STACK

    printed = " ".join(call("reproduce", "--help")[1].split())
    assert f"(default: {_MAX_STACK} on a GPU, else 1)" in printed
