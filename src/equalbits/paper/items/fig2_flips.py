"""Figure 2: bits of one filter that flip at each step, to +1 and to −1, with Sign, IR-Net and bi-half.

All three start with the same bits, half of each filter +1, and get the same batches. The paper does not name its
filter; ours is the first of the second convolution. Its text calls the Sign panel (c); it is (a).
"""

from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from equalbits._claim import Claim
from equalbits._plotting import DOWN, GAP, UP, Axes, Figure, heading, legend, method_name, new_figure, panel
from equalbits.analysis import FlipSeries, FlipWatcher, binary_layers
from equalbits.functional import as_filters, positive_count
from equalbits.paper.claims import counted
from equalbits.paper.item import Item, Options, Result
from equalbits.paper.item_runs import Watch, quick_recipe, run_watched
from equalbits.recipes import Recipe, TrainedRun, get_recipe

COMPARED = ("sign", "irnet-stable", "bihalf")
LAYER, FILTER = "conv2", 0
#: Distance kept from the cut, as a share of the mean magnitude, so that rounding moves no weight across.
_MARGIN = 0.01


def halved(latents: Tensor) -> Tensor:
    """Shift and scale the weights of each filter, keeping their order, so that mean and median are 0.

    Sign cuts at 0 and IR-Net at the mean, so both then give bi-half's symbols. The median is moved to 0 first,
    then both sides are scaled to the same sum.

    >>> halved(torch.tensor([[1.0, 2.0, 3.0, 10.0]])).sign()
    tensor([[-1., -1.,  1.,  1.]])
    """
    rows = as_filters(latents).double()  # (filter, connection)
    connections = rows.shape[1]
    negatives = connections - positive_count(connections, 0.5)
    if negatives == 0:
        return latents.abs()
    ordered = rows.sort(dim=1).values
    rows = rows - (ordered[:, negatives - 1 : negatives] + ordered[:, negatives : negatives + 1]) / 2
    is_positive = torch.zeros_like(rows, dtype=torch.bool)
    is_positive.scatter_(1, rows.argsort(dim=1, stable=True)[:, negatives:], True)
    sizes = rows.abs() + _MARGIN * rows.abs().mean(dim=1, keepdim=True)
    above, below = ((sizes * side).sum(dim=1, keepdim=True) for side in (is_positive, ~is_positive))
    middle = (above + below) / 2
    balanced = torch.where(is_positive, sizes * middle / above, -sizes * middle / below)
    return balanced.to(latents.dtype).view_as(latents)


class HalfStart:
    """Watcher that applies :func:`halved` before the first step and counts the filters that are not exactly half."""

    def __init__(self) -> None:
        self.filters = self.inexact = 0

    @torch.no_grad()
    def __call__(self, model: nn.Module, step: int) -> None:
        """Before the first step, shift the latents and count the filters that are not exactly half."""
        if step:
            return
        for layer in binary_layers(model).values():
            filters = layer.to_filters(layer.weight)
            layer.weight.copy_(layer.from_filters(halved(filters)))
            rows = as_filters(layer.symbols())
            self.filters += len(rows)
            self.inexact += int(((rows > 0).sum(dim=1) != positive_count(rows.shape[1], 0.5)).sum())


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

    def read(finished: TrainedRun) -> Result:
        series = flips.filters[LAYER]
        layers = {name: (layer.to_positive, layer.to_negative) for name, layer in flips.layers.items()}
        return {
            "filters": start.filters,
            "filters_off_half_at_start": start.inexact,
            "filter": asdict(series),
            "steps": len(series.steps),
            "greatest_difference": max(map(abs, series.difference), default=0),
            "uneven_steps": {
                name: sum(up != down for up, down in zip(*both, strict=True)) for name, both in layers.items()
            },
            "flips": {name: [sum(ups), sum(downs)] for name, (ups, downs) in layers.items()},
        }

    return Watch([start, flips], read)


def claims(result: Result) -> list[Claim]:
    """Bi-half flips evenly at every step, the others do not."""
    rows = []
    for method, found in result["methods"].items():
        name, even = method_name(method), method == "bihalf"
        off, steps, most = found["filters_off_half_at_start"], found["steps"], found["greatest_difference"]
        uneven, comparisons = sum(found["uneven_steps"].values()), steps * len(found["uneven_steps"])
        start = f"{name}: filters not exactly half at the start"
        one_filter = f"{name}: greatest difference of accumulated flips, one filter"
        layers = f"{name}: steps at which a layer flips unevenly"
        rows += [
            counted(start, "0", f"{off} of {found['filters']}", off == 0, difference=float(off)),
            counted(
                one_filter, "0 throughout" if even else "not 0", f"{most} over {steps:,} steps", (most == 0) == even
            ),
            counted(layers, "0" if even else "some", f"{uneven:,} of {comparisons:,}", (uneven == 0) == even),
        ]
    return rows


def draw(result: Result) -> Figure:
    """Plot a row per method: flips per step, accumulated flips, and their difference."""
    figure = new_figure(15, 8, title=heading(result, f"Flips of filter {result['index']} of {result['layer']}"))
    grid = figure.add_gridspec(len(result["methods"]), 3)
    first: list[Axes | None] = [None, None, None]
    for row, (method, found) in enumerate(result["methods"].items()):
        series = FlipSeries(**found["filter"])
        steps, (ups, downs), gap = series.steps, series.cumulative, series.difference
        ends = f"difference: {max(map(abs, gap), default=0)} at most, {gap[-1] if gap else 0} in the end"
        named = (
            ("flips a step", method_name(method)),
            ("flips so far", method_name(method)),
            ("to +1 less to −1", ends.replace("-", "−")),
        )
        axes = [
            panel(figure, grid[row, at], x="step", y=y, title=title, sharey=first[at])
            for at, (y, title) in enumerate(named)
        ]
        for each in axes:
            each.locator_params(axis="x", nbins=5)
        axes[0].vlines(steps, 0, series.to_positive, color=UP, linewidth=0.8, label="to +1")
        axes[0].vlines(steps, [-count for count in series.to_negative], 0, color=DOWN, linewidth=0.8, label="to −1")
        axes[0].axhline(0, color="black", linewidth=0.5)
        axes[1].plot(steps, ups, color=UP, label="to +1")
        axes[1].plot(steps, downs, color=DOWN, linestyle="--", label="to −1")
        axes[2].plot(steps, gap, color=GAP, linewidth=0.8)
        if row == 0:
            legend(axes[1], loc="upper left")
        first = [old or new for old, new in zip(first, axes, strict=True)]
    return figure


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
