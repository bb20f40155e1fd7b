"""Table 3: ResNet-18 and 34 with binary weights and activations on ImageNet, and on Tiny-ImageNet as its stand-in.

Trained on ImageNet: Sign (the authors' own baseline) and bi-half. The other rows are published numbers of other papers.
Tiny-ImageNet has a tenth of the pictures, at 64×64: its accuracies are not comparable with the paper's, the order of
methods is. IR-Net is trained there too, with its own estimator for activations. Quick: the small-image ResNet-18 on the
embedded data.
"""

from dataclasses import replace
from pathlib import Path

from equalbits._claim import Claim
from equalbits._plotting import Figure, heading, method_color, method_name, new_figure, panels
from equalbits.paper.claims import (
    CaseCounts,
    above,
    accuracies,
    as_score,
    count_diverged,
    undecided,
    why_undecided,
)
from equalbits.paper.item import Item, Options, Result
from equalbits.paper.item_runs import item_cases, item_recipes, quick_recipe, run_methods
from equalbits.paper.items import fig7_architectures as fig7
from equalbits.paper.published_numbers import TABLE_3
from equalbits.recipes import Recipe

NETS = {"ResNet-18": "imagenet-resnet18", "ResNet-34": "imagenet-resnet34"}
TINY_NETS = {net: f"tiny{recipe}" for net, recipe in NETS.items()}
COMPARED = ("sign", "bihalf")
#: Tolerance in points: the paper has one run each and no deviation, and two runs of a recipe may differ by this much.
MARGIN = 0.5
_NOTE = (
    "Tiny-ImageNet stands in for ImageNet: 200 classes, 100,000 training and 10,000 validation pictures of 64×64, "
    "enlarged to 72×72 and cropped to 64×64 as ImageNet's 256×256 are to 224×224; the nets are those for 224×224."
)


def measure(out: Path, options: Options) -> Result:
    """Train both nets with both methods and one seed, as in the paper, or two when quick.

    ImageNet is read from files, so nets are not stacked.
    """
    recipes = item_recipes(NETS, options, quick={"ResNet-18": _small(2000)})
    vary = {"model.weight_quantizer": COMPARED}
    groups = {net: item_cases(recipe, vary, options, within=net.lower()) for net, recipe in recipes.items()}
    return run_methods(out, groups, options, may_stack=False)


def measure_tiny(out: Path, options: Options) -> Result:
    """Train every net with every method and three seeds, or two when quick."""
    recipes = item_recipes(TINY_NETS, options, quick={"ResNet-18": _small(1000)})
    groups = {net: fig7.method_cases(net, recipe, options) for net, recipe in recipes.items()}
    return {**run_methods(out, groups, options), "notes": [_NOTE]}


def _small(images: int) -> Recipe:
    return quick_recipe("resnet18", width=0.0625, input_quantizer="sign", images=images)


def top(case: CaseCounts, count: int) -> list[float]:
    """Return the top-1 or top-5 accuracy of each finished run in per cent."""
    scores = [run["last"]["test"] for run in case["runs"] if run["last"] is not None]
    return [100 * (score["correct"] if count == 1 else score["correct_top5"]) / score["total"] for score in scores]


def claims(result: Result) -> list[Claim]:
    """Compare our rows with the paper's, and bi-half with Sign."""
    rows = []
    for net, methods in result["nets"].items():
        for method, case in methods.items() if not result["quick"] else ():
            rows += [_against(net, method, case, count) for count in (1, 5)]
        rows += _bihalf_above(result, net, classes=1000)
    return rows


def claims_tiny(result: Result) -> list[Claim]:
    """Bi-half is above the other methods, as the paper's is on ImageNet."""
    return [row for net in result["nets"] for row in _bihalf_above(result, net, classes=200, on=", on ImageNet")]


def _bihalf_above(result: Result, net: str, *, classes: int, on: str = "") -> list[Claim]:
    """Test bi-half against each other method that was trained; ``on`` names the data of the paper's difference."""
    methods, quick = result["nets"][net], result["quick"]
    printed = {row.method: row.top1 for row in TABLE_3 if row.net == net and not quick}
    rows = []
    for other in methods:
        if other == "bihalf" or "bihalf" not in methods:
            continue
        theirs = printed.get(method_name(other))
        paper = "not reported" if theirs is None else f"{printed['Bi-half'] - theirs:+.2f} points{on}"
        claim = f"{net}: bi-half above {method_name(other)}, top-1"
        rows.append(above(claim, methods["bihalf"], methods[other], paper=paper, classes=10 if quick else classes))
    return rows


def _against(net: str, method: str, case: CaseCounts, count: int) -> Claim:
    printed = {(row.net, row.method): row.top1 if count == 1 else row.top5 for row in TABLE_3}
    paper, ours, why = printed.get((net, method_name(method))), top(case, count), why_undecided(case, "tab3")
    claim = f"{net}, {method_name(method)}, top-{count}: within {MARGIN} points of the paper's"
    words = "not reported" if paper is None else f"{paper:.2f} %"
    row = undecided(claim, words, as_score(ours, diverged=count_diverged(case)), why=why or "–", n=len(ours))
    if not ours or paper is None:
        return row
    gap = sum(ours) / len(ours) - paper
    if why:
        return replace(row, difference=gap)
    test = "the mean and the paper's one run: no test"
    return replace(row, difference=gap, agrees=abs(round(gap, 2)) <= MARGIN, decided_by=test)


def draw(result: Result) -> Figure:
    """Plot top-1 as bars, the paper's in grey and ours in color, and top-5 as marks."""
    nets = result["nets"]
    figure = new_figure(1.5 + 5.5 * len(nets), 4.6, title=heading(result))
    titles = [f"{net}, 1/1 bits" for net in nets]
    for axes, (net, methods) in zip(panels(figure, titles, x="test accuracy, %", y=""), nets.items(), strict=True):
        printed = [] if result["quick"] else [(row.method, row.top1, row.top5) for row in TABLE_3 if row.net == net]
        rows = [(f"{name}, 32/32" if name == "FP" else name, one, five, "#c9ccd1") for name, one, five in printed]
        for method, case in methods.items():
            if accuracies(case):
                one, five = (sum(top(case, count)) / len(top(case, count)) for count in (1, 5))
                rows.append((f"{method_name(method)}, ours", one, five, method_color(method)))
        bars = axes.barh(range(len(rows)), [row[1] for row in rows], color=[row[3] for row in rows])
        axes.bar_label(bars, [f"{row[1]:.2f}" for row in rows], padding=3, fontsize=8)
        axes.plot([row[2] for row in rows], range(len(rows)), "|", color="black", markersize=9)
        axes.set_yticks(range(len(rows)), [row[0] for row in rows])
        axes.set_xlim(0, 100)
        axes.invert_yaxis()
    figure.supxlabel("bars: top-1; marks: top-5", fontsize=9)
    return figure


ITEM = Item(
    name="tab3",
    title="ResNets with binary weights and activations",
    needs="imagenet",
    measure=measure,
    draw=draw,
    claims=claims,
    grid={"nets": tuple(NETS)},
)
TINY = replace(
    ITEM,
    name="tab3-tiny",
    title="ResNets with binary weights and activations, on Tiny-ImageNet in place of ImageNet",
    needs="tinyimagenet",
    measure=measure_tiny,
    draw=fig7.draw,
    claims=claims_tiny,
    grid={"nets": tuple(TINY_NETS), "model.weight_quantizer": fig7.COMPARED},
    uneven=("seeds", "model.weight_quantizer", "nets"),
    seeds=3,
    decides=("model.input_quantizer",),
)
