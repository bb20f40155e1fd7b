"""What to train, by name; and running it."""

from equalbits.recipes.catalogue import find_recipe, get_recipe, list_recipes
from equalbits.recipes.recipe import (
    DataConfig,
    ModelConfig,
    Recipe,
    parse_settings,
    read_recipe,
    recipe_from_dict,
)
from equalbits.recipes.run import Images, Result, evaluate_run, load_run, make_model, pick_device, run_recipe

__all__ = [
    "DataConfig",
    "Images",
    "ModelConfig",
    "Recipe",
    "Result",
    "evaluate_run",
    "find_recipe",
    "get_recipe",
    "list_recipes",
    "load_run",
    "make_model",
    "parse_settings",
    "pick_device",
    "read_recipe",
    "recipe_from_dict",
    "run_recipe",
]
