"""Methods side by side: the same net, data, settings, seeds, start and batches; nothing but the method differs.

Each run that is done leaves its run.json; a comparison that is started again does only what is missing, and goes on
with the net it was stopped in from that net's checkpoint.
"""

import functools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from equalbits._files import write_atomically
from equalbits.recipes.build import pick_device
from equalbits.recipes.experiments.contest import Ground, groups_of, is_done, run_file, run_method
from equalbits.recipes.experiments.data_check import DataHere
from equalbits.recipes.experiments.methods import check_method
from equalbits.recipes.experiments.stack_checkpoint import tidy
from equalbits.recipes.experiments.sweep import no_reporters
from equalbits.recipes.experiments.tuning import Trials, tuning_seed
from equalbits.recipes.kinds import check_kind, check_none_in
from equalbits.recipes.output_dir import in_use
from equalbits.recipes.recipe import Recipe, recipe_from_dict
from equalbits.recipes.run_dir import check_same, command_line, recipe_in
from equalbits.training import Reporter, announced_place

#: What stands in compare.json about how the numbers were taken.
HOW = {
    "accuracy": "per cent of all test images right after the last epoch; mean and sample standard deviation over seeds",
    "entropy": "bits, the mean over all filters of all binary layers at the end",
    "flips": "symbols that differ between the ends of two epochs, summed over epochs; one that flips there and back "
    "within an epoch counts as unmoved",
    "exact_filters": "filters with as many +1 as −1 among their kept weights, one more where the number is odd",
    "packed_bytes": "⌈D/8⌉ for the D symbols of a filter, twice that where some are 0, and 4 for each real number",
    "seconds": "of training one net, with start and scoring; of nets trained side by side an equal share each",
}


