"""benchmarks/measure_missing.py: every part of its queue can be measured and kept, and weights come back."""

import importlib.util
import io
import json
import sys
import tarfile
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from small_recipe import own

from equalbits.paper import get_item
from equalbits.paper.grid_parameters import split
from equalbits.paper.keep_measurements import merge
from equalbits.recipes import load_run, parse_settings, run_recipe

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "measure_missing.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("measure_missing", SCRIPT)
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_every_command_measures_its_part_and_no_two_share_a_directory(script):
    parts = list(script.queue())
    for part in parts:
        item, words = get_item(part.item), part.command(Path("data"), Path("runs"))
        given = parse_settings([value for option, value in pairwise(words) if option == "--set"])
        assert split(given, {}, whole=item.grid, item=item.name) == (part.settings, part.grid)
        assert part.data in item.needs
    assert len({part.name for part in parts}) == len(parts)


def test_every_part_can_be_merged_with_what_is_kept(script):
    kept = {}
    for part in script.queue():
        path, item = script.RESULTS / f"{part.item}.json", get_item(part.item)
        if part.item not in kept and path.exists():
            kept[part.item] = json.loads(path.read_text())
        if (before := kept.get(part.item)) and not part.is_kept():
            more = {"asked": part.asked, "asked_beside": [], "seeds": [*part.seeds], "measured": {}, "left_out": []}
            kept[part.item] = merge(item, before, {**before, **more})
    assert kept


def test_a_part_is_kept_once_results_hold_all_of_it(script):
    held = script.Part(item="best", minutes=1, seeds=(0,), grid={"nets": ["ResNet-18"]})
    more = script.Part(item="best", minutes=1, seeds=(0, 99), grid={"nets": ["ResNet-18"]})
    assert held.is_kept() and not more.is_kept()


def test_weights_come_back_once_and_can_be_loaded(script, tmp_path):
    runs, there, back = tmp_path / "runs", "best-x/runs/teachers/real", tmp_path / "back"
    trained = run_recipe(own(), runs / there, device="cpu")
    script.share_teachers(runs, runs / "best-y")
    linked = runs / "best-y" / "runs" / "teachers" / "real"
    assert linked.is_symlink() and (linked / "run.json").is_file()
    sizes = []
    for number in range(2):
        out = tmp_path / f"out{number}"
        out.mkdir()
        script.save(runs, out)
        pieces = sorted(out.iterdir())
        content = b"".join(piece.read_bytes() for piece in pieces)
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            tar.extractall(back, filter="data")
            sizes.append(len([name for name in tar.getnames() if name.endswith("safetensors")]))
    assert sizes == [1, 0]  # of the linked teacher nothing comes back twice
    loaded = load_run(back / there).model.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in trained.model.state_dict().items())


def test_a_command_that_takes_too_long_is_interrupted(script, tmp_path):
    words = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert script.run(words, script.SPARE + 0.1, tmp_path / "log") == -15
