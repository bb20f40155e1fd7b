"""Compare methods: the same net, data, settings, seeds, initial weights and batches; only the method differs."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from equalbits._files import write_atomically
from equalbits.recipes.experiments.compared_methods import (
    case_of,
    check_method,
    method_runs,
    train_methods,
    tune_methods,
)
from equalbits.recipes.experiments.run_store import RunStore
from equalbits.recipes.experiments.train_runs import Execution, check_one_process
from equalbits.recipes.output_dir import check_kind, lock_dir
from equalbits.recipes.recipe import Recipe
from equalbits.recipes.run_record import RunRecord, check_same_recipe, stored_recipe

#: Explanation of the numbers, stored in compare.json.
HOW = {
    "accuracy": "per cent of all test images right after the last epoch; mean and sample standard deviation over seeds",
    "entropy": "bits, the mean over all filters of all binary layers at the end",
    "flips": "symbols that go from −1 to +1, or back, between the ends of two epochs, summed over epochs; from or to 0 "
    "is no flip, and one that flips there and back within an epoch counts as unmoved",
    "exact_filters": "filters with as many +1 as −1 among their kept weights, one more where the number is odd",
    "packed_bytes": "⌈D/8⌉ for the D symbols of a filter, twice that where some are 0, and 4 for each real number",
    "seconds": "of training one net, with start and scoring; of nets trained side by side an equal share each",
}


@dataclass(frozen=True)
class MethodResult:
    """The result of a method. Each list has an entry per finished seed; ``failed`` holds the errors of the others.

    ``entropy`` and the flips are empty for a net without binary layers; ``gamma`` is None unless the optimizer flips
    bits. ``speed`` names every value of that setting the seeds were trained with.
    """

    method: str
    p_pos: float | None
    seeds: list[int]
    failed: dict[int, str]
    correct: list[int]
    total: int
    entropy: list[float]
    attainable_entropy: float | None
    to_positive: list[int]
    to_negative: list[int]
    symbols: int
    filters: int
    exact_filters: list[int]
    seconds: list[float]
    packed_bytes: int
    float32_bytes: int
    lr: float
    speed: str
    stacked_with: int
    gamma: float | None = None

    @property
    def accuracies(self) -> list[float]:
        """Test accuracy of each seed, in per cent."""
        return [100 * correct / self.total for correct in self.correct]

    @property
    def mean(self) -> float | None:
        """Mean of the accuracies; None where every seed failed."""
        return statistics.fmean(self.accuracies) if self.correct else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation (n − 1) of the accuracies; None below two seeds."""
        return statistics.stdev(self.accuracies) if len(self.correct) > 1 else None

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON: counts, mean and deviation."""
        values = {name: value for name, value in asdict(self).items() if (name, value) != ("gamma", None)}
        return {**values, "n": len(self.correct), "mean": self.mean, "std": self.std}


@dataclass(frozen=True)
class Comparison:
    """A finished comparison: a row per method, and the settings they share."""

    rows: list[MethodResult]
    facts: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; the inverse of :meth:`from_dict`."""
        return {**self.facts, "how": HOW, "methods": [row.as_dict() for row in self.rows]}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> "Comparison":
        """Rebuild a comparison from plain data."""
        own = {each.name for each in fields(MethodResult)}
        rows = [MethodResult(**{name: value for name, value in row.items() if name in own}) for row in table["methods"]]
        return cls(rows, {name: value for name, value in table.items() if name not in ("how", "methods")})


def compare(
    recipe: Recipe,
    out: Path,
    *,
    methods: Sequence[str],
    seeds: Sequence[int],
    tune: Sequence[float] = (),
    execution: Execution = Execution(),  # noqa: B008 (it is frozen)
) -> Comparison:
    """Train every method with every seed and write compare.json; finished runs are not run again.

    ``execution.stack`` nets of one method are trained at once: by default all seeds on a GPU and one on a CPU. With
    ``tune``, each method first gets the learning rate that scores best on held-out training images.
    """
    check_one_process("a comparison")
    out, seeds, methods = Path(out), list(dict.fromkeys(seeds)), list(dict.fromkeys(methods))
    if not seeds or not methods:
        raise ValueError("there is nothing to compare: give at least one method and one seed")
    for method in methods:
        check_method(method)
        check_kind(out / case_of(method), "case")
    if execution.ray:
        raise ValueError("a comparison runs on this machine: leave ray empty")
    check_kind(out, "compare")
    if (out / "compare.json").exists():  # one table could not show two settings
        before = stored_recipe(out / "compare.json", "settings")
        check_same_recipe(out, before, recipe.with_settings({"seed": before.train.seed}))
    stack = execution.stack or (len(seeds) if execution.on_gpu else 1)
    with lock_dir(out):
        tuned = dict.fromkeys(methods, recipe)
        if tune:
            tuned = tune_methods(recipe, methods, tune, store=RunStore(out / "tuning"), execution=execution)
        store, runs = RunStore(out), {method: method_runs(tuned[method], method, seeds) for method in methods}
        train_methods(
            store,
            [run for some in runs.values() for run in some],
            execution,
            label=lambda run: f"[{methods.index(run.method) + 1}/{len(methods)}] {run.method}",
            stack=stack,
        )
        comparison = _comparison(recipe, {method: store.records(some) for method, some in runs.items()}, seeds, tune)
        write_atomically(out / "compare.json", (json.dumps(comparison.as_dict(), indent=1) + "\n").encode())
        return comparison


def _comparison(
    recipe: Recipe, records: Mapping[str, Sequence[RunRecord]], seeds: Sequence[int], tune: Sequence[float]
) -> Comparison:
    every = [record for some in records.values() for record in some]
    facts = {
        "recipe": recipe.name,
        "settings": {name: value for name, value in recipe.as_dict().items() if name != "seed"},
        "seeds": list(seeds),
        "n": len(seeds),
        "tuned_over": sorted(set(tune)),
        "device": sorted({record.device for record in every}),
        "versions": list({json.dumps(dict(record.versions)): dict(record.versions) for record in every}.values()),
    }
    return Comparison([_method_result(method, some) for method, some in records.items()], facts)


def _method_result(method: str, records: Sequence[RunRecord]) -> MethodResult:
    finished = [record for record in records if not record.diverged]
    measured = [record.measured or {} for record in finished]
    binary = [each for each in measured if "entropy" in each]
    tests = [record.scored[0][1] for record in finished]
    first: Mapping[str, Any] = measured[0] if measured else {}
    of_net = {name: first.get(name, 0) for name in ("symbols", "filters", "packed_bytes", "float32_bytes")}
    optimizer = records[0].recipe.train.optimizer
    return MethodResult(
        method=method,
        p_pos=first.get("p_pos"),
        seeds=[record.seed for record in finished],
        failed={record.seed: record.error for record in records if record.diverged},
        correct=[test.correct for test in tests],
        total=tests[0].total if tests else 0,
        entropy=[each["entropy"][-1] for each in binary],
        attainable_entropy=first.get("attainable_entropy"),
        to_positive=[sum(each["to_positive"]) for each in binary],
        to_negative=[sum(each["to_negative"]) for each in binary],
        exact_filters=[each["exact_filters"] for each in binary],
        seconds=[record.seconds for record in finished],
        **of_net,
        lr=optimizer.lr,
        speed=" and ".join(sorted({record.recipe.train.speed for record in finished or records})),
        stacked_with=max(record.stacked_with for record in records),
        gamma=optimizer.gamma if optimizer.flips_bits else None,
    )
