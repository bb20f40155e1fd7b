"""Sweep: train every combination of some settings with several seeds, and summarize each combination."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equalbits._files import write_atomically
from equalbits._toml import flatten
from equalbits.recipes.experiments.run_store import Case, PlannedRun, RunStore, cases_of, describe
from equalbits.recipes.experiments.scheduler import run_missing
from equalbits.recipes.experiments.train_runs import Execution, check_one_process
from equalbits.recipes.output_dir import check_kind, lock_dir
from equalbits.recipes.recipe import Recipe
from equalbits.recipes.run_record import RunRecord
from equalbits.training import NonFiniteError


@dataclass(frozen=True)
class CaseResult:
    """The result of a case: test accuracy of each seed's last and best epoch, in per cent."""

    case: str
    settings: Mapping[str, Any]
    seeds: tuple[int, ...]
    last: tuple[float, ...]
    best: tuple[float, ...]
    seconds: float

    @property
    def mean(self) -> float:
        """Mean of the last epochs."""
        return statistics.fmean(self.last)

    @property
    def spread(self) -> float | None:
        """Sample standard deviation (n − 1) of the last epochs; None for one seed."""
        return statistics.stdev(self.last) if len(self.last) > 1 else None

    def __str__(self) -> str:
        spread = "" if self.spread is None else f" ± {self.spread:.2f}"
        return f"{self.mean:.2f}{spread} %  (last epoch, n={len(self.last)})"


class DivergedError(NonFiniteError):
    """Some of several runs diverged; ``runs`` names them. The others have ended and are stored."""

    def __init__(self, store: RunStore, runs: Sequence[PlannedRun]) -> None:
        names = ", ".join(f"{run.case} seed {run.seed}" for run in runs)
        super().__init__(f"{names}: {store.records(runs[:1])[0].error}")
        self.runs = list(runs)


def sweep(
    recipe: Recipe,
    out: Path,
    *,
    vary: Mapping[str, Sequence[Any]],
    seeds: Sequence[int],
    execution: Execution = Execution(),  # noqa: B008 (it is frozen)
) -> list[CaseResult]:
    """Train every combination with every seed; finished runs are not run again, interrupted ones resume.

    Runs that diverge do not stop the others: :class:`DivergedError` names them at the end. A summary of all finished
    runs below ``out`` is written to sweep.json.
    """
    check_one_process("a sweep")
    out, seeds = Path(out), list(dict.fromkeys(seeds))
    if not seeds:
        raise ValueError("there is no seed to train with: give at least one, as in seeds=[0]")
    if "seed" in vary:
        raise ValueError("a sweep varies the seed by itself: give seeds as --seeds 1,2 (seeds=[1, 2])")
    check_kind(out, "sweep")
    cases = cases_of(recipe, vary)
    for case in cases:
        check_kind(out / case.name, "case")
    store = RunStore(out)
    results: dict[str, CaseResult] = {}

    def log_results(ended: Sequence[PlannedRun] = (), seconds: float = 0.0) -> None:
        """Log runs that have just ended, and the cases they complete; diverged runs are named at the end."""
        if not all(record.diverged for record in store.records(ended)):
            execution.log(f"{describe(ended)} done in {seconds:.1f} s")
        for case in cases:
            if case.name not in results and (result := _result(store, case, seeds)):
                results[case.name] = result
                execution.log(f"{case.name}: {result}")

    runs = [run for case in cases for run in case.runs(seeds)]
    with lock_dir(out):
        run_missing(store, runs, execution, stack=execution.stack or 1, on_end=log_results)
        log_results()
        diverged = [run for run, record in zip(runs, store.records(runs), strict=True) if record.diverged]
        if len(diverged) < len(runs):
            write_atomically(out / "sweep.json", (json.dumps(summarize_sweep(out), indent=1) + "\n").encode())
    if diverged:
        raise DivergedError(store, diverged)
    return [results[case.name] for case in cases]


def _result(store: RunStore, case: Case, seeds: Sequence[int]) -> CaseResult | None:
    """Summarize a case whose runs have all finished."""
    found = [store.find(run) for run in case.runs(seeds)]
    records = [record for record in found if record and not record.diverged]
    if len(records) < len(seeds):
        return None
    last, best = zip(*([score.accuracy for _, score in record.scored] for record in records), strict=True)
    seconds = sum(record.seconds for record in records)
    return CaseResult(case.name, dict(case.settings), tuple(seeds), last, best, seconds)


def summarize_sweep(out: Path) -> dict[str, Any]:
    """Summarize all finished runs below ``out`` as one JSON object; scores are counts.

    Settings that all runs share are listed once; a case holds those of its own.
    """
    cases: dict[str, list[RunRecord]] = {}
    for path in sorted(out.glob("*/seed*/run.json")):
        if not (record := RunRecord.read(path)).diverged:
            cases.setdefault(path.parent.parent.name, []).append(record)
    records = [record for some in cases.values() for record in some]
    settings = [flatten({**record.recipe.as_dict(), "seed": None}) for record in records]
    common = {name: value for name, value in settings[0].items() if all(each.get(name) == value for each in settings)}
    return {
        "recipe": records[0].recipe.name,
        "settings": {name: value for name, value in common.items() if value is not None},
        "devices": sorted({record.device for record in records}),
        "versions": sorted({record.software for record in records}),
        "cases": [
            {
                "name": name,
                "settings": {
                    setting: value
                    for setting, value in flatten(some[0].recipe.as_dict()).items()
                    if setting not in common and setting != "seed"
                },
                "runs": [_summary(record) for record in sorted(some, key=lambda record: record.seed)],
            }
            for name, some in cases.items()
        ],
    }


def _summary(record: RunRecord) -> dict[str, Any]:
    scores = {
        name: {"epoch": epoch.epoch, "correct": test.correct, "total": test.total, "train_loss": epoch.train.loss}
        for name, (epoch, test) in zip(("last", "best"), record.scored, strict=True)
    }
    return {"seed": record.seed, **scores, "seconds": record.seconds, "stacked_with": record.stacked_with}
