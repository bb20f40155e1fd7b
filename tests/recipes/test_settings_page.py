"""docs/settings.md is generated from the code, complete and correct."""

import re
from pathlib import Path

import pytest

from equalbits._toml import flatten
from equalbits.models.registry import model_options
from equalbits.nn import input_quantizer_by_name, quantizer_by_name
from equalbits.recipes import Recipe, get_recipe, list_recipes, parse_settings
from equalbits.recipes.settings_tables import NONE, settings_page, settings_tables

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
TABLES = {
    table.title: [tuple(cell.replace("``", "") for cell in row) for row in table.rows] for table in settings_tables()
}
SETTINGS = {row[0]: row[1:] for rows in TABLES.values() for row in rows if len(row) == 4}
PLAIN = Recipe.from_dict({"name": "plain", "epochs": 1, "model": {"name": "conv2"}, "data": {"name": "fashion"}})


def test_the_committed_page_is_up_to_date() -> None:
    generated = settings_page()
    assert PAGE.read_text(encoding="utf-8") == generated, "write it again: make pages"


@pytest.mark.parametrize("name", list_recipes())
def test_every_setting_of_every_recipe_is_on_the_page(name: str) -> None:
    recipe, page = get_recipe(name), PAGE.read_text(encoding="utf-8")
    options = dict(TABLES["models"])[recipe.model.name]
    for setting in flatten(recipe.as_dict()):
        if setting.startswith("model.options."):
            assert f"{setting.removeprefix('model.options.')}=" in options
        else:
            assert f"| `{setting}` |" in page


def test_the_page_lists_only_settings_of_a_recipe() -> None:
    assert set(SETTINGS) - {"model.options"} == set(flatten(PLAIN.as_dict()))


def test_every_setting_has_a_one_line_description_of_its_meaning_and_values() -> None:
    for name, cells in SETTINGS.items():
        assert all(cells), f"{name}: describe it in its declaration"
        assert not any("\n" in cell for cell in cells), name


@pytest.mark.parametrize("name", SETTINGS)
def test_a_recipe_without_a_setting_gets_the_default_shown(name: str) -> None:
    default = SETTINGS[name][0]
    if default == NONE:
        assert name == "expected" or flatten(PLAIN.as_dict())[name] in (
            "plain",
            1,
            "conv2",
            "fashion",
        )
    else:
        assert PLAIN.with_settings(parse_settings([f"{name}={default}"])) == PLAIN


BEYOND = {"at least": -1, "above": 0, "below": 0, "at most": 1}
BOUNDS = [
    (name, bound, number)
    for name, (_, may_be, _) in SETTINGS.items()
    for bound, number in re.findall(r"(at least|above|below|at most) ([\d*.]+)", may_be)
]


@pytest.mark.parametrize(("name", "bound", "number"), BOUNDS)
def test_a_number_out_of_bounds_is_rejected_in_the_words_of_the_page(name: str, bound: str, number: str) -> None:
    base, _, power = number.partition("**")
    value = int(base) ** int(power or 1) + BEYOND[bound]
    given = {"optimizer.betas": [0.5, value], "schedule.milestones": [value]}.get(name, value)
    shown = re.escape(f"{name}={given}")
    with pytest.raises(ValueError, match=rf"{shown} must be .*{re.escape(f'{bound} {number}')}"):
        PLAIN.with_settings({name: given})


@pytest.mark.parametrize(
    "name", ["precision", "speed", "optimizer.name", "optimizer.reals", "schedule.name", "schedule.per"]
)
def test_an_unknown_choice_is_rejected_with_the_choices_shown(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}='zzz' must be {SETTINGS[name][1]}$"):
        PLAIN.with_settings({name: "zzz"})


@pytest.mark.parametrize("name", ["model.init", "data.statistics"])
def test_the_names_shown_are_those_of_the_models_and_data_packages(name: str) -> None:
    from equalbits.data import STATISTICS
    from equalbits.models import LayerFactory

    if name == "data.statistics":
        assert SETTINGS[name][1].partition(";")[0].split(", ") == list(STATISTICS)
    else:
        assert [
            LayerFactory(None, init=word).init for word in SETTINGS[name][1].removeprefix("one of ").split(", ")
        ] == ["torch", "kaiming"]


@pytest.mark.parametrize(
    ("title", "make"), [("weight quantizers", quantizer_by_name), ("input quantizers", input_quantizer_by_name)]
)
def test_the_quantizer_settings_shown_are_the_defaults(title: str, make) -> None:
    for name, settings in TABLES[title]:
        if settings != NONE:
            assert repr(make(f"{name}:{settings}")) == repr(make(name)), name


def test_the_model_options_shown_are_the_defaults() -> None:
    for name, options in TABLES["models"]:
        shown = parse_settings([] if options == NONE else options.split(", "))
        assert {"in_channels": 3, **shown} == {k: v for k, v in model_options(name).items() if k != "image_size"}, name
