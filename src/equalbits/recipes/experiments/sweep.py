"""Many runs: every combination of settings and seeds, one after another, stacked on one device, or on a Ray cluster.

Each run that is done leaves its run.json; a sweep that is started again does only what is missing.
"""

import itertools
import json
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from equalbits._files import write_atomically
from equalbits.recipes.build import check_names
from equalbits.recipes.experiments.data_check import DataHere
from equalbits.recipes.experiments.engine import (
    Batch,
    Diverged,
    DivergedError,
    beside,
    goes_alone,
    run_folder,
    stopped_in,
    train_in_turn,
    train_side_by_side,
)
from equalbits.recipes.experiments.ledger import collect
from equalbits.recipes.experiments.ray_cluster import import_ray, train_on_ray
from equalbits.recipes.experiments.stack_checkpoint import tidy
from equalbits.recipes.kinds import check_kind, check_none_in
from equalbits.recipes.output_dir import in_use
from equalbits.recipes.recipe import Recipe
from equalbits.recipes.run_dir import check_same, command_line, read_run
from equalbits.training import NonFiniteError, Reporter, announced_place

_LONGEST = 255  # bytes of a folder's name, on nearly every disk
_MOST_CASES = 8  # to a stack: so many times torch compiles the same lines anew for other settings, then no more


@dataclass(frozen=True)
class Case:
    """One combination of a sweep's settings, trained with several seeds."""

    recipe: Recipe
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The settings in words, fit for a folder's name."""
        words = [str(value).replace("/", "-").replace(":", "-") or "none" for value in self.settings.values()]
        return "_".join(words) or self.recipe.name


@dataclass(frozen=True)
class Row:
    """What a case came to: the test accuracy of each seed's last and best epoch, in per cent."""

    case: str
    settings: Mapping[str, Any]
    seeds: tuple[int, ...]
    last: tuple[float, ...]
    best: tuple[float, ...]
    seconds: float

    @property
    def mean(self) -> float:
        """The mean of the last epochs."""
        return statistics.fmean(self.last)

    @property
    def spread(self) -> float | None:
        """Their sample standard deviation (n − 1); None for one seed."""
        return statistics.stdev(self.last) if len(self.last) > 1 else None

    def __str__(self) -> str:
        spread = "" if self.spread is None else f" ± {self.spread:.2f}"
        return f"{self.mean:.2f}{spread} %  (last epoch, n={len(self.last)})"


def cases_of(recipe: Recipe, vary: Mapping[str, Sequence[Any]]) -> list[Case]:
    """Every combination of the settings to vary.

    >>> from equalbits.recipes import get_recipe
    >>> [case.name for case in cases_of(get_recipe("fashion-conv2"), {"model.weight_quantizer": ["sign", "bihalf"]})]
    ['sign', 'bihalf']
    """
    combinations = itertools.product(*vary.values())
    settings = [dict(zip(vary, values, strict=True)) for values in combinations]
    cases = [Case(recipe.with_settings(some), some) for some in settings]
    names = [case.name for case in cases]
    for name in names:
        if not name.strip(". ") or re.search(r"[\\\x00-\x1f]", name) or len(os.fsencode(name)) > _LONGEST:
            raise ValueError(f"{name[:40]!r} would name a folder: vary words that can, of {_LONGEST} letters at most")
        if names.count(name) > 1:
            raise ValueError(f"two combinations would share the folder {name!r}: vary values whose words differ")
    return cases


def no_reporters(name: str) -> Sequence[Reporter]:
    """Nobody listens to the run of this name."""
    return ()


def sweep(
    recipe: Recipe,
    out: Path,
    *,
    vary: Mapping[str, Sequence[Any]],
    seeds: Sequence[int],
    stack: int = 1,
    root: Path | None = None,
    device: str = "auto",
    ray: str = "",
    log: Callable[[str], None] = lambda line: None,
    reporters_for: Callable[[str], Sequence[Reporter]] = no_reporters,
) -> list[Row]:
    """Train every combination with every seed; ``stack`` nets at once. Finished runs are not run again.

    Runs that diverge do not stop the others: :class:`DivergedError` tells of them when those are done.

    ``ray`` is the address of a Ray cluster to spread the runs over; see :mod:`.ray_cluster`.
    ``reporters_for`` is asked for the listeners of each run, by its name. The ledger of all runs below ``out`` is left
    there as sweep.json.
    """
    if announced_place().world_size > 1:
        raise ValueError("a sweep runs in one process: start it without torchrun, or train its cases one by one")
    out, seeds = Path(out), list(dict.fromkeys(seeds))
    if not seeds:
        raise ValueError("there is no seed to train with: give at least one, as in seeds=[0]")
    if "seed" in vary:
        raise ValueError("a sweep goes through seeds by itself: give them as --seeds 1,2 (seeds=[1, 2])")
    check_kind(out, "sweep")
    cases = cases_of(recipe, vary)
    for case in cases:  # before the first hour of training, not after it
        check_names(case.recipe)
    check_none_in(out / case.name for case in cases)
    if ray:
        import_ray()
    with in_use(out, command=command_line()):
        tidy(out)
        missing = [missing_of(out, case, seeds) for case in cases]
        _look_ahead(out, cases, seeds, missing, DataHere(root), make=not ray)  # a cluster's data lies on its nodes
        if ray and any(missing):
            batches = [batch for some in missing for group in side_by_side(out, some, stack) for batch in group]
            train_on_ray(batches, out, ray, root=root, device=device, log=log, reporters_for=reporters_for)
            missing = []
        rows = _finished(out, cases, seeds, {}, log)
        diverged: list[Diverged] = []
        for group in side_by_side(out, [batch for some in missing for batch in some], stack):
            train = train_in_turn if goes_alone(out, group, stack) else train_side_by_side
            try:
                with timed(group, log) as name:
                    train(group, out, root=root, device=device, reporters=reporters_for(name))
            except NonFiniteError as error:
                alone = [Diverged(batch.case, recipe, error) for batch in group for recipe in batch.seeded()]
                runs = error.runs if isinstance(error, DivergedError) else alone
                # Their words alone: an error that was raised holds on to its net, its images and who decodes them.
                diverged += [run._replace(error=NonFiniteError(str(run.error))) for run in runs]
            rows = _finished(out, cases, seeds, rows, log)
        if not diverged or any(out.glob("*/seed*/run.json")):
            write_ledger(out)
    if diverged:
        raise DivergedError(diverged)
    return [rows[case.name] for case in cases]


