"""``train``, ``evaluate``, ``list``, ``inspect``, ``sweep`` and ``download`` from the command line."""

import json
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from equalbits._extras import install_hint
from equalbits.data import EDITIONS, load_dataset
from equalbits.models import list_models
from equalbits.recipes import get_recipe, list_recipes, load_run, read_recipe
from equalbits.recipes.catalogue import published_score
from equalbits.training import load_checkpoint, save_checkpoint


def test_train_prints_the_score_and_each_epoch_on_stderr(call, recipe: str, tmp_path: Path) -> None:
    out = tmp_path / "a"
    code, printed, errors = call("train", recipe, "--out", out, "--device", "cpu")
    assert code == 0
    facts = json.loads((out / "run.json").read_text())
    right, total = facts["last"]["test"]["correct"], facts["last"]["test"]["total"]
    assert printed.splitlines()[0].startswith(f"own: last epoch {100 * right / total:.2f} % of {total} (loss ")
    assert printed.splitlines()[1] == f"results: {out}"
    assert [line[: len("own  epoch   1")] for line in errors.splitlines()] == ["own  epoch   1", "own  epoch   2"]


def test_json_is_one_object_and_nothing_else(call, recipe: str, trained: Path, tmp_path: Path) -> None:
    code, printed, errors = call("train", recipe, "--out", tmp_path / "a", "--device", "cpu", "--json")
    assert (code, errors) == (0, "")
    assert json.loads(printed) == json.loads((tmp_path / "a" / "run.json").read_text())
    code, printed, errors = call("evaluate", trained, "--device", "cpu", "--json")
    assert (code, errors) == (0, "")
    assert json.loads(printed)["total"] == 6
    for words in (["list"], ["list", "models"], ["list", "--show", "fashion-conv2"], ["inspect", trained]):
        code, printed, errors = call(*words, "--json")
        assert (code, errors) == (0, ""), words
        assert isinstance(json.loads(printed), dict), words


def test_evaluate_prints_the_score_of_the_last_or_the_best_epoch(call, trained: Path) -> None:
    facts = json.loads((trained / "run.json").read_text())
    for which in ("last", "best"):
        code, printed, _ = call("evaluate", trained, "--which", which, "--device", "cpu")
        assert code == 0
        share = 100 * facts[which]["test"]["correct"] / facts[which]["test"]["total"]
        assert printed.startswith(f"{trained} ({which} epoch): {share:.2f} % of 6 (loss ")


def test_evaluate_reports_an_unfinished_run(call, trained: Path, tmp_path: Path) -> None:
    for name in ("recipe.toml", "model.json", "best.safetensors"):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    tensors, facts = load_checkpoint(trained / "last.safetensors")
    for place, epoch in (({"epoch": 1, "batch": 0}, 1), ({"epoch": 1, "batch": 2}, 2)):
        save_checkpoint(tmp_path / "last.safetensors", tensors, {**facts, **place})
        code, printed, _ = call("evaluate", tmp_path, "--device", "cpu")
        assert code == 0
        assert printed.startswith(f"{tmp_path} (last epoch; not finished: epoch {epoch} of 2): ")
    assert json.loads(call("evaluate", tmp_path, "--device", "cpu", "--json")[1])["finished"] is False
    assert json.loads(call("evaluate", trained, "--device", "cpu", "--json")[1])["finished"] is True


def test_a_published_score_is_printed_for_its_own_settings_only(call, tmp_path: Path) -> None:
    published = get_recipe("cifar10-conv2")
    assert published_score(published.with_settings({"seed": 3, "evaluate_every": 5, "speed": "plain"})) == 79.25
    for name, value in (("epochs", 1), ("data.limit", 5), ("model.options.width", 0.5), ("optimizer.lr", 0.01)):
        assert published_score(published.with_settings({name: value})) is None
    small = ["--set", "data.name=synthetic:3x8x8:4:24", "--set", "epochs=1", "--set", "model.options.width=0.05"]
    code, printed, _ = call("train", "cifar10-conv2", *small, "--out", tmp_path / "a", "--device", "cpu")
    assert code == 0
    assert ", published " not in printed


def test_inspect_prints_the_layers_and_the_audit(call, trained: Path) -> None:
    code, printed, _ = call("inspect", trained)
    assert code == 0
    assert printed.startswith("own: conv2, bihalf\n")
    assert "conv1" in printed


