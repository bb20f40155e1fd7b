"""What to train, by name; and running it."""

from equalbits.recipes.batch import Batch, DivergedError, goes_alone, run_folder, train_side_by_side
from equalbits.recipes.catalogue import find_recipe, get_recipe, list_recipes, own_settings, published_score
from equalbits.recipes.compare import HOW, Compared, Comparison, compare
from equalbits.recipes.folder import (
    FREE,
    check_same,
    command_line,
    data_of,
    epoch_under_way,
    last_weights,
    recipe_in,
    started_by,
    where_and_with,
)
from equalbits.recipes.kinds import check_kind
from equalbits.recipes.launch import Case, cases_of, missing_of, no_reporters, side_by_side, sweep, timed, write_ledger
from equalbits.recipes.lock import clear_up, in_use
from equalbits.recipes.make import check_names, make_loader
from equalbits.recipes.methods import list_methods, parse_methods, split_values
from equalbits.recipes.ray_cluster import RunsFailed, import_ray, train_on_ray
from equalbits.recipes.recipe import (
    DataConfig,
    ModelConfig,
    Recipe,
    parse_settings,
    read_recipe,
    recipe_from_dict,
)
from equalbits.recipes.run import Images, Result, evaluate_run, load_run, make_model, pick_device, run_recipe
from equalbits.recipes.settings import Table, settings_tables
from equalbits.recipes.stopped import tidy

__all__ = [
    "FREE",
    "HOW",
    "Batch",
    "Case",
    "Compared",
    "Comparison",
    "DataConfig",
    "DivergedError",
    "Images",
    "ModelConfig",
    "Recipe",
    "Result",
    "RunsFailed",
    "Table",
    "cases_of",
    "check_kind",
    "check_names",
    "check_same",
    "clear_up",
    "command_line",
    "compare",
    "data_of",
    "epoch_under_way",
    "evaluate_run",
    "find_recipe",
    "get_recipe",
    "goes_alone",
    "import_ray",
    "in_use",
    "last_weights",
    "list_methods",
    "list_recipes",
    "load_run",
    "make_loader",
    "make_model",
    "missing_of",
    "no_reporters",
    "own_settings",
    "parse_methods",
    "parse_settings",
    "pick_device",
    "published_score",
    "read_recipe",
    "recipe_from_dict",
    "recipe_in",
    "run_folder",
    "run_recipe",
    "settings_tables",
    "side_by_side",
    "split_values",
    "started_by",
    "sweep",
    "tidy",
    "timed",
    "train_on_ray",
    "train_side_by_side",
    "where_and_with",
    "write_ledger",
]
