"""Image folders are trained on, evaluated, packed and run with the same preprocessing."""

import json
import shutil

import forked
import numpy as np
import pytest
import torch
from PIL import Image

from equalbits.cli import main
from equalbits.deploy import pack
from equalbits.recipes import load_run
from equalbits.recipes.build import DataSpec, make_loader
from equalbits.runtime import load_packed
from equalbits.training.distributed import ProcessRank

RECIPE = """
epochs = 2
[model]
name = "conv2"
options = {width = 0.05}
[data]
name = "imagefolder"
batch_size = 4
resize = 20
crop = 16
workers = 0
"""


def draw(folder, *, seed, size=(31, 26)):
    """A dozen pictures of two classes, none of them square: plain, with a palette, grey, and JPEG on its side."""
    random = np.random.default_rng(seed)
    sideways = Image.Exif()
    sideways[0x0112] = 6
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(5):
            pixels = random.integers(0, 256, (*size, 3), dtype=np.uint8)
            picture = Image.fromarray(pixels)
            picture = [picture, picture.convert("P"), picture.convert("L")][number % 3]
            picture.save(folder / name / f"{number}.png")
        large = random.integers(0, 256, (4 * size[0], 4 * size[1], 3), dtype=np.uint8)
        Image.fromarray(large).save(folder / name / "6.jpg", exif=sideways)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A tree of made-up pictures, with train/ and val/."""
    root = tmp_path_factory.mktemp("pictures")
    draw(root / "train", seed=0)
    draw(root / "val", seed=1)
    return root


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "own.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def run(pictures, own, tmp_path_factory):
    """A run trained on the pictures; to read and not to write."""
    out = tmp_path_factory.mktemp("runs") / "own"
    assert main(["train", str(own), "--data", str(pictures), "--out", str(out), "--device", "cpu", "--json"]) == 0
    return out


def test_run_preprocesses_images_exactly_as_evaluate(run, pictures, tmp_path, call):
    assert call("pack", run, tmp_path / "net.ebits")[0] == 0
    loaded = load_run(run)
    recipe, model = loaded.recipe, loaded.model
    test = make_loader(recipe.data, "test", root=pictures, device="cpu", seed=0, place=ProcessRank())
    with torch.no_grad():
        logits = torch.cat([model(images) for images, _ in test]).numpy()
    classes = test.dataset.classes
    code, printed, errors = call("run", tmp_path / "net.ebits", *test.dataset.paths, "--json")
    assert (code, errors) == (0, "")
    found = json.loads(printed)
    for path, row in zip(test.dataset.paths, logits, strict=True):
        assert found[path][0]["class"] == classes[row.argmax()]
        answer = {entry["class"]: entry["logit"] for entry in found[path]}
        assert [answer[name] for name in classes] == pytest.approx(row.tolist(), abs=1e-5)


def test_run_takes_folders_of_images_and_folders_of_runs(run, pictures, tmp_path, call):
    assert call("pack", run, tmp_path / "net.ebits")[0] == 0
    answers = [call("run", source, pictures / "val", "--json") for source in (tmp_path / "net.ebits", run)]
    assert answers[0] == answers[1] and answers[0][0] == 0
    assert [*json.loads(answers[0][1])] == sorted(map(str, (pictures / "val").rglob("*.*")))
    (tmp_path / "empty").mkdir()
    code, _, errors = call("run", tmp_path / "net.ebits", tmp_path / "empty")
    assert code == 1 and "holds no image: give images that end in .bmp" in errors


def test_a_packed_file_is_evaluated_on_the_data_with_its_classes(run, pictures, tmp_path, call):
    packed = tmp_path / "net.ebits"
    code, printed, _ = call("pack", run, packed)
    trained = json.loads((run / "run.json").read_text())["last"]["test"]
    accuracy = f"{100 * trained['correct'] / 12:.2f} % of 12"
    assert code == 0 and f"12 of 12 test images, accuracy {accuracy}" in printed
    code, printed, errors = call("evaluate", packed, "--data", pictures, "--json")
    found = json.loads(printed)
    assert (code, errors, found["dataset"]) == (0, "", "imagefolder")
    assert all(found[name] == trained[name] for name in ("correct", "total", "correct_top5"))
    assert found["loss_sum"] == pytest.approx(trained["loss_sum"], rel=1e-4)
    code, printed, errors = call("evaluate", packed, "--data", pictures)
    score = f"{accuracy} (loss {found['loss_sum'] / 12:.4f})"
    assert printed == f"{packed} (packed, test images of imagefolder in {pictures}): {score}\n"
    for words, line in (
        (("--data", tmp_path), f"no data set in {tmp_path} has the classes of the packed model (cat, dog)"),
        (("--dataset", "fashion"), "fashion has the classes T-shirt/top, trouser, pullover, …, but the packed model"),
    ):
        code, _, errors = call("evaluate", packed, *words)
        assert (code, errors.count("\n")) == (1, 1) and line in errors
    code, _, errors = call("evaluate", run, "--dataset", "fashion")
    assert code == 1 and "a run has its own data set; omit --dataset" in errors


def test_images_of_the_package_do_not_take_the_place_of_given_ones(pictures, tmp_path, call):
    embedded = tmp_path / "run"
    settings = [*("--set", "data.limit=64"), *("--set", "model.options.width=0.1"), *("--set", "epochs=1")]
    code, _, errors = call("train", "fashion-conv2", "--data", pictures, "--out", embedded, *settings)
    assert (
        code == 0 and f"note: fashion is not read from files, so not from {pictures}; for your own pictures" in errors
    )
    ours = "(T-shirt/top, trouser, pullover, …), but cat, dog: name the folder"
    for words, line in (
        (("zoo:fashion-conv4",), f"no data set in {pictures} has the classes of the packed model {ours}"),
        (
            ("zoo:fashion-conv4", "--dataset", "fashion"),
            f"fashion is not read from files, so not from {pictures}: omit",
        ),
        ((embedded,), f"fashion is not read from files, so not from {pictures}: omit --data"),
    ):
        code, printed, errors = call("evaluate", *words, "--data", pictures)
        assert (code, printed, errors.count("\n")) == (1, "", 1) and line in errors


def test_the_resize_is_stored_with_the_model(run, tmp_path, call):
    assert json.loads((run / "model.json").read_text())["resize"] == 20
    assert DataSpec.read(run / "model.json").resize == 20
    assert call("pack", run, tmp_path / "net.ebits")[0] == 0
    network = load_packed(tmp_path / "net.ebits").network
    assert (network.resize, network.input_shape) == (20, (3, 16, 16))


def test_a_run_without_resize_can_be_read(run, tmp_path, call):
    facts = json.loads((run / "model.json").read_text())
    del facts["resize"]
    (tmp_path / "model.json").write_text(json.dumps(facts))
    assert DataSpec.read(tmp_path / "model.json").resize is None


def test_uint8_for_a_file_without_mean_and_std_is_rejected_with_remedies(pictures, tmp_path, call):
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 4 * 4, 2))
    pack(net, torch.randn(2, 3, 4, 4)).save(tmp_path / "bare.ebits")
    code, _, errors = call("run", tmp_path / "bare.ebits", pictures / "val" / "cat" / "0.png")
    assert code == 1
    assert errors.endswith("pack again with preprocessing=, or give a .npy file of floats\n")


def test_a_text_file_is_reported_as_not_a_packed_model(tmp_path, call):
    (tmp_path / "README.md").write_text("# A text that nobody packed")
    code, _, errors = call("inspect", tmp_path / "README.md")
    assert (code, errors.count("\n")) == (1, 1)
    assert errors.startswith(f"equalbits inspect: {tmp_path / 'README.md'}: not a packed model")


def test_evaluate_finds_the_images_of_the_run(run, pictures, tmp_path, call, monkeypatch):
    monkeypatch.setenv("EQUALBITS_DATA", str(tmp_path / "elsewhere"))
    code, printed, errors = call("evaluate", run, "--device", "cpu", "--json")
    assert (code, errors) == (0, "")
    trained = json.loads((run / "run.json").read_text())["last"]["test"]
    assert json.loads(printed)["correct"] == trained["correct"]


def test_evaluate_and_resume_ask_for_data_that_was_moved(run, pictures, tmp_path, call, monkeypatch):
    monkeypatch.setenv("EQUALBITS_DATA", str(tmp_path / "elsewhere"))
    moved = tmp_path / "moved"
    shutil.copytree(run, moved)
    facts = json.loads((moved / "model.json").read_text())
    (moved / "model.json").write_text(json.dumps(facts | {"data": str(tmp_path / "gone")}))
    for words in (["evaluate", moved], ["train", "--resume", moved]):
        code, _, errors = call(*words, "--device", "cpu")
        assert (code, errors.count("\n")) == (1, 1)
        assert f"{tmp_path / 'gone'}, the data directory of the run, does not exist any more" in errors
        assert errors.endswith("or give --data\n")
    assert call("evaluate", moved, "--device", "cpu", "--data", pictures)[0] == 0


@pytest.mark.parametrize("command", ["train", "sweep", "compare"])
def test_a_command_without_its_data_leaves_no_directory(command, own, tmp_path, call):
    out = tmp_path / "new" / "runs"
    code, _, errors = call(command, own, "--data", tmp_path / "nowhere", "--out", out, "--device", "cpu")
    assert (code, errors.count("\n")) == (1, 1)
    assert not out.parent.exists()


def test_training_that_fails_in_its_first_batch_leaves_no_new_directory(own, tmp_path, call):
    draw(tmp_path / "data" / "train", seed=0)
    draw(tmp_path / "data" / "val", seed=1)
    for path in (tmp_path / "data" / "train").glob("*/*"):
        path.write_bytes(path.read_bytes()[:50])
    (tmp_path / "old").mkdir()
    for name in ("new", "old"):
        code, _, errors = call("train", own, "--data", tmp_path / "data", "--out", tmp_path / name, "--device", "cpu")
        assert code == 1
        assert "not a readable image" in errors
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "old" / "recipe.toml").exists()


def test_methods_are_compared_on_image_files(own, pictures, tmp_path, call):
    words = ["--data", pictures, "--out", tmp_path / "a", "--device", "cpu", "--seeds", "0", "--methods", "sign,bihalf"]
    code, printed, errors = call("compare", own, *words, "--tune", "0.01,0.1", "--json")
    assert code == 0, errors
    assert [(row["method"], row["total"]) for row in json.loads(printed)["methods"]] == [("sign", 12), ("bihalf", 12)]


def test_stacked_runs_see_the_same_batches_as_single_runs(own, pictures, tmp_path, call):
    found = []
    for stack in (1, 2):
        words = ["--data", pictures, "--out", tmp_path / str(stack), "--device", "cpu", "--seeds", "0,1", "--json"]
        code, _, errors = call("sweep", own, *words, "--stack", stack)
        assert code == 0, errors
        runs = [tmp_path / str(stack) / "own" / f"seed{seed}" / "run.json" for seed in (0, 1)]
        found.append([json.loads(path.read_text())["last"] for path in runs])
    for one, other in zip(*found, strict=True):
        for part in ("train", "test"):
            assert one[part] == pytest.approx(other[part], rel=1e-5)


def test_a_comparison_of_too_many_images_suggests_a_remedy(own, pictures, tmp_path, call):
    words = ["--data", pictures, "--out", tmp_path / "a", "--device", "cpu", "--set", "data.resize=8000"]
    code, _, errors = call("compare", own, *words)
    assert (code, errors.count("\n")) == (1, 1)
    assert "equalbits sweep --vary model.weight_quantizer=sign,bihalf" in errors
    assert not (tmp_path / "a").exists()


def test_enlarged_images_are_reported_in_one_line(own, pictures, tmp_path, call, caplog):
    words = ["train", own, "--data", pictures, "--device", "cpu", "--set", "epochs=1", "--json"]
    assert call(*words, "--out", tmp_path / "a")[2] == ""
    assert caplog.messages == []
    larger = ["--set", "data.resize=40", "--set", "data.crop=32", "--out", tmp_path / "b"]
    done = forked.run("-m", "equalbits", *words, *larger)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 0
    assert "is 26×31 pixels: pictures are enlarged to 40×40 and cropped to 32×32" in line
    assert line.endswith("set data.resize and data.crop to change that")


def test_a_resumed_run_finds_its_images(run, pictures, tmp_path, call):
    out = tmp_path / "own"
    shutil.copytree(run, out)
    code, printed, errors = call("train", "--resume", out, "--device", "cpu")
    assert (code, errors) == (0, "")
    assert f"{out} was already finished: nothing to train" in printed
    assert json.loads((out / "model.json").read_text())["data"] == str(pictures)
    (out / "model.json").write_text("[]")
    assert "--data" in call("train", "--resume", out, "--device", "cpu")[2]
    (out / "model.json").unlink()
    assert "--data" in call("train", "--resume", out, "--device", "cpu")[2]
    assert call("train", "--resume", out, "--device", "cpu", "--data", pictures)[0] == 0
