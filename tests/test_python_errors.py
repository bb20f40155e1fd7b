"""Mistakes of a first script end in one line with a remedy, or do what was meant."""

from pathlib import Path

import pytest
import torch
from torch import nn

import equalbits as eb
from equalbits.recipes import DataConfig, Recipe
from equalbits.training import OptimizerConfig, ScheduleConfig

IMAGES = torch.randn(2, 3, 8, 8)
DATA = eb.load_dataset("synthetic:3x8x8:10:64", split="train")


def small_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10)
    )


def loader() -> eb.Loader:
    return eb.Loader(DATA, batch_size=32)


MISTAKES = {
    "adam without lr": (
        lambda: eb.TrainConfig(epochs=1, optimizer="adam"),
        """needs its learning rate, since the default is SGD's: give {"name": "adam", "lr": 0.001}""",
    ),
    "unknown optimizer": (lambda: eb.TrainConfig(epochs=1, optimizer="sdg"), "optimizer.name='sdg' must be one of"),
    "optimizer of torch": (
        lambda: eb.TrainConfig(epochs=1, optimizer=torch.optim.SGD),
        "must be OptimizerConfig(…), a dict of its settings, or its name",
    ),
    "a string for a number": (lambda: eb.TrainConfig(epochs="3"), "epochs='3' must be an integer, at least 1"),
    "by position": (lambda: eb.TrainConfig(3), "TrainConfig takes its settings by name, as in TrainConfig(epochs=…)"),
    "a setting of a group": (lambda: eb.TrainConfig(epochs=1, lr=0.1), "no setting 'lr': give optimizer={'lr': 0.1}"),
    "a misspelled setting": (lambda: eb.TrainConfig(epoch=1), "no setting 'epoch': did you mean epochs?"),
    "an unknown recipe": (lambda: eb.run_recipe("fashion-conv", "runs/x"), "did you mean 'fashion-conv2'?"),
    "a directory to audit": (lambda: eb.audit("runs/a"), "load it with eb.load_run('runs/a').model"),
    "a packed file to audit": (lambda: eb.audit("a.ebits"), "load it with eb.load_packed('a.ebits')"),
    "a directory to pack": (lambda: eb.pack("runs/a", "net.ebits"), "load it with eb.load_run('runs/a').model"),
    "words as settings": (
        lambda: eb.get_recipe("fashion-conv2").with_settings("epochs=2"), 'as in with_settings({"epochs": 2})'
    ),
    "a model to share": (
        lambda: eb.save_pretrained(small_net(), "shared"), "give the result of eb.run_recipe or eb.load_run"
    ),
    "a path to summarize": (lambda: eb.summarize(Path("runs/a"), (3, 8, 8)), "eb.load_run('runs/a').model"),
    "other channels": (lambda: eb.summarize(small_net(), (1, 1, 8, 8)), "cannot run on inputs of shape (1, 1, 8, 8)"),
    "a data set to train on": (
        lambda: eb.train(small_net(), DATA, {"epochs": 1}),
        "batches is a Dataset: wrap it in a loader, as in eb.Loader(dataset, batch_size=128)",
    ),
    "a data set to test on": (
        lambda: eb.train(small_net(), loader(), {"epochs": 1}, test=DATA), "batches is a Dataset: wrap it in a loader"
    ),
    "a data set to evaluate": (lambda: eb.evaluate(small_net(), DATA), "batches is a Dataset: wrap it in a loader"),
    "swapped arguments": (lambda: eb.evaluate(loader(), small_net()), "the model is a Loader: pass a torch.nn.Module"),
    "epochs as settings": (lambda: eb.train(small_net(), loader(), 3), "config=3 must be TrainConfig(…), a dict"),
    "the name of a data set": (lambda: eb.Loader("fashion", batch_size=3), "load it first, as in eb.load_dataset("),
    "half an image": (lambda: eb.Loader(DATA, batch_size=2.5), "batch_size=2.5 must be an integer, at least 1"),
    "a word for true": (lambda: eb.Loader(DATA, batch_size=2, augment="yes"), "augment='yes' must be True, False or"),
    "a directory as a name": (
        lambda: eb.load_dataset("src", split="test"), "give a folder as load_dataset('imagefolder', 'src', …)"
    ),
    "a number of layers": (
        lambda: eb.binarize_(small_net(), eb.BiHalf(), where=3), "where=3 must be a policy such as all_layers, or names"
    ),
    "the name of a model as a number": (lambda: eb.create_model(3), "model '3' is not known"),
    "the name of a recipe as a number": (lambda: eb.get_recipe(3), "no recipe 3"),
    "the name of an item as a number": (lambda: eb.reproduce(3, "runs/x"), "item '3' is not known"),
    "weights of no layer": (lambda: eb.load_real(small_net(), {}), "has no weights for 0: use one of the same network"),
    "weights into a directory": (lambda: eb.load_real("runs/a", {}), "load it with eb.load_run('runs/a').model"),
    "a word as progress": (lambda: eb.set_progress(small_net(), "half"), "progress='half' is not a share of training"),
    "a shape as example": (
        lambda: eb.binarize_(small_net(), eb.BiHalf(), example=(1, 3, 8, 8)), "give a batch of inputs, as in torch."
    ),
    "a mean as preprocessing": (
        lambda: eb.pack(small_net(), IMAGES, preprocessing=0.5), "give equalbits.deploy.Preprocessing(mean=…, std=…)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_explained_in_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])
    make, line = MISTAKES[name]
    with pytest.raises((ValueError, TypeError)) as caught:
        make()
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_groups_of_settings_are_given_as_tables_or_names() -> None:
    config = eb.TrainConfig(epochs=2, optimizer={"name": "adam", "lr": 1e-3}, schedule="constant")
    assert config.optimizer == OptimizerConfig(name="adam", lr=1e-3) and config.schedule == ScheduleConfig(
        name="constant"
    )
    recipe = Recipe(name="own", model="conv2", data={"name": "fashion", "limit": 9}, train={"epochs": 1})
    assert recipe.data == DataConfig(name="fashion", limit=9) and recipe.model.name == "conv2"


def test_quantizers_are_given_by_name() -> None:
    named, built = small_net(), small_net()
    eb.binarize_(named, "bihalf:p_pos=0.25", input_quantizer="sign")
    eb.binarize_(built, eb.BiHalf(0.25), input_quantizer=eb.SignActivation())
    assert repr(named) == repr(built)


def test_a_file_that_cannot_be_written_is_named_alone(tmp_path: Path) -> None:
    packed = eb.load_packed(Path(__file__).parent / "golden" / "plain.ebits")
    with pytest.raises(FileNotFoundError) as caught:
        packed.save(tmp_path / "none" / "net.ebits")
    assert str(caught.value).endswith(f": '{tmp_path / 'none' / 'net.ebits'}'")


def test_a_packed_model_is_audited_as_its_bits() -> None:
    packed = eb.load_packed(Path(__file__).parent / "golden" / "plain.ebits")
    assert str(eb.audit(packed)) == str(packed.audit()) and eb.audit(packed).exact


def test_one_image_is_a_batch_of_one_for_a_model_with_2d_convolutions() -> None:
    model = small_net()
    expected = eb.summarize(model, (1, 3, 8, 8))
    assert eb.summarize(model, (3, 8, 8)) == eb.summarize(model, IMAGES[0]) == expected
    assert eb.summarize(nn.Conv1d(3, 4, 3), (5, 3, 8)).example == (5, 3, 8)


def test_a_recipe_is_run_by_its_file_and_loaded_again(tmp_path: Path) -> None:
    small = {"epochs": 1, "data.limit": 128, "model.options.width": 0.05}
    recipe = eb.get_recipe("fashion-conv2").with_settings(small)
    (tmp_path / "own.toml").write_text(recipe.to_toml())
    done = eb.run_recipe(str(tmp_path / "own.toml"), str(tmp_path / "run"), device=torch.device("cpu"))
    loaded = eb.load_run(str(tmp_path / "run"))
    assert loaded.recipe == done.recipe == recipe and loaded.history == done.history and loaded.out == done.out
    assert all(torch.equal(a, b) for a, b in zip(loaded.model.parameters(), done.model.parameters(), strict=True))
