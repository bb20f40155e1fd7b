"""Single runs that are watched while they train: each is measured once, and read back from then on."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from equalbits._files import write_atomically
from equalbits.paper.item import Options
from equalbits.recipes import FinishedRun, Recipe, check_same, recipe_in, run_recipe
from equalbits.training import BEST, LAST, EpochRecord, NonFiniteError, StepRecord, Watcher, check_weights, device_of

_MEASURED = "measured.json"


def is_measured(folder: Path) -> bool:
    """Whether a run needs neither training nor data any more."""
    return (folder / _MEASURED).exists()


def watched(
    recipe: Recipe,
    folder: Path,
    options: Options,
    *,
    watchers: Sequence[Watcher],
    read: Callable[[FinishedRun], dict[str, Any]],
    may_diverge: bool = False,
) -> dict[str, Any]:
    """Train one recipe under watchers that have seen nothing yet, and keep what ``read`` makes of them.

    A run that was cut off has lost its watchers' counts, so it begins anew, unless it has none; one that was measured
    is read back. The epochs' counts come with it. Watchers that are :class:`EachEpoch` are told of epochs too.
    With ``may_diverge`` a run whose loss leaves the finite is noted as ``diverged``; otherwise that is an error.
    """
    stored = folder / _MEASURED
    if is_measured(folder):
        check_same(folder, recipe_in(stored), recipe)
        known: dict[str, Any] = json.loads(stored.read_text())
        del known["recipe"]
        return known
    for name in (LAST, BEST) if watchers else ():
        (folder / name).unlink(missing_ok=True)
    if may_diverge:  # before a watcher asks for the rank of infinity, which a CPU refuses
        watchers = [_stop_when_not_finite, *watchers]
    reporters = [
        *(watcher.report for watcher in watchers if isinstance(watcher, EachEpoch)),
        *options.reporters_for(folder.name if (part := folder.parent.name) == "runs" else f"{part}/{folder.name}"),
    ]
    try:
        finished = run_recipe(
            recipe, folder, root=options.root, device=options.device, watchers=watchers, reporters=reporters
        )
        measured: dict[str, Any] = {
            "epochs": [record.as_dict() for record in finished.history.epochs],
            **read(finished),
        }
    except NonFiniteError as error:
        if not may_diverge:
            raise
        measured = {"epochs": [], "diverged": str(error)}
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(stored, json.dumps({"recipe": recipe.as_dict(), **measured}).encode())
    options.log(f"{folder.name}: {_summary(measured)}")
    return measured


def _stop_when_not_finite(model: nn.Module, step: int) -> None:
    """On a CPU alone: a GPU gives NaN for such a rank, and waits for no one until the epoch ends and all is checked."""
    if device_of(model).type == "cpu":
        check_weights(model, step=step, checkpoint=None)


def _summary(measured: Mapping[str, Any]) -> str:
    if not measured["epochs"]:
        return "diverged"
    test = measured["epochs"][-1]["test"]
    return f"{100 * test['correct'] / test['total']:.2f} % (last epoch)"


class EachEpoch:
    """Lets a watcher look at the start and at the end of every epoch, by the epoch's number, and never in between."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.model: nn.Module | None = None

    def __call__(self, model: nn.Module, step: int) -> None:
        """Take note of the model; look at it before the first step."""
        self.model = model
        if step == 0:
            self.watcher(model, 0)

    def report(self, record: StepRecord | EpochRecord) -> None:
        """Look at the model when an epoch is done."""
        if isinstance(record, EpochRecord) and self.model is not None:
            self.watcher(self.model, record.epoch)
