"""The ledger of a sweep: every run's counts, and what made them, as one JSON object."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equalbits.recipes.run_dir import read_run
from equalbits.training import flat


def collect(out: Path) -> dict[str, Any]:
    """Gather the finished runs below ``out`` (``<case>/seed<n>/run.json``) into one object.

    What all runs share is said once; a case holds what is its own. Scores are counts: correct of total.
    """
    paths = sorted(Path(out).glob("*/seed*/run.json"))
    if not paths:
        raise ValueError(f"{out} holds no finished run: sweep there first")
    cases: dict[str, list[dict[str, Any]]] = {}
    for path in paths:
        cases.setdefault(path.parent.parent.name, []).append(read_run(path)[1])
    every = [run for runs in cases.values() for run in runs]
    recipes = [flat({**run["recipe"], "seed": None}) for run in every]
    common = {name: value for name, value in recipes[0].items() if all(r.get(name) == value for r in recipes)}
    return {
        "recipe": every[0]["recipe"]["name"],
        "settings": {name: value for name, value in common.items() if value is not None},
        "devices": sorted({run["device"] for run in every}),
        "versions": sorted({" · ".join(f"{k} {v}" for k, v in run["versions"].items()) for run in every}),
        "cases": [
            {
                "name": name,
                "settings": {k: v for k, v in flat(runs[0]["recipe"]).items() if k not in common and k != "seed"},
                "runs": [_run(run) for run in sorted(runs, key=lambda run: run["seed"])],
            }
            for name, runs in cases.items()
        ],
    }


def _run(run: Mapping[str, Any]) -> dict[str, Any]:
    scores = {
        which: {
            "epoch": run[which]["epoch"],
            "correct": run[which]["test"]["correct"],
            "total": run[which]["test"]["total"],
            "train_loss": run[which]["train"]["loss_sum"] / run[which]["train"]["total"],
        }
        for which in ("last", "best")
    }
    return {
        "seed": run["seed"],
        **scores,
        "seconds": run["seconds"],
        "stacked_with": run.get("stacked_with", 1),
    }
