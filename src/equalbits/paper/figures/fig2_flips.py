"""Figure 2: bits of one filter that flip at each step, to +1 and to −1, with Sign, IR-Net and bi-half.

All three start with the same bits, half of each filter +1, and get the same batches. The paper does not name its
filter; ours is the first of the second convolution. Its text calls the Sign panel (c); it is (a).
"""

from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from equalbits._plotting import DOWN, GAP, UP, method_name, new_figure, save_figure
from equalbits.analysis import FlipWatcher
from equalbits.paper.claims import Claim
from equalbits.paper.drawing import heading, legend, panel
from equalbits.paper.figures.half_start import HalfStart
from equalbits.paper.item import Item, Options, Result
from equalbits.paper.runs import Watch, quick_recipe, run_watched
from equalbits.recipes import FinishedRun, Recipe, get_recipe

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COMPARED = ("sign", "irnet-stable", "bihalf")
LAYER, FILTER = "conv2", 0


def _recipe(options: Options) -> Recipe:
    recipe = quick_recipe("conv2", width=0.25, epochs=3) if options.quick else get_recipe("cifar10-conv2")
    return recipe.with_settings({"evaluate_every": recipe.train.epochs, **options.settings})


def measure(out: Path, options: Options) -> Result:
    """Train the three methods, with a watcher at every step."""
    recipes = {method: _recipe(options).with_settings({"model.weight_quantizer": method}) for method in COMPARED}
    methods = run_watched(out / "runs", recipes, options, _watch)
    return {"seeds": [_recipe(options).train.seed], "layer": LAYER, "index": FILTER, "methods": methods}


def _watch(method: str) -> Watch:
    start, flips = HalfStart(), FlipWatcher(filters={LAYER: FILTER})
    return Watch([start, flips], partial(_counts, start, flips))


def _counts(start: HalfStart, flips: FlipWatcher, finished: FinishedRun) -> Result:
    series = flips.filters[LAYER].as_dict()
    return {
        "filters": start.filters,
        "filters_off_half_at_start": start.off,
        "filter": series,
        "steps": len(series["steps"]),
        "greatest_difference": max(map(abs, difference(series)), default=0),
        "uneven_steps": {name: _uneven(series.as_dict()) for name, series in flips.layers.items()},
        "flips": {name: [sum(s.to_positive), sum(s.to_negative)] for name, s in flips.layers.items()},
    }


def _uneven(series: Result) -> int:
    """Count the steps at which a layer flipped more bits one way than the other."""
    return sum(up != down for up, down in zip(series["to_positive"], series["to_negative"], strict=True))


def difference(series: Result) -> list[int]:
    """Accumulate flips to +1 minus flips to −1 over the steps."""
    pairs = zip(series["to_positive"], series["to_negative"], strict=True)
    return list(accumulate(up - down for up, down in pairs))


def claims(result: Result) -> list[Claim]:
    """Bi-half flips evenly at every step, the others do not."""
    rows = []
    for method, found in result["methods"].items():
        off, steps, name = found["filters_off_half_at_start"], found["steps"], method_name(method)
        rows.append(
            Claim(claim=f"{name}: filters not exactly half at the start", paper="0", difference=float(off),
                  ours=f"{off} of {found['filters']}", agrees=off == 0, decided_by="count", n=1)
        )  # fmt: skip
        most, uneven, exact = found["greatest_difference"], sum(found["uneven_steps"].values()), method == "bihalf"
        looks = steps * len(found["uneven_steps"])
        rows += [
            Claim(claim=f"{name}: greatest difference of accumulated flips, one filter",
                  paper="0 throughout" if exact else "not 0", ours=f"{most} over {steps:,} steps",
                  agrees=(most == 0) == exact, decided_by="count", n=1),
            Claim(claim=f"{name}: steps at which a layer flips unevenly",
                  paper="0" if exact else "some", ours=f"{uneven:,} of {looks:,}",
                  agrees=(uneven == 0) == exact, decided_by="count", n=1),
        ]  # fmt: skip
    return rows


def draw(result: Result, out: Path) -> None:
    """Plot a row per method: flips per step, accumulated flips, and their difference."""
    figure = new_figure(15, 8, title=heading(result, f"Flips of filter {result['index']} of {result['layer']}"))
    grid = figure.add_gridspec(len(result["methods"]), 3)
    first: list[Axes | None] = [None, None, None]
    for row, (method, found) in enumerate(result["methods"].items()):
        series = found["filter"]
        steps, up, down, gap = series["steps"], series["to_positive"], series["to_negative"], difference(series)
        named = (
            ("flips a step", method_name(method)),
            ("flips so far", method_name(method)),
            ("to +1 less to −1", _ends(gap)),
        )
        axes = [
            panel(figure, grid[row, at], x="step", y=y, title=title, sharey=first[at])
            for at, (y, title) in enumerate(named)
        ]
        for each in axes:
            each.locator_params(axis="x", nbins=5)
        axes[0].vlines(steps, 0, up, color=UP, linewidth=0.8, label="to +1")
        axes[0].vlines(steps, [-count for count in down], 0, color=DOWN, linewidth=0.8, label="to −1")
        axes[0].axhline(0, color="black", linewidth=0.5)
        axes[1].plot(steps, list(accumulate(up)), color=UP, label="to +1")
        axes[1].plot(steps, list(accumulate(down)), color=DOWN, linestyle="--", label="to −1")
        axes[2].plot(steps, gap, color=GAP, linewidth=0.8)
        if row == 0:
            legend(axes[1], loc="upper left")
        first = [old or new for old, new in zip(first, axes, strict=True)]
    save_figure(figure, out, "fig2")


def _ends(gap: list[int]) -> str:
    return f"difference: {max(map(abs, gap), default=0)} at most, {gap[-1] if gap else 0} in the end".replace("-", "−")


ITEM = Item(
    name="fig2",
    title="Bit flips of one filter during training",
    needs="cifar10",
    measure=measure,
    draw=draw,
    claims=claims,
    watched=True,
    decides=("model.weight_quantizer",),
)
