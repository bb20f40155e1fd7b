"""``data.erase`` affects training batches alone, is part of a run's settings, and defaults to 0."""

import tomllib

import pytest
import torch

from equalbits.recipes import DataConfig, Recipe, get_recipe, read_recipe, run_recipe
from equalbits.recipes.build import make_loader
from equalbits.recipes.catalogue import own_settings, published_score
from equalbits.recipes.experiments.compared_methods import hold_out
from equalbits.training import CheckpointError
from equalbits.training.distributed import ProcessRank

TINY = {"data.name": "synthetic:1x8x8:3:40", "epochs": 1, "model.options.width": 0.05, "data.augment": True}


def _loader(split="train", **settings):
    data = DataConfig(name="synthetic:1x8x8:3:30", **settings)
    return make_loader(data, split, root=None, device="cpu", seed=0, place=ProcessRank())


def _tiny(**settings):
    return get_recipe("fashion-conv2").with_settings(TINY | settings)


def test_training_images_are_erased_and_test_images_are_not():
    (erased, _), (plain, _) = (next(_loader(erase=side).epoch(0)) for side in (4, 0))
    gone = (erased != plain).flatten(1)
    assert not erased.flatten(1)[gone].any()
    assert gone.sum(dim=1).min() >= 2 * 2 and gone.sum(dim=1).max() == 4 * 4
    for (images, _), (theirs, _) in zip(_loader("test", erase=4), _loader("test"), strict=True):
        assert torch.equal(images, theirs)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"data.erase": -1}, r"^data.erase=-1 must be an integer, at least 0$"),
        ({"data.erase": 4, "data.augment": False}, r"^data.erase=4 is part of augmentation: set data.augment=true"),
        ({"data.erase": 4.5}, r"^data.erase=4.5 must be an integer, at least 0$"),
        ({"erase": 4}, r"^no setting 'erase'; did you mean 'data.erase'\?$"),
    ],
)
def test_a_recipe_refuses_invalid_values_at_construction(settings, says):
    with pytest.raises(ValueError, match=says):
        _tiny(**settings)


def test_a_square_too_large_for_the_images_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"^erase=17 must be 0 to 16, twice the side of the images"):
        run_recipe(_tiny(**{"data.erase": 17}), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_recipes_without_the_setting_erase_nothing(tmp_path):
    recipe = get_recipe("cifar10-conv2")
    old = recipe.as_dict()
    assert old["data"].pop("erase") == 0
    assert Recipe.from_dict(old) == recipe and own_settings(old) == {}
    text = "".join(line for line in recipe.to_toml().splitlines(keepends=True) if not line.startswith("erase"))
    assert "erase" not in tomllib.loads(text)["data"]
    (tmp_path / "old.toml").write_text(text)
    assert read_recipe(tmp_path / "old.toml") == recipe


def test_erasing_survives_a_round_trip_and_changes_the_recipe(tmp_path):
    recipe = get_recipe("cifar10-conv2").with_settings({"data.erase": 16})
    (tmp_path / "mine.toml").write_text(recipe.to_toml())
    assert read_recipe(tmp_path / "mine.toml") == recipe and recipe.data.erase == 16
    assert own_settings(recipe.as_dict()) == {"data.erase": 16} and published_score(recipe) is None


def test_an_old_run_resumes_without_erasing_and_refuses_to_resume_with_it(tmp_path):
    out = tmp_path / "run"
    first = run_recipe(_tiny(), out, device="cpu")
    kept = out / "recipe.toml"
    kept.write_text("".join(line for line in kept.read_text().splitlines(keepends=True) if "erase" not in line))
    again = run_recipe(_tiny(), out, device="cpu")
    assert again.history.last.test == first.history.last.test
    with pytest.raises(CheckpointError, match=r"holds a run with data.erase=0, this one has data.erase=3"):
        run_recipe(_tiny(**{"data.erase": 3}), out, device="cpu")


def test_a_run_with_erasing_trains_differently_from_one_without(tmp_path):
    runs = [run_recipe(_tiny(**{"data.erase": side}), tmp_path / f"{side}", device="cpu") for side in (0, 4)]
    weights = [torch.cat([values.flatten() for values in run.model.parameters()]) for run in runs]
    assert not torch.equal(*weights)


def test_tuning_on_held_out_images_erases_too():
    recipe = hold_out(_tiny(**{"data.erase": 3}), None)
    assert (recipe.data.erase, recipe.data.hold_out) == (3, 8)