def test_a_recipe_printed_as_toml_trains_from_that_file(call, tmp_path: Path) -> None:
    code, printed, _ = call("list", "--show", "fashion-conv2")
    assert code == 0
    path = tmp_path / "copy.toml"
    path.write_text(printed)
    words = ["--set", "epochs=1", "--set", "data.limit=64", "--set", "model.options.width=0.05"]
    code, _, _ = call("train", path, *words, "--out", tmp_path / "a", "--device", "cpu", "--json")
    assert code == 0
    facts = json.loads((tmp_path / "a" / "run.json").read_text())
    assert facts["recipe"]["name"] == "fashion-conv2"
    assert facts["last"]["test"]["total"] == 2000
    shown = call("list", "--show", str(path))[1]
    assert shown == printed == get_recipe("fashion-conv2").to_toml()


def test_list_prints_every_kind_of_name_and_matches_patterns(call) -> None:
    names = json.loads(call("list", "--json")[1])
    assert names["recipes"] == list_recipes()
    assert names["models"] == list_models()
    assert {"sign", "bihalf", "irnet"} <= set(names["methods"])
    assert set(names["compare-only"]) == {"bop", "balanced-bop", "real"}
    assert {"sign", "ede"} <= set(names["inputs"])
    assert {"fashion", "cifar10", "imagenet", "synthetic"} <= set(names["data"])
    code, printed, _ = call("list", "recipes", "--match", "fashion-conv?")
    assert code == 0
    assert printed.splitlines()[0] == "recipes:"
    assert [line.split()[0] for line in printed.splitlines()[1:]] == ["fashion-conv2", "fashion-conv4"]


def test_a_teacher_is_given_by_its_directory(call, recipe: str, trained: Path, tmp_path: Path) -> None:
    words = ["train", recipe, "--out", tmp_path / "a", "--device", "cpu", "--teacher", trained]
    code, _, errors = call(*words)
    assert code == 1
    assert "a teacher is given but not used: set distill.weight or distill.attention above 0" in errors
    assert call(*words, "--set", "distill.weight=0.5", "--set", "distill.temperature=4")[0] == 0


def test_the_option_wandb_logs_to_a_project(call, recipe: str, tmp_path: Path, monkeypatch) -> None:
    words = ["train", recipe, "--device", "cpu", "--wandb", "bits", "--json"]
    monkeypatch.setitem(sys.modules, "wandb", None)
    code, _, errors = call(*words, "--out", tmp_path / "a")
    assert (code, errors) == (1, f"equalbits train: this needs wandb: {install_hint('wandb')}\n")
    assert not (tmp_path / "a").exists()

    begun, steps = [], []

    def init(**settings: object) -> types.SimpleNamespace:
        begun.append(settings)
        return types.SimpleNamespace(log=lambda values, step: steps.append(step))

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(login=lambda: True, init=init))
    assert call(*words, "--out", tmp_path / "a")[0] == 0
    assert [(settings["project"], settings["name"]) for settings in begun] == [("bits", "own")]
    assert steps == [1, 2]


def test_a_sweep_prints_a_row_for_every_combination(call, recipe: str, tmp_path: Path) -> None:
    words = ["sweep", recipe, "--out", tmp_path / "s", "--device", "cpu", "--set", "epochs=1"]
    words += ["--vary", "model.weight_quantizer=sign,bihalf", "--seeds", "0-1", "--stack", "2"]
    code, printed, _ = call(*words)
    assert code == 0
    assert [line.split()[0] for line in printed.splitlines()] == ["sign", "bihalf"]
    assert all(line.endswith("%  (last epoch, n=2)") for line in printed.splitlines())
    rows = json.loads(call(*words, "--json")[1])
    assert [(row["case"], row["seeds"]) for row in rows] == [("sign", [0, 1]), ("bihalf", [0, 1])]
    single = json.loads(call(*words[:-2], "--seeds", "0", "--json")[1])
    assert [row["std"] for row in single] == [None, None]


def test_a_sweep_accepts_settings_that_need_a_varied_value(call, recipe: str, tmp_path: Path) -> None:
    words = ["sweep", recipe, "--out", tmp_path / "s", "--device", "cpu", "--set", "schedule.name=step", "--json"]
    code, printed, errors = call(*words, "--vary", "schedule.milestones=[1],[2]")
    assert code == 0, errors
    assert [row["settings"]["schedule.milestones"] for row in json.loads(printed)] == [[1], [2]]


