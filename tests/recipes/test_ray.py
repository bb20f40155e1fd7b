"""Runs on a Ray cluster equal local runs: same files and numbers, also if a node dies."""

import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from small_recipe import own, sweep

import equalbits
from equalbits.recipes import Execution, PlannedRun, RunStore, Trainer
from equalbits.recipes.experiments.ray_cluster import train_on_node
from equalbits.training import load_checkpoint

RECIPE = """
epochs = {epochs}
[model]
name = "conv2"
options = {{width = 0.05}}
[data]
name = "synthetic:1x8x8:4:{images}"
batch_size = 8
"""
VARY = ["--vary", "model.weight_quantizer=sign,bihalf", "--seeds", "0-2", "--device", "cpu"]


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "equalbits", *map(str, words)]


def planned(seed: int = 3, **settings: object) -> PlannedRun:
    return PlannedRun("own", own(seed=seed, **settings))


def on_node(*runs: PlannedRun, version: str = equalbits.__version__) -> dict[str, Any]:
    """Train runs as a node of a Ray cluster."""
    return train_on_node(pickle.loads(pickle.dumps(runs)), root=None, device="cpu", version=version)


@pytest.mark.skipif(find_spec("ray") is not None, reason="ray is installed")
def test_without_ray_the_error_names_the_extra_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--ray needs the package ray: install .* -e '\.\[ray\]'"):
        sweep(own(), tmp_path / "a", vary={}, seeds=[0], ray="auto")
    assert not (tmp_path / "a").exists()


def test_a_node_gives_back_the_files_of_a_run_here(tmp_path: Path) -> None:
    files = on_node(planned())["files"]
    Trainer(RunStore(tmp_path), Execution(device="cpu")).train_alone(planned(), [])
    mine = {path.relative_to(tmp_path).as_posix(): path for path in tmp_path.rglob("*") if path.is_file()}
    assert {name for name in files if "tensorboard" not in name} == {name for name in mine if "tensorboard" not in name}
    there, here = (json.loads(text) for text in (files["own/seed3/run.json"], mine["own/seed3/run.json"].read_text()))
    assert there["last"]["test"] == here["last"]["test"]
    assert there["recipe"] == here["recipe"]


def test_a_node_trains_the_seeds_of_a_group_at_once() -> None:
    files = on_node(planned(3), planned(4))["files"]
    runs = [json.loads(files[f"own/seed{seed}/run.json"]) for seed in (3, 4)]
    assert [(run["seed"], run["stacked_with"]) for run in runs] == [(3, 2), (4, 2)]


def test_a_node_returns_a_diverged_run_as_a_record_and_the_reason_of_a_failure() -> None:
    end = on_node(planned(**{"optimizer.lr": 1e30, "epochs": 5}))
    assert "failed" not in end
    record = json.loads(end["files"]["own/seed3/run.json"])
    assert record["status"] == "diverged" and tempfile.gettempdir() not in record["error"]
    assert "the sweep has 0.0.0: install the same" in on_node(planned(), version="0.0.0")["failed"]


@pytest.mark.slow
def test_a_sweep_over_two_nodes_one_of_which_is_killed_equals_local_runs(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    recipe = tmp_path / "own.toml"
    recipe.write_text(RECIPE.format(epochs=20, images=800))
    for name, value in {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}.items():
        monkeypatch.setenv(name, value)  # for the nodes, too
    environment = {**os.environ, "PYTHONWARNINGS": "default"}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        dies = cluster.add_node(num_cpus=1)
        words = command("sweep", recipe, *VARY, "--out", tmp_path / "ray", "--ray", cluster.address, "--json")
        with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
            finished: list[Path] = []
            while len(finished) < 2:  # by now both nodes are at work on their second run
                assert job.poll() is None, job.communicate()
                finished = sorted((tmp_path / "ray").glob("*/seed*/run.json"))
                time.sleep(0.05)
            times = {path: path.stat().st_mtime_ns for path in finished}
            second = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
            assert second.returncode == 1
            assert f"is in use by process {job.pid}" in second.stderr
            time.sleep(1)
            cluster.remove_node(dies, allow_graceful=False)
            printed, errors = job.communicate(timeout=300)
        assert job.returncode == 0, errors
        assert {path: path.stat().st_mtime_ns for path in finished} == times  # what was finished is not run again
    finally:
        cluster.shutdown()
    here = command("sweep", recipe, *VARY, "--out", tmp_path / "here", "--json")
    done = subprocess.run(here, env=environment, capture_output=True, text=True, check=True)
    without_time = [
        [{name: value for name, value in row.items() if name != "seconds"} for row in json.loads(text)]
        for text in (printed, done.stdout)
    ]
    assert without_time[0] == without_time[1]
    ledgers = [json.loads((tmp_path / way / "sweep.json").read_text()) for way in ("ray", "here")]
    assert ledgers[0].keys() == ledgers[1].keys()
    assert [len(case["runs"]) for case in ledgers[0]["cases"]] == [3, 3]
    for path in (tmp_path / "here").glob("*/seed*/last.safetensors"):
        mine, theirs = (
            load_checkpoint(tmp_path / way / path.relative_to(tmp_path / "here"))[0] for way in ("ray", "here")
        )
        assert all((mine[name] == tensor).all() for name, tensor in theirs.items())


SWEPT = """
import json, sys
from pathlib import Path
from equalbits.paper.item import Options
from equalbits.paper.item_runs import item_cases, run_cases
from equalbits.recipes import read_recipe

out, vary = Path(sys.argv[2]), {"optimizer.lr": [0.1, 1e30]}
options = Options(device="cpu", seeds=(0, 1), ray=sys.argv[3], log=lambda line: print(line, file=sys.stderr))
cases = item_cases(read_recipe(Path(sys.argv[1])), vary, options)
found = run_cases(out, {"all": cases}, options)["all"]
for case in found:
    for run in case["runs"]:
        for name in ("seconds", "last", "best"):
            run[name] = (run.get(name) or {}).get("test") if name != "seconds" else None
        run["diverged"] = "diverged" in run
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_run_that_diverges_on_the_cluster_is_reported_and_stops_no_other(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("ray")
    recipe = tmp_path / "own.toml"
    recipe.write_text(RECIPE.format(epochs=3, images=200))
    for name, value in {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "default"}.items():
        monkeypatch.setenv(name, value)
    words = command("sweep", recipe, "--vary", "optimizer.lr=0.1,1e30", "--ray", "local", "--device", "cpu")
    done = subprocess.run([*words, "--out", tmp_path / "a"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "equalbits sweep: 1e+30 seed 0: " in done.stderr.splitlines()[-1]
    assert "non-finite" in done.stderr.splitlines()[-1]
    assert (tmp_path / "a" / "0.1" / "seed0" / "run.json").exists()
    found = [
        subprocess.run(
            [sys.executable, "-c", SWEPT, recipe, tmp_path / f"runs{way}", way],
            capture_output=True,
            text=True,
            check=True,
        )
        for way in ("local", "")
    ]
    there, here = (json.loads(each.stdout.splitlines()[-1]) for each in found)
    assert there == here
    assert [run["diverged"] for case in there for run in case["runs"]] == [False, False, True, True]
