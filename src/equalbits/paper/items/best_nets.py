"""Beyond the paper: 1-bit nets as accurate as we could make them, beside the best published ones.

Their settings follow published recipes; none was selected by its score on test images. The nets are those of the
published results up to the differences that docs/best.md lists.
"""

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from equalbits._claim import Claim
from equalbits._plotting import Figure, heading, method_color, new_figure, panel
from equalbits._statistics import Sample
from equalbits._toml import flatten
from equalbits.paper.claims import (
    SOME_DIVERGED,
    CaseCounts,
    accuracies,
    count_diverged,
    decide_by_one_sample,
    score_of,
    undecided,
)
from equalbits.paper.item import Item, Options, Result
from equalbits.paper.item_runs import item_cases, item_recipes, quick_recipe, run_cases
from equalbits.paper.items.tab2_convnets import draw_scores
from equalbits.recipes import FREE, Recipe

#: Label to recipe, and the best published accuracy with its method: those in bold in docs/best.md.
NETS = {
    "ResNet-18": ("cifar10-resnet18-best", 93.75, "BiPer"),
    "ResNet-20": ("cifar10-resnet20-best", 88.5, "IE-Net"),
    "VGG-small": ("cifar10-vgg-small-best", 93.3, "ReCU"),
    "CIFAR-100 ResNet-18": ("cifar100-resnet18-best", 71.2, "CMIM"),
}
_NOTE = (
    "Published accuracies are those of their authors' pages: one number each, some of them of the best epoch. A test "
    "takes them as exact."
)


def _recipes(options: Options) -> dict[str, Recipe]:
    teacher = {"distill.weight": 0.5, "distill.teacher": "fashion-conv2"}
    small = quick_recipe("resnet20", width=0.25, images=1000, input_quantizer="rsign")
    quick = {"ResNet-20": small.with_settings({"model.options.rprelu": True, **teacher})}
    return item_recipes({net: recipe for net, (recipe, _, _) in NETS.items()}, options, quick=quick)


def measure(out: Path, options: Options) -> Result:
    """Train every net with three seeds, or two when quick, after the teachers that they share."""
    groups = {
        net: item_cases(recipe, {}, options, within=net.lower().replace(" ", "-"))
        for net, recipe in _recipes(options).items()
    }
    one_by_one = replace(options, stack=options.stack or 1)  # a ResNet-18 and its teacher fill a GPU
    found = run_cases(out / "runs", groups, one_by_one, keep_weights=True)
    # With its recipe, so that seeds of an older recipe are not merged with those of a newer one.
    nets = {net: {**case, "recipe": recipe_settings(groups[net][0].recipe)} for net, (case,) in found.items()}
    return {
        "nets": nets,
        "notes": [*(_describe_training(net, case.recipe) for net, (case,) in groups.items()), _NOTE],
    }


def recipe_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of a recipe that change its result and are not the defaults, by name."""
    settings = flatten(recipe.as_dict())
    needed = {name: settings[name] for name in ("name", "model.name", "data.name", "epochs")}
    usual = flatten(Recipe.from_dict(needed).as_dict())
    return needed | {
        name: value for name, value in settings.items() if name not in FREE | {"seed"} and usual.get(name) != value
    }


def _describe_training(net: str, recipe: Recipe) -> str:
    """Describe epochs, teacher and activation of a net."""
    train, model = recipe.train, recipe.model
    teacher = (
        f"{train.distill.weight:g} of the loss from {train.distill.teacher}" if train.distill.weight else "no teacher"
    )
    activation = f"{model.input_quantizer} inputs" + (" and RPReLU" if model.options.get("rprelu") else "")
    return f"{net}: {train.epochs} epochs, {teacher}, {activation}."


def _with_minutes(case: CaseCounts) -> str:
    """Format the accuracy, and the minutes of training without the teacher's."""
    minutes = [run["seconds"] / 60 for run in case["runs"] if run["last"] is not None and "seconds" in run]
    return score_of(case) + (f" in {statistics.fmean(minutes):.1f} minutes a seed" if minutes else "")


def claims(result: Result) -> list[Claim]:
    """Each net is above the best published one."""
    rows = []
    for net, case in result["nets"].items() if not result["quick"] else ():
        _, best, method = NETS[net]
        ours, words = accuracies(case), _with_minutes(case)
        row = undecided(f"{net}: above {method}", f"{best:.2f} %", words, why=SOME_DIVERGED, n=len(ours))
        row = replace(row, difference=statistics.fmean(ours) - best if ours else None)
        rows.append(row if count_diverged(case) else decide_by_one_sample(row, Sample.of(ours), best))
    return rows


def draw(result: Result) -> Figure:
    """Plot the seeds of each net as dots, their mean as a line and the published number as a dashed one."""
    nets = result["nets"]
    figure = new_figure(2 + 2.2 * len(nets), 4.2)
    axes = panel(figure, (1, 1, 1), x="", y="test accuracy, %", title=heading(result))
    for at, (net, case) in enumerate(nets.items()):
        draw_scores(axes, at, accuracies(case), method_color("bihalf"))
        if not result["quick"]:
            _, best, method = NETS[net]
            axes.plot([at - 0.25, at + 0.25], [best, best], "--", color="black", linewidth=1)
            axes.annotate(f"{best:g} {method}", (at - 0.25, best), fontsize=8, va="bottom")
    axes.set_xticks(range(len(nets)), list(nets))
    axes.set_xlim(-0.6, len(nets) - 0.3)
    return figure


ITEM = Item(
    name="best",
    title="The best 1-bit nets",
    needs="cifar10 and cifar100",
    measure=measure,
    draw=draw,
    claims=claims,
    grid={"nets": tuple(NETS)},
    uneven=("seeds", "nets"),
    seeds=3,
)