def test_a_sweep_over_networks_keeps_options_that_only_some_accept(call, recipe: str, tmp_path: Path) -> None:
    words = ["sweep", recipe, "--out", tmp_path / "s", "--device", "cpu", "--set", "epochs=1", "--vary"]
    code, _, errors = call(*words, "model.name=resnet20,conv2", "--set", "model.options.batch_norm=false")
    assert code == 0, errors
    options = [read_recipe(tmp_path / "s" / net / "seed0/recipe.toml").model.options for net in ("resnet20", "conv2")]
    assert ["batch_norm" in each for each in options] == [False, True]
    assert options[1]["batch_norm"] is False


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--seeds", "a"], "--seeds a: give whole numbers, such as 0-4 or 0,3,7"),
        (["--seeds", "4-0"], "--seeds 4-0: a range must be ascending"),
        (["--seeds", "7,4-0"], "--seeds 7,4-0: a range must be ascending"),
        (["--seeds", "²"], "--seeds ²: give whole numbers, such as 0-4 or 0,3,7"),
        (["--stack", "0"], "--stack 0 must be at least 1"),
        (["--vary", "epochs"], "--vary epochs: give name=value,value"),
        (["--vary", "epoch=1,2"], "no setting 'epoch'; did you mean 'epochs'?"),
    ],
)
def test_sweep_reports_errors_in_one_line(words: list[str], line: str, call, recipe: str, tmp_path: Path) -> None:
    code, _, errors = call("sweep", recipe, "--out", tmp_path, "--device", "cpu", *words)
    assert code == 1
    assert line in errors
    assert len(errors.splitlines()) == 1


def test_a_failed_download_names_the_directory_for_the_file(call, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(EDITIONS, "cifar10", replace(EDITIONS["cifar10"], site="http://127.0.0.1:9/"))
    code, printed, errors = call("download", "cifar10", "--data", tmp_path)
    assert (code, printed) == (1, "")
    assert "cannot download http://127.0.0.1:9/cifar-10-binary.tar.gz (" in errors
    assert errors.endswith(f"or put cifar-10-binary.tar.gz into {tmp_path / 'cifar10'} by hand\n")
    assert len(errors.splitlines()) == 1


def test_a_finished_download_prints_its_directory(call, tmp_path: Path) -> None:
    folder = tmp_path / "cifar10" / EDITIONS["cifar10"].folder
    folder.mkdir(parents=True)
    for name in EDITIONS["cifar10"].files:
        (folder / name).write_bytes(b"")
    assert call("download", "cifar10", "--data", tmp_path) == (0, f"cifar10: {folder}\n", "")
    assert json.loads(call("download", "cifar10", "--data", tmp_path, "--json")[1])["folder"] == str(folder)
    code, _, errors = call("download", "mnist", "--data", tmp_path)
    assert code == 1
    assert errors.startswith("equalbits download: cannot download 'mnist'; available are cifar10, cifar100")


def test_data_sets_are_read_from_the_given_directory(call, tmp_path: Path) -> None:
    code, _, errors = call("train", "cifar10-conv2", "--data", tmp_path, "--out", tmp_path / "a", "--device", "cpu")
    assert code == 1
    assert str(tmp_path) in errors
    with pytest.raises(ValueError, match="cifar10"):
        load_dataset("cifar10", tmp_path, split="train")


def test_training_starts_from_a_run_or_a_file_of_weights(recipe, tmp_path, call) -> None:
    def train(name: str, *words: object) -> dict[str, torch.Tensor]:
        still = (
            "--set",
            "optimizer.lr=1e-9",
            "--set",
            "epochs=1",
            "--out",
            tmp_path / name,
            "--device",
            "cpu",
            "--json",
        )
        assert call("train", recipe, *still, *words)[0] == 0
        return load_run(tmp_path / name).model.state_dict()

    real = train("real", "--set", "model.weight_quantizer=", "--set", "seed=5")
    save_file(real, tmp_path / "real.safetensors")
    for source in ("real", "real.safetensors"):
        started = train(f"from-{source}", "--start-from", tmp_path / source)
        assert all(torch.allclose(started[name], value, atol=1e-6) for name, value in real.items())
    code, _, errors = call("train", "--resume", tmp_path / "real", "--start-from", tmp_path / "real.safetensors")
    assert code == 1 and errors.endswith("has its weights; omit --start-from\n")


def test_extend_trains_a_finished_run_longer(recipe, tmp_path, call) -> None:
    out = tmp_path / "run"
    assert call("train", recipe, "--out", out, "--device", "cpu", "--json")[0] == 0
    before = load_run(out)
    code, printed, _ = call("train", "--resume", out, "--extend", 2, "--device", "cpu", "--json")
    assert code == 0 and json.loads(printed)["last"]["epoch"] == 4
    after = load_run(out)
    assert after.history.epochs[:2] == before.history.epochs and after.recipe.train.epochs == 4
    for words in (("--extend", 0, "--resume", out), (recipe, "--extend", 2)):
        code, _, errors = call("train", *words)
        assert code == 1 and "give --resume DIR and a number of epochs, at least 1, alone" in errors
