"""What to train, by name; and running it."""

from equalbits.recipes.build import check_names, make_loader
from equalbits.recipes.catalogue import find_recipe, get_recipe, list_recipes, own_settings, published_score
from equalbits.recipes.experiments.compare import HOW, Compared, Comparison, compare
from equalbits.recipes.experiments.engine import Batch, DivergedError, goes_alone, run_folder, train_side_by_side
from equalbits.recipes.experiments.methods import list_methods, parse_methods, split_values
from equalbits.recipes.experiments.ray_cluster import RunsFailed, import_ray, train_on_ray
from equalbits.recipes.experiments.stack_checkpoint import tidy
from equalbits.recipes.experiments.sweep import (
    Case,
    cases_of,
    missing_of,
    no_reporters,
    side_by_side,
    sweep,
    timed,
    write_ledger,
)
from equalbits.recipes.kinds import check_kind
from equalbits.recipes.output_dir import clear_up, in_use
from equalbits.recipes.recipe import (
    DataConfig,
    ModelConfig,
    Recipe,
    parse_settings,
    read_recipe,
    recipe_from_dict,
)
from equalbits.recipes.run import FinishedRun, ImageSpec, evaluate_run, load_run, make_model, pick_device, run_recipe
from equalbits.recipes.run_dir import (
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
from equalbits.recipes.settings import Table, settings_tables

__all__ = [
    "FREE",
    "HOW",
    "Batch",
    "Case",
    "Compared",
    "Comparison",
    "DataConfig",
    "DivergedError",
    "FinishedRun",
    "ImageSpec",
    "ModelConfig",
    "Recipe",
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
