"""The directory of a run: content, loading and refusals."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import torch
from forked import start_ranks
from small_recipe import own, sweep

from equalbits.recipes import (
    DataSpec,
    Recipe,
    evaluate_run,
    get_recipe,
    load_run,
    make_model,
    pick_device,
    read_recipe,
    run_recipe,
)
from equalbits.recipes.run_dir import removed_on_failure
from equalbits.training import CheckpointError


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    """A finished run."""
    out = tmp_path_factory.mktemp("runs") / "a"
    run_recipe(own(), out, device="cpu")
    return out


def copied(run: Path, tmp_path: Path, *names: str) -> Path:
    out = tmp_path / "copy"
    out.mkdir()
    for name in names or ("recipe.toml", "model.json", "last.safetensors", "run.json"):
        (out / name).write_bytes((run / name).read_bytes())
    return out


def test_a_run_directory_is_complete(done: Path) -> None:
    names = {"recipe.toml", "model.json", "history.jsonl", "last.safetensors", "best.safetensors", "run.json"}
    assert {path.name for path in done.iterdir()} == {*names, "tensorboard"}
    assert read_recipe(done / "recipe.toml") == own()
    facts = json.loads((done / "run.json").read_text())
    assert Recipe.from_dict(facts["recipe"]) == own()
    assert facts["versions"]["torch"] == torch.__version__
    assert (facts["seed"], facts["processes"]) == (0, 1)
    assert facts["command"] is None  # it was this test that called
    assert facts["last"]["test"]["total"] == 6
    lines = [json.loads(line) for line in (done / "history.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert facts["last"] == lines[-1]
    assert facts["best"] == max(lines, key=lambda line: line["test"]["correct"])
    assert facts["seconds"] == pytest.approx(sum(line["seconds"] for line in lines), abs=0.01)
    assert list((done / "tensorboard").iterdir())


def test_a_loaded_model_has_the_score_of_its_run(done: Path) -> None:
    facts = json.loads((done / "run.json").read_text())
    for which in ("last", "best"):
        score = evaluate_run(done, device="cpu", which=which)
        assert {**vars(score)} == pytest.approx(facts[which]["test"])
    run = load_run(done)
    recipe, model = run.recipe, run.model
    assert recipe == own()
    assert not model.training


def test_initial_weights_depend_on_the_seed_alone(done: Path) -> None:
    images = DataSpec.read(done / "model.json")
    torch.manual_seed(1)
    one = make_model(own(), images).state_dict()
    torch.manual_seed(2)
    two = make_model(own(), images).state_dict()
    other = make_model(own(seed=1), images).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_a_finished_run_is_unchanged(done: Path, tmp_path: Path) -> None:
    out = copied(done, tmp_path)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    result = run_recipe(own(), out, device="cpu")
    assert [record.epoch for record in result.history.epochs] == [1, 2]
    assert {name: (out / name).read_bytes() for name in before} == before


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"epochs": 3},
            "holds a run with epochs=2, this one has epochs=3: use the same settings to resume, or",
        ),
        ({"data.augment": False}, "holds a run with data.augment=True, this one has data.augment=False"),
        ({"model.weight_quantizer": "sign"}, "holds a run with model.weight_quantizer=bihalf"),
        ({"model.options.batch_norm": True}, "holds a run with model.options.batch_norm=None, this one has"),
        ({"optimizer.lr": 0.3}, "holds a run with optimizer.lr=0.1, this one has optimizer.lr=0.3"),
    ],
)
def test_a_folder_keeps_to_one_run(done: Path, tmp_path: Path, settings: dict, line: str) -> None:
    out = copied(done, tmp_path)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(CheckpointError, match=line):
        run_recipe(own(**settings), out, device="cpu")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def renamed(run: Path, tmp_path: Path, **facts: object) -> Path:
    """A run that was trained on other images, as its model.json says."""
    out = copied(run, tmp_path)
    known = json.loads((out / "model.json").read_text())
    (out / "model.json").write_text(json.dumps(known | facts))
    return out


OTHERS = [
    (
        {"classes": ["cat", "dog", "eel", "fox"]},
        r"4 classes \(cat, dog, eel, …\), this data has 4 \(class 0, class 1, ",
    ),
    ({"classes": ["cat"]}, r"1 classes \(cat\), this data has 4 \("),
    ({"channels": 3}, "images of 3×8×8, this data has 1×8×8: "),
]


@pytest.mark.parametrize(("facts", "line"), OTHERS)
def test_a_directory_keeps_to_its_test_images_and_a_refusal_changes_nothing(
    done: Path, tmp_path: Path, facts: dict, line: str
) -> None:
    out = renamed(done, tmp_path, **facts)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(CheckpointError, match=f"holds a run on {line}"):
        run_recipe(own(), out, device="cpu")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize(("facts", "line"), OTHERS[:1])
def test_a_model_is_scored_only_on_images_with_its_classes(done: Path, tmp_path: Path, facts: dict, line: str) -> None:
    out = renamed(done, tmp_path, **facts)
    with pytest.raises(ValueError, match=f"was trained on {line}.* with --data"):
        evaluate_run(out, device="cpu")


def test_a_run_that_cannot_resume_leaves_its_directory_unchanged(done: Path, tmp_path: Path) -> None:
    out = copied(done, tmp_path)
    (out / "last.safetensors").write_bytes(b"broken")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(CheckpointError, match="is not a readable checkpoint"):
        run_recipe(own(about="other words"), out, device="cpu", root=tmp_path)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_settings_without_effect_on_results_may_differ(done: Path, tmp_path: Path) -> None:
    out = copied(done, tmp_path)
    changed = own(checkpoint_seconds=1.0, about="other words", **{"data.test_batch_size": 7, "data.workers": 0})
    assert len(run_recipe(changed, out, device="cpu").history.epochs) == 2


def test_a_run_without_its_weights_restarts_and_its_old_result_is_removed(done: Path, tmp_path: Path) -> None:
    out = copied(done, tmp_path, "recipe.toml", "model.json", "run.json")
    (out / "run.json").write_text('{"old": true}')
    run_recipe(own(epochs=1), out, device="cpu")
    assert json.loads((out / "run.json").read_text())["recipe"]["epochs"] == 1


@pytest.mark.parametrize(
    ("missing", "line"),
    [
        ("recipe.toml", "is not the folder of a run: it holds no recipe.toml; name one that train or sweep wrote; "),
        ("model.json", "model.json does not exist: name the folder of a run that train wrote"),
        ("last.safetensors", "last.safetensors does not exist: name the directory of a run, or train one first"),
    ],
)
def test_a_directory_with_a_missing_file_names_it(done: Path, tmp_path: Path, missing: str, line: str) -> None:
    out = copied(done, tmp_path)
    (out / missing).unlink()
    with pytest.raises(CheckpointError, match=line):
        load_run(out)


def test_an_empty_model_json_is_refused(done: Path, tmp_path: Path) -> None:
    out = copied(done, tmp_path)
    for text in ("{", "[]", '{"classes": 3}'):
        (out / "model.json").write_text(text)
        with pytest.raises(CheckpointError, match="does not describe the images of the model"):
            load_run(out)


def test_weights_that_do_not_fit_the_recipe_are_refused(done: Path, tmp_path: Path) -> None:
    out = copied(done, tmp_path)
    table = tomllib.loads((out / "recipe.toml").read_text())
    table["model"]["options"]["width"] = 0.1
    (out / "recipe.toml").write_text(Recipe.from_dict(table).to_toml())
    with pytest.raises(CheckpointError, match="holds the weights of another model"):
        load_run(out)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with pytest.raises(ValueError, match=r"a is a file: name a folder, new or of the same run, with --out"):
        run_recipe(own(), tmp_path / "a", device="cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "mps", "meta", ""])
def test_an_invalid_device_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"device={name!r} is not known: use auto, cpu, cuda, or cuda:1"):
        pick_device(name)


def test_a_missing_gpu_is_refused() -> None:
    assert pick_device("cpu") == "cpu"
    with pytest.raises(ValueError, match=r"device='cuda:99' is not there: torch sees .*; use --device cpu"):
        pick_device("cuda:99")


def test_a_teacher_of_other_data_is_refused(done: Path, tmp_path: Path) -> None:
    recipe = own(**{"data.name": "synthetic:1x8x8:3:24", "distill.weight": 0.5})
    with pytest.raises(ValueError, match=r"was trained on 4 classes \(.*\), this data has 3 \("):
        run_recipe(recipe, tmp_path / "b", device="cpu", teacher=done)


def test_a_run_learns_from_a_teacher(done: Path, tmp_path: Path) -> None:
    taught = run_recipe(own(**{"distill.weight": 0.9}), tmp_path / "b", device="cpu", teacher=done)
    alone = run_recipe(own(), tmp_path / "c", device="cpu")
    assert taught.history.epochs[0].train.loss != alone.history.epochs[0].train.loss


def test_the_recipe_of_a_teacher_is_trained_first_on_the_same_data(tmp_path: Path) -> None:
    settings = {"distill.weight": 0.5, "distill.teacher": "fashion-conv2", "data.hold_out": 4, "weight_average": 0.5}
    recipe = own(**settings)
    run_recipe(recipe, tmp_path / "a", device="cpu")
    teacher = load_run(tmp_path / "a" / "teacher").recipe
    assert (teacher.name, teacher.data.name, teacher.data.hold_out) == ("fashion-conv2", recipe.data.name, 4)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a" / "teacher").glob("*.safetensors")}
    (tmp_path / "a" / "run.json").unlink()
    run_recipe(recipe, tmp_path / "a", device="cpu")  # the teacher is not trained again
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_teacher_that_was_trained_elsewhere_needs_its_weights_alone(tmp_path: Path) -> None:
    recipe = own(**{"distill.weight": 0.5, "distill.teacher": "fashion-conv2"})
    first = get_recipe("fashion-conv2").with_settings({"data.name": recipe.data.name, "data.limit": recipe.data.limit})
    sweep(first, tmp_path / "sweep", vary={"model.weight_quantizer": ["bihalf"]}, seeds=[0], stack=2, device="cpu")
    teacher = tmp_path / "a" / "teacher"
    shutil.copytree(tmp_path / "sweep" / "bihalf" / "seed0", teacher)
    before = (teacher / "weights.safetensors").read_bytes()
    run_recipe(recipe, tmp_path / "a", device="cpu")
    assert (teacher / "weights.safetensors").read_bytes() == before and not (teacher / "last.safetensors").exists()
    (tmp_path / "b").mkdir()
    shutil.copytree(tmp_path / "sweep" / "bihalf" / "seed0", tmp_path / "b" / "teacher")
    other = recipe.with_settings({"data.hold_out": 4})
    with pytest.raises(CheckpointError, match=r"teacher holds a run with data\.hold_out=0, this one has .*=4"):
        run_recipe(other, tmp_path / "b", device="cpu")


@pytest.mark.parametrize("first", ["distill.teacher", "model.init_from"])
def test_nothing_is_trained_first_for_a_run_that_is_refused(first: str, done: Path, tmp_path: Path) -> None:
    settings = {first: "fashion-conv2", "distill.weight": 0.5 if first == "distill.teacher" else 0.0}
    with pytest.raises(ValueError, match="must be a number"):
        run_recipe(own(**settings, **{"model.options.width": "wide"}), tmp_path / "new", device="cpu")
    assert not (tmp_path / "new").exists()
    out = copied(done, tmp_path, "history.jsonl")
    with pytest.raises(ValueError, match="equalbits did not write"):
        run_recipe(own(**settings), out, device="cpu")
    assert [path.name for path in out.iterdir()] == ["history.jsonl"]


def test_two_processes_wait_until_the_teacher_is_saved(tmp_path: Path) -> None:
    recipe = own(**{"distill.weight": 0.5, "distill.teacher": "fashion-conv2", "data.limit": 16})
    (tmp_path / "own.toml").write_text(recipe.to_toml())
    words = ["-m", "equalbits", "train", tmp_path / "own.toml", "--out", tmp_path / "a", "--device", "cpu"]
    ranks = start_ranks(*words)
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0], [rank.communicate() for rank in ranks]
    assert (tmp_path / "a" / "run.json").exists() and (tmp_path / "a" / "teacher" / "run.json").exists()


def test_a_second_stage_starts_from_the_weights_of_the_first(tmp_path: Path) -> None:
    run_recipe(own(**{"model.weight_quantizer": ""}), tmp_path / "real", device="cpu")
    first = load_run(tmp_path / "real").model
    settings = {"model.init_from": str(tmp_path / "real"), "optimizer.lr": 1e-12, "optimizer.weight_decay": 0.0}
    second = run_recipe(own(**settings), tmp_path / "binary", device="cpu").model
    for name, value in first.named_parameters():
        torch.testing.assert_close(dict(second.named_parameters())[name], value)
    with pytest.raises(ValueError, match="that run has no weights for conv1"):
        run_recipe(own(**settings, **{"model.options.width": 0.1}), tmp_path / "wider", device="cpu")


def test_training_starts_from_a_run_of_other_classes_with_a_new_classifier(done, tmp_path, caplog) -> None:
    still = {"optimizer.lr": 1e-12, "optimizer.weight_decay": 0.0, "epochs": 1, "model.init_from": str(done)}
    first = load_run(done).model.state_dict()
    second = run_recipe(own(**still, **{"data.name": "synthetic:1x8x8:3:24"}), tmp_path / "b", device="cpu").model
    assert f"{done} has 4 classes: fc3 is new" in caplog.text
    for name, value in second.named_parameters():
        assert (value.shape == first[name].shape) is not name.startswith("fc3"), name
        if not name.startswith("fc3"):
            torch.testing.assert_close(value.detach(), first[name])


@pytest.mark.parametrize("source", ["runs/none", "net.ebits"])
@pytest.mark.parametrize("setting", ["model.init_from", "distill.teacher"])
def test_a_path_that_holds_no_run_is_not_called_a_recipe(source, setting, tmp_path) -> None:
    recipe = own(**{setting: source, "distill.weight": 0.5 if setting == "distill.teacher" else 0.0})
    with pytest.raises(ValueError, match=f"{source} is neither the directory of a run nor a recipe"):
        run_recipe(recipe, tmp_path / "b", device="cpu")
    assert not (tmp_path / "b").exists()


def test_training_on_fewer_images_takes_the_first_ones(tmp_path: Path) -> None:
    result = run_recipe(own(**{"data.limit": 9, "epochs": 1}), tmp_path / "a", device="cpu")
    assert result.history.epochs[0].train.total == 9
    assert result.history.epochs[0].test.total == 6  # every test image counts all the same


def test_leftovers_that_cannot_be_removed_do_not_hide_the_error_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "model.json").mkdir()  # as little to be unlinked as a file of a folder that was made read-only
    (tmp_path / "recipe.toml").touch()
    with pytest.raises(KeyError), removed_on_failure(tmp_path):
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["model.json"]


@pytest.mark.parametrize("damaged", ["", '{"recipe": ', "null", '{"last": null}'])
def test_a_damaged_result_is_written_again_from_the_weights(damaged: str, done: Path, tmp_path: Path) -> None:
    out = copied(done, tmp_path)
    (out / "run.json").write_text(damaged)
    run_recipe(own(), out, device="cpu")
    assert json.loads((out / "run.json").read_text()) == json.loads((done / "run.json").read_text())


def edit_recipe(out: Path, name: str, value: object) -> None:
    """Edit recipe.toml by hand, as a user might."""
    recipe = read_recipe(out / "recipe.toml").with_settings({name: value})
    (out / "recipe.toml").write_text(recipe.to_toml())


@pytest.mark.parametrize(("name", "value"), [("model.weight_quantizer", "sign"), ("data.erase", 2)])
def test_an_edited_recipe_toml_is_noticed_by_the_recipe_in_the_checkpoint(done, tmp_path, name, value) -> None:
    out = copied(done, tmp_path)
    edit_recipe(out, name, value)
    with pytest.raises(
        CheckpointError,
        match=f"last.safetensors holds a run with {name}=.*equalbits train resumes with --allow-changes",
    ):
        run_recipe(read_recipe(out / "recipe.toml"), out, device="cpu")
    if name.startswith("model"):
        with pytest.raises(CheckpointError, match=r"a net of another recipe than .*recipe\.toml, whose \[model\]"):
            load_run(out)


def test_a_change_that_is_allowed_is_listed_in_run_json(done: Path, tmp_path: Path) -> None:
    out = copied(done, tmp_path, "recipe.toml", "model.json", "last.safetensors")
    recipe = own(epochs=3, **{"data.erase": 2})
    result = run_recipe(recipe, out, device="cpu", allow_changes=True)
    assert len(result.history.epochs) == 3
    record = json.loads((out / "run.json").read_text())
    assert record["changes"] == ["epochs=2 → 3", "data.erase=0 → 2", *record["changes"][2:]]
    assert Recipe.from_dict(record["recipe"]) == recipe
    assert "changes" not in json.loads((done / "run.json").read_text())
    run_recipe(recipe, out, device="cpu")  # it is now a run of this recipe
