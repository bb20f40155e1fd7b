"""``equalbits completion`` prints a script that the shell accepts and that completes commands, options and choices."""

import shutil
import subprocess

import pytest

from equalbits.cli import COMMANDS


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh"])
def test_the_script_names_every_command(shell: str, call) -> None:
    code, printed, errors = call("completion", shell)
    assert (code, errors) == (0, "")
    assert all(name in printed for name in (*COMMANDS, "cifar10-conv2", "fig6"))
    if shutil.which(shell) and shell != "tcsh":
        subprocess.run([shell, "-n"], input=printed, text=True, check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("tra", "train"),
        ("train --res", "--resume"),
        ("pack --rest fl", "float16"),
        ("train cifar10-conv8-", "cifar10-conv8-tuned"),
        ("reproduce fi", "fig2"),
        ("download ci", "cifar100"),
    ],
)
def test_bash_completes_commands_options_choices_recipes_and_items(words: str, expected: str, call) -> None:
    script = call("completion", "bash")[1]
    completed = f"""
COMP_WORDS=(equalbits {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_TYPE=9
_shtab_equalbits equalbits "${{COMP_WORDS[COMP_CWORD]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash"], input=script + completed, capture_output=True, text=True, check=True)
    assert expected in done.stdout.split()
