"""Recipes: named experiments. Run one, or run many."""

from equalbits._toml import parse_settings
from equalbits.recipes.build import DataSpec, make_loader, make_model, pick_device, select_evenly
from equalbits.recipes.catalogue import find_recipe, get_recipe, list_recipes, own_settings, published_score
from equalbits.recipes.evaluate_packed import ByteBatches, calibration_images, check_on_test_images, images_with_classes
from equalbits.recipes.experiments.compare import HOW, Comparison, MethodResult, compare
from equalbits.recipes.experiments.compared_methods import list_methods, parse_methods
from equalbits.recipes.experiments.grid import Case, cases_of, split_values
from equalbits.recipes.experiments.run_store import PlannedRun, RunStore
from equalbits.recipes.experiments.scheduler import check_runs, run_missing
from equalbits.recipes.experiments.sweep import CaseResult, DivergedError, sweep
from equalbits.recipes.experiments.train_runs import Execution, Protocol, Trainer, check_one_process
from equalbits.recipes.hub import from_pretrained, push_to_hub, save_pretrained
from equalbits.recipes.output_dir import check_kind, lock_dir
from equalbits.recipes.recipe import DataConfig, ModelConfig, Recipe, read_recipe
from equalbits.recipes.run_dir import TrainedRun, data_root_of, last_weights, load_run, unfinished_epoch
from equalbits.recipes.run_record import (
    FREE,
    RunRecord,
    check_same_recipe,
    launch_words,
    stored_recipe,
    where_and_with,
)
from equalbits.recipes.settings_tables import Table, settings_page, settings_tables
from equalbits.recipes.train_recipe import evaluate_run, run_recipe

__all__ = [
    "FREE",
    "HOW",
    "ByteBatches",
    "Case",
    "CaseResult",
    "Comparison",
    "DataConfig",
    "DataSpec",
    "DivergedError",
    "Execution",
    "MethodResult",
    "ModelConfig",
    "PlannedRun",
    "Protocol",
    "Recipe",
    "RunRecord",
    "RunStore",
    "Table",
    "TrainedRun",
    "Trainer",
    "calibration_images",
    "cases_of",
    "check_kind",
    "check_on_test_images",
    "check_one_process",
    "check_runs",
    "check_same_recipe",
    "compare",
    "data_root_of",
    "evaluate_run",
    "find_recipe",
    "from_pretrained",
    "get_recipe",
    "images_with_classes",
    "last_weights",
    "launch_words",
    "list_methods",
    "list_recipes",
    "load_run",
    "lock_dir",
    "make_loader",
    "make_model",
    "own_settings",
    "parse_methods",
    "parse_settings",
    "pick_device",
    "published_score",
    "push_to_hub",
    "read_recipe",
    "run_missing",
    "run_recipe",
    "save_pretrained",
    "select_evenly",
    "settings_page",
    "settings_tables",
    "split_values",
    "stored_recipe",
    "sweep",
    "unfinished_epoch",
    "where_and_with",
]