def _look_ahead(
    out: Path,
    cases: Sequence[Case],
    seeds: Sequence[int],
    missing: Sequence[list[Batch]],
    here: DataHere,
    *,
    make: bool,
) -> None:
    """Refuse what is done on other data; and, before the first case has trained, a later one that cannot be made."""
    for case in cases:
        here.check_done([run_folder(out, case.name, seed) for seed in seeds], case.recipe.data)
    waiting = [case for case, some in zip(cases, missing, strict=True) if some]
    for case in waiting[1:] if make else ():
        here.try_out(case.recipe)


def _finished(
    out: Path, cases: Sequence[Case], seeds: Sequence[int], known: Mapping[str, Row], log: Callable[[str], None]
) -> dict[str, Row]:
    """The rows of all cases that are done; those that were not known yet are told."""
    rows = dict(known)
    for case in cases:
        if case.name not in rows and not missing_of(out, case, seeds):
            rows[case.name] = _row(out, case, seeds)
            log(f"{case.name}: {rows[case.name]}")
    return rows


@contextmanager
def timed(group: Sequence[Batch], log: Callable[[str], None]) -> Iterator[str]:
    """Tell how long a group took, once it is done; gives the name of the run whose epochs are shown."""
    began, name = time.perf_counter(), "; ".join(batch.name for batch in group)
    yield _heard(group)
    log(f"{name} done in {time.perf_counter() - began:.1f} s")


def _heard(group: Sequence[Batch]) -> str:
    """The run that is listened to, by its name: of those trained at once the first.

    >>> from equalbits.recipes import get_recipe
    >>> _heard([Batch(get_recipe("fashion-conv2"), "sign", (1, 2)), Batch(get_recipe("fashion-conv2"), "bihalf", (0,))])
    'sign: seed 1, first of 3 at once'
    """
    first, nets = group[0], sum(len(batch.seeds) for batch in group)
    return first.name if nets == 1 else f"{first.case}: seed {first.seeds[0]}, first of {nets} at once"


def missing_of(out: Path, case: Case, seeds: Sequence[int]) -> list[Batch]:
    """The seeds of a case whose results are not there, each by itself."""
    return [Batch(case.recipe, case.name, (seed,)) for seed in seeds if not _is_done(out, case, seed)]


def side_by_side(out: Path, batches: Sequence[Batch], stack: int) -> list[list[Batch]]:
    """The batches in groups of at most ``stack`` seeds, to be trained at once: seeds of a case, then of the next.

    Those that may share a group are brought together first, for a setting such as ``data.erase`` may lie between them.
    Nets that were stopped share one with those they were stopped with, and no others: the rest are not as far.
    """
    kinds: list[object] = []
    placed: list[tuple[int, Batch]] = []
    for batch in batches:
        kind = stopped_in(out, batch), beside(batch.recipe)
        kinds += [kind] if kind not in kinds else []
        placed.append((kinds.index(kind), batch))
    groups: list[list[Batch]] = []
    room, last = 0, -1
    for place, batch in sorted(placed, key=itemgetter(0)):
        for seed in batch.seeds:
            cases = groups[-1] if room and place == last else []
            same = bool(cases) and cases[-1].case == batch.case
            if not cases or (not same and len(cases) == _MOST_CASES):
                groups.append([])
                cases, room, last = groups[-1], stack, place
            if same:
                cases[-1] = replace(cases[-1], seeds=(*cases[-1].seeds, seed))
            else:
                cases.append(Batch(batch.recipe, batch.case, (seed,)))
            room -= 1
    return groups


def write_ledger(out: Path) -> None:
    """Leave the ledger of all runs below ``out`` there, as sweep.json."""
    write_atomically(out / "sweep.json", (json.dumps(collect(out), indent=1) + "\n").encode())


def _is_done(out: Path, case: Case, seed: int) -> bool:
    """Whether this seed's result is there; one that other settings made is refused."""
    path = run_folder(out, case.name, seed) / "run.json"
    if not path.exists():
        return False
    check_same(path.parent, read_run(path)[0], case.recipe.with_settings({"seed": seed}))
    return True


def _row(out: Path, case: Case, seeds: Sequence[int]) -> Row:
    runs = [json.loads((run_folder(out, case.name, seed) / "run.json").read_text()) for seed in seeds]
    accuracy = {
        which: tuple(100 * run[which]["test"]["correct"] / run[which]["test"]["total"] for run in runs)
        for which in ("last", "best")
    }
    seconds = sum(run["seconds"] for run in runs)
    return Row(case.name, dict(case.settings), tuple(seeds), accuracy["last"], accuracy["best"], seconds)
