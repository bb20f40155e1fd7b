"""Settings classes validate at construction, convert to tables and back, and describe themselves."""

import tomllib

import numpy as np
import pytest

from equalbits._toml import parse_settings
from equalbits.recipes import ModelConfig, Recipe
from equalbits.training import OptimizerConfig, ScheduleConfig, TrainConfig

TABLE = {"name": "own", "epochs": 2, "model": {"name": "conv2"}, "data": {"name": "fashion"}}


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: TrainConfig(epochs="2"), "epochs='2' must be an integer, at least 1"),
        (lambda: TrainConfig(epochs=True), "epochs=True must be an integer, at least 1"),
        (lambda: OptimizerConfig(nesterov=1), "optimizer.nesterov=1 must be true or false"),
        (lambda: ScheduleConfig(milestones=[1.5]), r"schedule.milestones=\[1.5\] must be a list of integers"),
        (lambda: ModelConfig(name="conv2", options=3), "model.options=3 must be a table"),
        (lambda: ModelConfig(name="conv2", init="xavier"), "model.init='xavier' must be one of torch, kaiming"),
    ],
)
def test_types_are_validated_at_construction(make, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        make()


def test_numbers_of_numpy_and_integers_become_the_declared_type() -> None:
    config = TrainConfig(epochs=np.int64(3), clip_norm=np.float32(0.5), optimizer=OptimizerConfig(lr=1))
    assert [type(value) for value in (config.epochs, config.clip_norm, config.optimizer.lr)] == [int, float, float]


def test_a_list_becomes_a_tuple_so_that_settings_are_hashable() -> None:
    assert ScheduleConfig(name="step", milestones=[2, 3]).milestones == (2, 3)
    assert hash(OptimizerConfig()) == hash(OptimizerConfig())


def test_groups_of_settings_can_be_replaced_by_dotted_name_or_as_a_table() -> None:
    by_name = TrainConfig(epochs=1).with_settings({"optimizer.lr": 0.5, "seed": 3})
    by_table = TrainConfig(epochs=1).with_settings(parse_settings(["optimizer={lr=0.5}", "seed=3"]))
    assert by_name == by_table == TrainConfig(epochs=1, seed=3, optimizer=OptimizerConfig(lr=0.5))


def test_tables_inside_the_options_of_a_network_survive_a_round_trip() -> None:
    recipe = Recipe.from_dict(TABLE).with_settings({"model.options.stem": {"width": 3}, "model.options.depth": 2})
    assert recipe.model.options == {"stem": {"width": 3}, "depth": 2}
    assert Recipe.from_dict(recipe.as_dict()) == recipe == Recipe.from_dict(tomllib.loads(recipe.to_toml()))


def test_a_dict_of_settings_is_a_copy() -> None:
    recipe = Recipe.from_dict(TABLE).with_settings({"model.options.width": 0.5})
    recipe.as_dict()["model"]["options"]["width"] = 2.0
    assert recipe.model.options == {"width": 0.5}


def test_options_given_as_a_value_and_by_key_at_once_raise_a_one_line_error() -> None:
    with pytest.raises(ValueError, match=r"no setting 'model\.options\.width'|model\.options=1 must be a table"):
        Recipe.from_dict(TABLE).with_settings({"model.options": 1, "model.options.width": 2})


def test_the_docstring_of_a_settings_class_lists_its_settings() -> None:
    assert "- ``lr``: initial learning rate (a number, above 0)" in (OptimizerConfig.__doc__ or "")
