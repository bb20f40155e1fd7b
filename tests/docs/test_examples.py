"""Every example runs from a folder of its own, as a reader would run it."""

import os
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import forked
import pytest

import equalbits
from equalbits.runtime import load_packed

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def run(example: Path | str, folder: Path, *words: str) -> str:
    done = forked.run("-W", "error", example, *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


#: What a reader must find in what an example prints.
EXPECTED = {
    "own_model": (
        "4 layers made binary, 2 left real",
        "4 of 4 layers promise a share of +1; all 192 filters are exact",
        "times smaller",
    ),
    "char_gpt": ("100000 characters", "bihalf seed 0: ", "nats per character"),
    "with_lightning": ("bits/to_positive", "all 64 filters are exact"),
    "with_accelerate": ("'bits/to_positive': 1", "all 64 filters are exact"),
    "with_transformers": ("'bits/entropy': 1.0", "filters are exact"),
    "own_network": ("usage: equalbits",),
    "own_quantizer": ("1 layer made binary, 2 left real", "0 of 1 layers promise a share of +1"),
}


#: Packages that an example needs; their own warnings are not ours.
NEEDS = {
    "with_lightning": ("lightning",),
    "with_accelerate": ("accelerate",),
    "with_transformers": ("transformers", "accelerate"),  # its Trainer uses both
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_without_a_warning_and_prints_the_expected_output(example, tmp_path):
    if example.stem == "own_model":  # as a reader does it: with warnings of all imports, too
        environment = {**os.environ, "PYTHONPATH": str(Path(equalbits.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "error", str(example)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    elif packages := NEEDS.get(example.stem):
        if missing := [package for package in packages if find_spec(package) is None]:
            pytest.skip(f"{missing[0]} is not installed")
        done = forked.run(example, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    else:
        printed = run(example, tmp_path)
    assert printed.strip()
    for line in EXPECTED.get(example.stem, ()):
        assert line in printed


def test_the_character_gpt_is_packed_and_generates_text_from_its_saved_weights(tmp_path):
    example = EXAMPLES[0].with_name("char_gpt.py")
    run(example, tmp_path, *["--methods", "bihalf", "--steps", "2", "--out", "a", "--device", "cpu"])
    printed = run(example, tmp_path, *["--weights", "a/bihalf.safetensors", "--generate", "5"])
    assert "5 of 5 characters" in printed
    assert load_packed(tmp_path / "a" / "bihalf.ebits").audit().exact


def test_every_expected_output_belongs_to_an_existing_example():
    assert set(EXPECTED) <= {example.stem for example in EXAMPLES}


def test_every_command_of_the_page_on_custom_networks_runs(tmp_path):
    page = (EXAMPLES[0].parents[1] / "docs" / "own_model.md").read_text(encoding="utf-8")
    lines = [shlex.split(line) for line in page.splitlines() if line.startswith("python examples/own_network.py")]
    assert [words[2] for words in lines] == ["train", "compare", "pack"]
    short = ["--set", "epochs=1", "--set", "data.limit=128", "--device", "cpu"]
    more = {"train": short, "compare": [*short, "--seeds", "0"], "pack": []}
    for _, example, command, *words in lines:
        assert run(EXAMPLES[0].parents[1] / example, tmp_path, command, *words, *more[command])


def test_a_custom_network_is_trained_compared_and_packed_by_its_name(tmp_path):
    tiny, command = "--set model.name=tiny --set model.options.width=4", EXAMPLES[0].with_name("own_network.py")
    short = "--set epochs=1 --set data.limit=128 --device cpu"
    assert "results: a" in run(command, tmp_path, *f"train fashion-conv2 {tiny} {short} --out a".split())
    printed = run(command, tmp_path, *f"compare fashion-conv2 {tiny} {short} --methods sign,bihalf --out b".split())
    assert "16 of 16" in printed
    assert "2 binary layers, every promised share" in run(command, tmp_path, "pack", "a", "net.ebits")
    assert load_packed(tmp_path / "net.ebits").network.input_shape == (1, 28, 28)


def test_a_command_without_custom_networks_names_one_that_has_them(tmp_path):
    words = "train fashion-conv2 --set model.name=tiny --set epochs=1 --set data.limit=128 --device cpu --out a"
    run(EXAMPLES[0].with_name("own_network.py"), tmp_path, *words.split())
    for command in ("evaluate a", "pack a net.ebits", words):
        with pytest.raises(AssertionError, match=r"model 'tiny' is not known: .*; .* run that instead of equalbits\n"):
            run("-m", tmp_path, "equalbits", *command.split())
