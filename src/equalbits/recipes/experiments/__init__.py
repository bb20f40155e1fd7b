"""Run many experiments: sweeps, comparisons of methods and tuning, on one device or on a Ray cluster."""

from equalbits.recipes.experiments.compare import HOW, Comparison, MethodResult, compare
from equalbits.recipes.experiments.engine import DivergedError, Engine
from equalbits.recipes.experiments.execution import Execution, check_one_process
from equalbits.recipes.experiments.grid import Case, cases_of, split_values
from equalbits.recipes.experiments.methods import list_methods, parse_methods
from equalbits.recipes.experiments.store import PlannedRun, RunStore
from equalbits.recipes.experiments.sweep import CaseResult, sweep
from equalbits.recipes.experiments.train_runs import Protocol, Trainer
from equalbits.recipes.experiments.tuning import choose

__all__ = [
    "HOW",
    "Case",
    "CaseResult",
    "Comparison",
    "DivergedError",
    "Engine",
    "Execution",
    "MethodResult",
    "PlannedRun",
    "Protocol",
    "RunStore",
    "Trainer",
    "cases_of",
    "check_one_process",
    "choose",
    "compare",
    "list_methods",
    "parse_methods",
    "split_values",
    "sweep",
]
