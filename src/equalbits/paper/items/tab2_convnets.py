"""Table 2: Conv2, 4, 6 and 8 on CIFAR-10 with Sign, IR-Net and bi-half, mean and deviation over five seeds.

The paper's recipe with torch's default initialization, which its released code uses and its numbers require. From the
Kaiming normal that the text names (``tab2-kaiming``) latents are 2.4 times as large, so each step crosses fewer ranks,
and every method stays below the table.

The paper does not give IR-Net's rule for nets without batch norm, and the published form does not train there. The
default here treats its statistics as constants in the gradient (``irnet-stable``). Two more readings (``tab2-irnet``)
pass the gradient unchanged (``irnet-identity``) or through the statistics (``irnet-through``). The latter's steps are
larger by one over a filter's deviation, and some nets collapse at the table's learning rate: it has a tenth of it.
"""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from equalbits._claim import Claim
from equalbits._plotting import Axes, heading, method_color, method_name, new_figure, panels, save_figure
from equalbits.paper.claims import CaseCounts, above, accuracies, near
from equalbits.paper.item import Item, Options, Result
from equalbits.paper.item_runs import by_method, item_cases, quick_recipe, run_cases
from equalbits.paper.published_numbers import TABLE_2, Published
from equalbits.recipes import Recipe, get_recipe

NETS = ("conv2", "conv4", "conv6", "conv8")
COMPARED = ("sign", "irnet-stable", "bihalf")
#: The learning rate of each other reading of IR-Net.
READINGS = {"irnet-identity": 0.1, "irnet-through": 0.01}
SEEDS = 5


def nets(options: Options) -> list[str]:
    """Return the names of the nets to train."""
    return list(options.grid.get("nets", NETS[:2] if options.quick else NETS))


def recipe_of(net: str, options: Options) -> Recipe:
    """Return the paper's recipe for a net, or its small version when quick."""
    return quick_recipe(net) if options.quick else get_recipe(f"cifar10-{net}")


def measure(
    out: Path, options: Options, *, init: str = "torch", rates: Mapping[str, float] = MappingProxyType({})
) -> Result:
    """Train every net with every method and seed from this initialization, each of ``rates`` at its learning rate."""
    vary = {"model.weight_quantizer": tuple(rates) or COMPARED}
    own = {method: {"optimizer.lr": rate} for method, rate in rates.items()}
    groups = {
        net: item_cases(recipe_of(net, options).with_settings({"model.init": init}), vary, options, within=net, own=own)
        for net in nets(options)
    }
    seeds = options.seeds_or(SEEDS)
    return {"seeds": seeds, "nets": run_cases(out / "runs", groups, options, seeds=seeds)}


def claims(result: Result) -> list[Claim]:
    """Compare each cell with the paper's (unless quick), and bi-half with the other methods on every net."""
    return compare_cells(result, near)


def compare_cells(
    result: Result, beside: Callable[[str, CaseCounts, Published], Claim], *, tuned: bool = False
) -> list[Claim]:
    """Put each cell beside the paper's, and test bi-half against each other method that was trained."""
    rows = []
    for net, cases in result["nets"].items():
        methods = by_method(cases)
        published = {method: TABLE_2[net, method] for method in methods if (net, method) in TABLE_2}
        for method, score in published.items() if not result["quick"] else ():
            claim = f"{net.capitalize()}, {method_name(method)}{', tuned' if tuned else ''}"
            rows.append(beside(claim, methods[method], score))
        for other in methods:
            if other != "bihalf" and "bihalf" in methods:
                known = other in published and not result["quick"] and not tuned  # its gaps are of one shared recipe
                paper = f"{published['bihalf'].mean - published[other].mean:+.2f} points" if known else "yes"
                claim = f"{net.capitalize()}: bi-half above {method_name(other)}"
                rows.append(above(claim, methods["bihalf"], methods[other], paper=paper))
    return rows


def draw(result: Result, out: Path) -> None:
    """Plot the seeds as dots, their mean as a line, and the paper's mean ± deviation as a grey box."""
    width = 2.6 + sum(max(0.8 * len(cases), 2.2) for cases in result["nets"].values())
    figure, box = new_figure(width, 4.2, title=heading(result)), None
    titles = [net.capitalize() for net in result["nets"]]
    for axes, net in zip(panels(figure, titles, x="", y="test accuracy, %"), result["nets"], strict=True):
        shown = by_method(result["nets"][net])
        for at, (method, case) in enumerate(shown.items()):
            draw_scores(axes, at, accuracies(case), method_color(method))
            published = TABLE_2.get((net, method))
            if published is not None and not result["quick"]:
                low, high = published.mean - published.spread, published.mean + published.spread
                box = axes.fill_between([at - 0.4, at + 0.4], low, high, color="black", alpha=0.12, linewidth=0)
        axes.set_xticks(range(len(shown)), [method_name(method).replace(" (", "\n(") for method in shown])
        axes.set_xlim(-0.6, len(shown) - 0.1)
    if box is not None:
        figure.legend([box], ["paper ±"], loc="outside lower right", frameon=False)
    save_figure(figure, out, result["item"])


def draw_scores(axes: Axes, at: float, scores: list[float], colour: str) -> None:
    """Plot seeds as dots and their mean as a line at one position of the x axis."""
    if not scores:
        axes.annotate("diverged", (at, 0.5), xycoords=("data", "axes fraction"), ha="center", color=colour)
        return
    axes.plot([at] * len(scores), scores, "o", color=colour, markersize=4, alpha=0.7)
    mean = statistics.fmean(scores)  # as in the tables
    axes.plot([at - 0.25, at + 0.25], [mean, mean], color=colour, linewidth=2)
    axes.annotate(f"{mean:.2f}", (at + 0.28, mean), fontsize=8, va="bottom", color=colour)


ITEM = Item(
    name="tab2",
    title="Shallow binary nets",
    needs="cifar10",
    measure=measure,
    draw=draw,
    claims=claims,
    grid={"nets": NETS, "model.weight_quantizer": COMPARED},
    seeds=SEEDS,
)
KAIMING = replace(
    ITEM,
    name="tab2-kaiming",
    title="Shallow binary nets, from the Kaiming start that the text names",
    measure=partial(measure, init="kaiming"),
    decides=("model.init",),
)
IRNET = replace(
    ITEM,
    name="tab2-irnet",
    title="Shallow binary nets, IR-Net by its two other readings",
    measure=partial(measure, rates=READINGS),
    grid={"nets": NETS, "model.weight_quantizer": tuple(READINGS)},
    decides=("optimizer.lr",),
)
