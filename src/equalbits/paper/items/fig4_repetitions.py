"""Figure 4: distribution of losses and accuracies of Conv2, trained a hundred times with Sign and with bi-half."""

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Literal

from equalbits._claim import Claim, signed
from equalbits._plotting import METHOD_NAMES, Figure, heading, legend, method_color, method_name, new_figure, panel
from equalbits._statistics import Sample
from equalbits.paper.claims import ONE_SEED, SOME_DIVERGED, CaseCounts, decide_by_welch, undecided
from equalbits.paper.item import Item, Options, Result
from equalbits.paper.item_runs import by_method, item_cases, quick_recipe, run_cases
from equalbits.recipes import get_recipe

Split = Literal["train", "test"]
COMPARED = ("sign", "bihalf")
#: Split, quantity, and whether less is better.
PANELS: tuple[tuple[Split, str, bool], ...] = (
    ("train", "loss", True),
    ("test", "loss", True),
    ("train", "accuracy", False),
    ("test", "accuracy", False),
)


def measure(out: Path, options: Options) -> Result:
    """Train a hundred seeds of each method; six when quick."""
    recipe = quick_recipe("conv2", images=2000) if options.quick else get_recipe("cifar10-conv2")
    recipe = recipe.with_settings({"evaluate_every": recipe.train.epochs})
    cases = item_cases(recipe, {"model.weight_quantizer": COMPARED}, options)
    found = run_cases(out / "runs", {"conv2": cases}, options)["conv2"]
    return {"methods": by_method(found)}


def values(case: CaseCounts, split: Split, what: str) -> list[float]:
    """Return the mean loss, or the accuracy in per cent, of each run after its last epoch."""
    scores = [run["last"][split] for run in case["runs"] if run["last"] is not None]
    if what == "loss":
        return [score["loss_sum"] / score["total"] for score in scores]
    return [100 * score["correct"] / score["total"] for score in scores]


def claims(result: Result) -> list[Claim]:
    """Bi-half is better in all four means, and in each of the sorted losses. Diverged runs leave it undecided.

    Of two equal methods, all n sorted losses of one or the other are below with probability 2 / (n + 1): few seeds
    cannot decide that. A rank at which bi-half is not below refutes the claim by itself.
    """
    rows = [_on_average(result, split, what, less) for split, what, less in PANELS]
    sign, half = (sorted(values(result["methods"][method], "train", "loss")) for method in COMPARED)
    below = sum(ours < theirs for ours, theirs in zip(half, sign, strict=False))
    n, diverged = min(len(sign), len(half)), _describe_diverged(result)
    claim = "sorted training losses: bi-half's below Sign's at every rank"
    row = undecided(claim, "consistently", f"{below} of {n}{diverged}", why=SOME_DIVERGED, n=n)
    if not diverged and n < 2:
        row = replace(row, decided_by=ONE_SEED)
    elif not diverged and below < n:
        row = replace(row, agrees=False, decided_by="count")
    elif not diverged:
        row = replace(row, agrees=True, decided_by=f"every rank, by chance 2 in {n + 1}", p=2 / (n + 1))
    return [*rows, row]


def _on_average(result: Result, split: Split, what: str, less: bool) -> Claim:
    sign, half = (values(result["methods"][method], split, what) for method in COMPARED)
    diverged, unit = _describe_diverged(result), "" if what == "loss" else " %"
    shown = " against ".join(f"{statistics.fmean(found):.3f}{unit}" if found else "diverged" for found in (half, sign))
    claim = f"{split} {what} of bi-half {'below' if less else 'above'} Sign's"
    n = min(len(sign), len(half))
    row = undecided(claim, "yes, on average", shown + diverged, why=SOME_DIVERGED, n=n)
    if not n:
        return row
    gap = signed(statistics.fmean(half) - statistics.fmean(sign), 3)
    row = replace(row, ours=f"{gap}{unit} ({shown}){diverged}")
    return row if diverged else decide_by_welch(row, Sample.of(half), Sample.of(sign), less=less)


def _describe_diverged(result: Result) -> str:
    """Describe which runs diverged; empty where none did."""
    runs = {method: result["methods"][method]["runs"] for method in COMPARED}
    counts = {method: sum(run["last"] is None for run in some) for method, some in runs.items()}
    words = [
        f"{count} of {len(runs[method])} by {method_name(method)} diverged" for method, count in counts.items() if count
    ]
    return f"; {', '.join(words)}" if words else ""


def draw(result: Result) -> Figure:
    """Plot four histograms, and the sorted training losses."""
    figure = new_figure(16, 3.8, title=heading(result, f"Conv2, {len(result['seeds'])} seeds each"))
    for place, (split, what, _) in enumerate(PANELS, start=1):
        unit = "" if what == "loss" else ", %"
        axes = panel(figure, (1, 5, place), x=f"{split} {what}{unit}", y="runs" if place == 1 else "")
        found = {method: values(case, split, what) for method, case in result["methods"].items()}
        every = [value for some in found.values() for value in some]
        bins = {
            "bins": min(20, max(6, len(result["seeds"]) // 3)),
            "range": (min(every), max(every)) if every else None,
        }
        for method, some in found.items():
            axes.hist(some, **bins, color=method_color(method), alpha=0.65, label=method_name(method))
        axes.locator_params(axis="y", integer=True)
        if place == 1:
            legend(axes)
    axes = panel(figure, (1, 5, 5), x="runs in order", y="train loss")
    for method, case in result["methods"].items():
        losses = sorted(values(case, "train", "loss"))
        axes.plot(range(1, len(losses) + 1), losses, color=method_color(method), marker=".", label=METHOD_NAMES[method])
    legend(axes)
    return figure


ITEM = Item(
    name="fig4",
    title="Conv2 a hundred times: losses and accuracies",
    needs="cifar10",
    measure=measure,
    draw=draw,
    claims=claims,
    seeds=100,
    quick_seeds=6,
)
