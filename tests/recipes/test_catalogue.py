"""Every recipe builds its network and trains it, with the settings of the paper."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from equalbits.nn import SignActivation
from equalbits.recipes import Recipe, find_recipe, get_recipe, list_recipes, make_model
from equalbits.recipes.build import DataSpec, make_loader
from equalbits.training import DistillConfig, ScheduleConfig, train
from equalbits.training.distributed import ProcessRank

SHAPES = {"cifar10": "3x32x32:10", "cifar100": "3x32x32:100", "imagenet": "3x64x64:1000", "fashion": "1x28x28:10"}
SHAPES |= {"tinyimagenet": "3x64x64:200", "imagefolder": "3x32x32:3"}
NARROW = (
    "resnet18",
    "resnet34",
    "vgg16",
    "vgg_small",
    "imagenet_resnet18",
    "imagenet_resnet34",
)  # at full width: seconds each


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_takes_two_steps_on_images_of_its_shape(name: str) -> None:
    recipe = get_recipe(name)
    settings = {"data.name": f"synthetic:{SHAPES[recipe.data.name]}:4", "data.batch_size": 2}
    if recipe.model.name in NARROW:
        settings["model.options.width"] = 0.125
    recipe = recipe.with_settings(settings)
    loader = make_loader(recipe.data, "train", root=None, device="cpu", seed=0, place=ProcessRank())
    model = make_model(recipe, DataSpec.of(loader))
    config = dataclasses.replace(recipe.train, epochs=1, schedule=ScheduleConfig(), distill=DistillConfig())
    (record,) = train(model, loader, config).epochs
    assert record.train.total == 4
    assert record.train.loss > 0


def settings_of(recipe: Recipe) -> tuple:
    optimizer, schedule = recipe.train.optimizer, recipe.train.schedule
    moves = (optimizer.name, optimizer.lr, optimizer.momentum, optimizer.weight_decay)
    rates = (schedule.name, schedule.per, schedule.milestones, schedule.warmup_epochs)
    return (recipe.train.epochs, recipe.data.batch_size, *moves, *rates)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("cifar10*-conv?", (100, 128, "sgd", 0.1, 0.9, 1e-4, "cosine", "epoch", (), 0)),
        ("cifar10-resnet20-1w*", (400, 128, "sgd", 0.1, 0.9, 1e-4, "cosine", "epoch", (), 0)),
        ("cifar10*-resnet[13]?-1w*", (350, 128, "sgd", 0.1, 0.9, 5e-4, "step", "epoch", (150, 250, 320), 0)),
        ("cifar100-[vis]*-1w*", (350, 128, "sgd", 0.1, 0.9, 5e-4, "step", "epoch", (150, 250, 320), 0)),
        ("imagenet-*", (100, 256, "sgd", 0.1, 0.9, 1e-4, "step", "epoch", (30, 60, 90), 0)),
        ("tinyimagenet-*", (100, 256, "sgd", 0.1, 0.9, 1e-4, "step", "epoch", (30, 60, 90), 0)),
    ],
)
def test_the_papers_recipes_have_the_papers_settings(pattern: str, expected: tuple) -> None:
    names = list_recipes(pattern)
    assert names
    for name in names:
        recipe = get_recipe(name)
        assert settings_of(recipe) == expected, name
        assert recipe.train.schedule.factor == 0.1
        assert recipe.data.augment
        assert recipe.train.label_smoothing == 0.0
        assert recipe.model.weight_quantizer == "bihalf"


def test_initialization_normalization_and_layer_order_are_those_of_the_authors() -> None:
    for name in list_recipes("cifar10-resnet20-1w*"):  # IR-Net's
        assert (get_recipe(name).model.init, get_recipe(name).data.statistics) == ("kaiming", "imagenet")
    released = get_recipe("cifar10-resnet18-1w1a")
    assert released.data.statistics == "cifar10-resnet18"
    stem = make_model(released, DataSpec(tuple("0123456789"), 3, 32, (0.5,) * 3, (0.5,) * 3)).stem
    assert list(dict(stem.named_children())) == ["conv", "norm", "prelu"]
    assert all(get_recipe(name).model.init == "torch" for name in list_recipes("cifar10*-conv?"))
    assert all(get_recipe(name).model.init == "kaiming" for name in list_recipes("cifar100-*-1w*"))  # the paper's text


def test_irnets_resnet20_starts_ede_lower_with_binary_inputs() -> None:
    inputs = [get_recipe(f"cifar10-resnet20-{bits}").model.input_quantizer for bits in ("1w32a", "1w1a")]
    assert inputs == ["", "ede:t_min=0.001"]
    images = DataSpec(tuple("0123456789"), 3, 32, (0.5,) * 3, (0.5,) * 3)
    model = make_model(get_recipe("cifar10-resnet20-1w1a"), images)
    starts = {(m.t_min, m.t_max) for m in model.modules() if isinstance(m, SignActivation)}
    assert starts == {(1e-3, 10.0)}
    assert "irnet:t_min=0.001" in get_recipe("cifar10-resnet20-1w1a").about


def test_names_match_patterns_and_every_recipe_has_a_description() -> None:
    assert list_recipes("imagenet-*") == ["imagenet-resnet18", "imagenet-resnet34"]
    assert all(get_recipe(name).about for name in list_recipes())


def test_a_description_cites_only_tables_and_figures_with_the_data_of_the_recipe() -> None:
    for name in list_recipes():
        recipe = get_recipe(name)
        named = re.findall(r"(?:table|figure) \d", recipe.about)
        data = {"table 2": "cifar10", "table 3": "imagenet", "figure 5": "cifar100", "figure 7": "cifar100"}
        assert all(data[item] == recipe.data.name for item in named), name


def test_tuned_recipes_have_the_settings_that_tuning_picked() -> None:
    ledger = json.loads((Path(__file__).parents[2] / "results" / "tab2-tuned.json").read_text())["measured"]["tuning"]
    names = list_recipes("*-tuned")
    assert names
    for name in names:
        recipe, net = get_recipe(name), name.split("-")[1]
        picked = ledger[net][recipe.model.weight_quantizer]["picked"]
        assert recipe == recipe.with_settings(picked)
        assert recipe.expected is None  # no paper has them


def test_the_best_1_bit_nets_name_a_real_teacher_of_their_data() -> None:
    names = list_recipes("*-best")
    assert len(names) == 4
    for name in names:
        recipe = get_recipe(name)
        teacher = get_recipe(recipe.train.distill.teacher)
        assert (teacher.model.weight_quantizer, teacher.model.input_quantizer) == ("", "")
        assert teacher.data.name == recipe.data.name
        assert recipe.model.weight_quantizer == "bihalf" and recipe.model.input_quantizer
        assert recipe.expected is None


def test_the_error_for_a_file_of_another_type_asks_for_toml(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text('{"name": "own"}')
    with pytest.raises(
        ValueError, match=r"own\.json is not a recipe: write it as TOML, in a file whose name ends in \.toml; "
    ):
        find_recipe(str(tmp_path / "own.json"))
