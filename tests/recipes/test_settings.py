"""Recipes are validated: names, types, groups and missing settings."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equalbits.models import registry
from equalbits.recipes import (
    Recipe,
    get_recipe,
    list_recipes,
    make_model,
    parse_settings,
    read_recipe,
)
from equalbits.recipes.build import DataSpec


@pytest.fixture
def recipe() -> Recipe:
    return get_recipe("cifar10-conv2")


def written(tmp_path: Path, text: str) -> Path:
    (tmp_path / "own.toml").write_text(text, encoding="utf-8")
    return tmp_path / "own.toml"


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_survives_a_round_trip_through_toml(name: str, tmp_path: Path) -> None:
    recipe = get_recipe(name)
    assert read_recipe(written(tmp_path, recipe.to_toml())) == recipe
    assert Recipe.from_dict(recipe.as_dict()) == recipe


@settings(max_examples=30, deadline=None)
@given(st.text(), st.floats(1e-6, 10), st.integers(0, 2**40), st.lists(st.integers(1, 99), unique=True), st.booleans())
def test_any_settings_survive_a_round_trip_through_toml(
    about: str, lr: float, seed: int, milestones: list[int], flag: bool
) -> None:
    changes = {
        "about": about,
        "optimizer.lr": lr,
        "seed": seed,
        "schedule.milestones": sorted(milestones),
        "data.augment": flag,
        "model.options.width": 0.5,
        "model.options.batch_norm": flag,
    }
    recipe = get_recipe("cifar10-conv2").with_settings(changes)
    assert Recipe.from_dict(tomllib.loads(recipe.to_toml())) == recipe


def test_a_factor_is_not_kept_as_an_integer_option_of_another_network(recipe: Recipe, monkeypatch) -> None:
    def counted(layers, num_classes, *, in_channels=3, image_size=32, width=16, batch_norm=True):
        raise NotImplementedError

    monkeypatch.setitem(registry._BUILDERS, "counted-width", counted)
    quarter = recipe.with_settings({"model.options.width": 0.25, "model.options.batch_norm": False})
    assert quarter.with_settings({"model.name": "counted-width"}).model.options == {"batch_norm": False}
    whole = recipe.with_settings({"model.options.width": 2}).with_settings({"model.name": "counted-width"})
    assert whole.model.options["width"] == 2


def test_settings_are_replaced_by_their_dotted_names(recipe: Recipe) -> None:
    words = ["epochs=2", "optimizer.lr=1", "model.name=conv4", "data.augment=false", "schedule.milestones=[3, 4]"]
    changed = recipe.with_settings(parse_settings([*words, "model.options.width=0.25", "model.weight_quantizer="]))
    assert changed.train.epochs == 2
    assert changed.train.optimizer.lr == 1.0
    assert changed.train.schedule.milestones == (3, 4)
    assert (changed.model.name, changed.model.weight_quantizer) == ("conv4", "")
    assert changed.model.options == {"width": 0.25}
    assert changed.data.augment is False
    assert recipe == get_recipe("cifar10-conv2")  # unchanged


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("epoch=2", "no setting 'epoch'; did you mean 'epochs'?"),
        ("model.weight_quantizr=sign", "'model.weight_quantizr'; did you mean 'model.weight_quantizer'?"),
        ("lr=0.1", "no setting 'lr'; did you mean 'optimizer.lr'?"),
        ("optimiser.lr=0.1", "no setting 'optimiser.lr'; did you mean 'optimizer.lr'?"),
        ("optimizer.learning=0.1", "no setting 'optimizer.learning'; there are optimizer.name, optimizer.lr"),
        ("zzz.yyy=1", "no setting 'zzz.yyy'; there are name, about"),
        ("epochs.two=2", "no setting 'epochs.two'; there are name, about"),
        ("optimizer=sgd", "'optimizer' is a group of settings: set one of optimizer.name, optimizer.lr"),
        ("model.options=1", "model.options=1 must be a table, set by key as in model.options.width=0.5"),
        ("epochs=two", "epochs='two' must be an integer, at least 1"),
        ("epochs=2.5", "epochs=2.5 must be an integer, at least 1"),
        ("epochs=true", "epochs=True must be an integer, at least 1"),
        ("optimizer.lr=fast", "optimizer.lr='fast' must be a number"),
        ("data.augment=1", "data.augment=1 must be true or false"),
        ("model.name=4", "model.name=4 must be a name of equalbits list models"),
        ("schedule.milestones=3", "schedule.milestones=3 must be a list of integers in brackets, each at least 1"),
        ("schedule.milestones=[a]", r"schedule.milestones='\[a\]' must be a list"),
        ("optimizer.betas=[0.9]", r"optimizer.betas=\[0.9\] must be a list of 2 numbers in brackets"),
        (f"optimizer.lr=1{'0' * 400}", "^optimizer.lr=10{39}… must be a finite number, above 0$"),
        ("name=a/b", "name='a/b' also names a directory: use a word without slashes and line breaks"),
        (r'name="a\nb"', "also names a directory"),
        ("name=..", "name='..' also names a directory"),
        ("name=", "name='' also names a directory"),
        ("expected=nan", "expected=nan must be a finite number, at least 0 and at most 100"),
        ("expected=high", "expected='high' must be a number"),
        ("epochs=0", "epochs=0 must be an integer, at least 1"),
        ("data.batch_size=0", "data.batch_size=0 must be an integer, at least 1"),
        ("data.limit=-1", "data.limit=-1 must be an integer, at least 0"),
        ("epochs", "'epochs' is not a setting: write name=value, as in optimizer.lr=0.05"),
        ("=3", "'=3' is not a setting"),
    ],
)
def test_an_invalid_setting_raises_a_one_line_error(word: str, line: str, recipe: Recipe) -> None:
    with pytest.raises(ValueError, match=line) as caught:
        recipe.with_settings(parse_settings([word]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("model.options.batch_norm=False", "^model.options.batch_norm='False' must be true or false$"),
        ("model.options.batch_norm=off", "^model.options.batch_norm='off' must be true or false$"),
        ("model.options.width=wide", "^model.options.width='wide' must be a number$"),
        ("model.options.batch_norm=0.5", "^model.options.batch_norm=0.5 must be true or false$"),
        ("model.options.batch_norm=[false]", r"^model.options.batch_norm=\[False\] must be true or false$"),
        ("model.options.width=inf", "^width=inf: the multiplier of all channel counts"),
    ],
)
def test_an_invalid_network_option_raises_a_one_line_error(word: str, line: str) -> None:
    recipe = get_recipe("cifar10-conv2").with_settings(parse_settings([word]))
    with pytest.raises(ValueError, match=line) as caught:
        make_model(recipe, DataSpec(tuple("ab"), 1, 8, (0.5,), (0.5,)))
    assert "\n" not in str(caught.value)


def test_a_change_of_network_drops_the_options_that_it_does_not_accept() -> None:
    recipe = get_recipe("fashion-conv2").with_settings({"model.options.width": 0.5})
    assert set(recipe.model.options) == {"width", "batch_norm"}
    assert recipe.with_settings({"model.name": "resnet20"}).model.options == {"width": 0.5}
    assert recipe.with_settings({"model.name": "conv4"}).model.options == recipe.model.options
    given = {"model.name": "vgg16", "model.options.dropout": 0.1, "model.options.batch_norm": True}
    assert recipe.with_settings(given).model.options == {"width": 0.5, "dropout": 0.1, "batch_norm": True}  # as asked


OWN = """
epochs = 2
[model]
name = "conv2"
[data]
name = "fashion"
"""


def test_a_file_gets_its_name_from_the_path_and_missing_settings_from_the_defaults(tmp_path: Path) -> None:
    recipe = read_recipe(written(tmp_path, OWN))
    assert recipe.name == "own"
    assert recipe.model.weight_quantizer == "bihalf"
    assert recipe.data.batch_size == 128
    assert read_recipe(written(tmp_path, f'name = "mine"{OWN}')).name == "mine"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("epochs = 2", "", "setting epochs is missing; equalbits list --show fashion-conv2 prints a complete file"),
        ('name = "conv2"', "", "setting model.name is missing"),
        ('[data]\nname = "fashion"', "", "setting data.name is missing"),
        ("epochs = 2", "epochs = 2\nepoch = 3", "no setting 'epoch'; did you mean 'epochs'?"),
        ('name = "fashion"', 'name = "fashion"\nbatchsize = 3', "'data.batchsize'; did you mean 'data.batch_size'?"),
        ('name = "fashion"', 'name = "fashion"\nepochs = 3', "no setting 'data.epochs'; did you mean 'epochs'?"),
        ("epochs = 2", "epochs = 2\nlr = 0.1", "no setting 'lr'; did you mean 'optimizer.lr'?"),
        (
            "[data]",
            "[optimizer]\nmilestones = [1]\n[data]",
            "'optimizer.milestones'; did you mean 'schedule.milestones'",
        ),
        ("epochs = 2", "epochs = 2\ntrain = 3", "no setting 'train'; there are name, about"),
        ("epochs = 2", f"epochs = 2\nseed = {'[' * 5000}{']' * 5000}", "is not TOML: maximum recursion depth exceeded"),
        ("[model]", "[modle]", "no setting 'modle.name'; did you mean 'model.name'?"),
        ("epochs = 2", 'epochs = "2"', "epochs='2' must be an integer, at least 1"),
        ("[data]", "[data", "is not TOML"),
    ],
)
def test_an_invalid_file_raises_a_one_line_error_with_its_path(tmp_path: Path, old: str, new: str, line: str) -> None:
    path = written(tmp_path, OWN.replace(old, new))
    with pytest.raises(ValueError, match=line) as caught:
        read_recipe(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert read_recipe(written(tmp_path, f"\ufeff{OWN}")) == read_recipe(written(tmp_path, OWN))


def test_a_string_in_place_of_a_group_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"'data' is a group of settings: set one of data\.name, "):
        Recipe.from_dict({"name": "own", "epochs": 1, "model": {"name": "conv2"}, "data": "fashion"})


def test_the_error_for_an_unknown_recipe_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="no recipe 'cifar10-conv3'; did you mean 'cifar10-conv"):
        get_recipe("cifar10-conv3")
    with pytest.raises(ValueError, match="no recipe 'zzz'; `equalbits list recipes` shows them"):
        get_recipe("zzz")