@dataclass(frozen=True)
class Compared:
    """What a method came to. Each list has an entry for each seed that ended well; ``failed`` says why others did not.

    ``entropy`` and ``flips`` are empty for a net without bits; ``gamma`` is None where no bits are flipped by it.
    ``speed`` names each setting of it that these seeds were trained with.
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
        """Per cent right of each seed."""
        return [100 * correct / self.total for correct in self.correct]

    @property
    def mean(self) -> float | None:
        """Their mean; None where every seed failed."""
        return statistics.fmean(self.accuracies) if self.correct else None

    @property
    def std(self) -> float | None:
        """Their sample standard deviation (n − 1); None below two seeds."""
        return statistics.stdev(self.accuracies) if len(self.correct) > 1 else None

    def as_dict(self) -> dict[str, Any]:
        """Counts and what is taken from them, for JSON."""
        known = {name: value for name, value in asdict(self).items() if (name, value) != ("gamma", None)}
        return {**known, "n": len(self.correct), "mean": self.mean, "std": self.std}


@dataclass(frozen=True)
class Comparison:
    """A finished comparison: a row for each method, and what made them."""

    rows: list[Compared]
    facts: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {**self.facts, "how": HOW, "methods": [row.as_dict() for row in self.rows]}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> "Comparison":
        """What :meth:`as_dict` gave, read back."""
        own = {each.name for each in fields(Compared)}
        rows = [Compared(**{name: value for name, value in row.items() if name in own}) for row in table["methods"]]
        return cls(rows, {name: value for name, value in table.items() if name not in ("how", "methods")})


def compare(
    recipe: Recipe,
    out: Path,
    *,
    methods: Sequence[str],
    seeds: Sequence[int],
    stack: int | None = None,
    tune: Sequence[float] = (),
    root: Path | None = None,
    device: str = "auto",
    log: Callable[[str], None] = lambda line: None,
    reporters_for: Callable[[str], Sequence[Reporter]] = no_reporters,
) -> Comparison:
    """Train every method with every seed and write compare.json; runs that are done are not run again.

    ``stack`` nets of one method are trained at once: all seeds on a GPU and one on a CPU, if you do not say. Of the
    learning rates to ``tune`` over, each method is first given the one that does best on training images held out;
    methods that flip bits are given a ``gamma`` in its place (:func:`.tuning.setting_at`).
    ``reporters_for`` is asked for the listeners of each method, by its name.
    """
    if announced_place().world_size > 1:
        raise ValueError("a comparison runs in one process: start it without torchrun")
    out, seeds, methods = Path(out), list(dict.fromkeys(seeds)), list(dict.fromkeys(methods))
    if not seeds or not methods:
        raise ValueError("there is nothing to compare: give at least one method and one seed")
    for method in methods:
        check_method(method)
    check_kind(out, "compare")
    check_none_in(run_file(out, method, 0).parents[1] for method in methods)
    _check_same_settings(out, recipe)
    device = pick_device(device)
    stack = stack or (len(seeds) if device.startswith("cuda") else 1)
    with in_use(out, command=command_line()):
        tidy(out)
        done = [run_file(out, method, seed).parent for method in methods for seed in seeds]
        DataHere(root).check_done(done, recipe.data)
        ground = functools.cache(lambda: Ground.of(recipe, out, root=root, device=device))  # loaded when first needed
        for number, method in enumerate(methods, start=1):
            mine = recipe
            if tune:
                trials = Trials(recipe, out, tuple(tune), seed=tuning_seed(seeds))
                mine = trials.best(method, ground, log)
            missing = [seed for seed in seeds if not is_done(mine, out, method, seed)]
            for some in groups_of(mine, out, method, missing, stack):
                here = replace(ground(), recipe=mine, reporters=reporters_for(method))
                told = run_method(here, method, some)
                log(f"[{number}/{len(methods)}] {method}: {told}")
        comparison = _read(recipe, out, methods, seeds, tune)
        write_atomically(out / "compare.json", (json.dumps(comparison.as_dict(), indent=1) + "\n").encode())
        return comparison


def _check_same_settings(out: Path, recipe: Recipe) -> None:
    """Refuse the folder of a comparison with other settings: one table would stand for both."""
    if (out / "compare.json").exists():
        before = recipe_in(out / "compare.json", "settings")
        check_same(out, before, recipe.with_settings({"seed": before.train.seed}))


def _read(recipe: Recipe, out: Path, methods: Sequence[str], seeds: Sequence[int], tune: Sequence[float]) -> Comparison:
    runs = {method: [json.loads(run_file(out, method, seed).read_text()) for seed in seeds] for method in methods}
    every = [run for some in runs.values() for run in some]
    settings = {name: value for name, value in recipe.as_dict().items() if name != "seed"}
    facts = {
        "recipe": recipe.name,
        "settings": settings,
        "seeds": list(seeds),
        "n": len(seeds),
        "tuned_over": sorted(set(tune)),
        "device": sorted({run["device"] for run in every}),
        "versions": list({json.dumps(run["versions"]): run["versions"] for run in every}.values()),
    }
    return Comparison([_row(method, some) for method, some in runs.items()], facts)


def _row(method: str, runs: list[dict[str, Any]]) -> Compared:
    well = [run for run in runs if "failed" not in run]
    measured = [run["measured"] for run in well]
    binary = [each for each in measured if "entropy" in each]
    first: dict[str, Any] = measured[0] if measured else {}
    optimizer = recipe_from_dict(runs[0]["recipe"]).train.optimizer
    return Compared(
        method=method,
        p_pos=first.get("p_pos"),
        seeds=[run["seed"] for run in well],
        failed={run["seed"]: run["failed"] for run in runs if "failed" in run},
        correct=[run["last"]["test"]["correct"] for run in well],
        total=well[0]["last"]["test"]["total"] if well else 0,
        entropy=[each["entropy"][-1] for each in binary],
        attainable_entropy=first.get("attainable_entropy"),
        to_positive=[sum(each["to_positive"]) for each in binary],
        to_negative=[sum(each["to_negative"]) for each in binary],
        symbols=first.get("symbols", 0),
        filters=first.get("filters", 0),
        exact_filters=[each["exact_filters"] for each in binary],
        seconds=[run["seconds"] for run in well],
        packed_bytes=first.get("packed_bytes", 0),
        float32_bytes=first.get("float32_bytes", 0),
        lr=optimizer.lr,
        speed=" and ".join(sorted({run["recipe"]["speed"] for run in well or runs})),
        stacked_with=max(run.get("stacked_with", 1) for run in runs),
        gamma=optimizer.gamma if optimizer.flips else None,
    )
