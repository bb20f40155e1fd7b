"""Table 3: ResNet-18 and 34 with binary weights and activations on ImageNet.

Trained here: Sign (the authors' own baseline) and bi-half. The other rows are published numbers of other papers. Quick:
the small-image ResNet-18 on the embedded data.
"""

from dataclasses import replace
from pathlib import Path

from equalbits._plotting import method_color, method_name, new_figure, save_figure
from equalbits.paper.claims import (
    ONE_SEED,
    SOME_DIVERGED,
    CaseCounts,
    Claim,
    above,
    accuracies,
    as_score,
    count_diverged,
    other_images,
    undecided,
)
from equalbits.paper.item import Item, Options, Result
from equalbits.paper.item_runs import by_method, item_cases, item_recipes, quick_recipe, run_cases
from equalbits.paper.plot_parts import heading, panels
from equalbits.paper.published_numbers import TABLE_3

NETS = {"ResNet-18": "imagenet-resnet18", "ResNet-34": "imagenet-resnet34"}
COMPARED = ("sign", "bihalf")
#: Tolerance in points: the paper has one run each and no deviation, and two runs of a recipe may differ by this much.
MARGIN = 0.5


def measure(out: Path, options: Options) -> Result:
    """Train both nets with both methods and one seed, as in the paper, or two when quick.

    ImageNet is read from files, so nets are not stacked.
    """
    seeds = options.seeds_or(1)
    vary = {"model.weight_quantizer": COMPARED}
    small = quick_recipe("resnet18", width=0.0625, model__input_quantizer="sign", data__limit=2000)
    recipes = item_recipes(NETS, options, quick={"ResNet-18": small})
    groups = {net: item_cases(recipe, vary, options, within=net.lower()) for net, recipe in recipes.items()}
    nets = run_cases(out / "runs", groups, options, seeds=seeds, may_stack=False)
    return {"seeds": seeds, "nets": {net: by_method(cases) for net, cases in nets.items()}}


def top(case: CaseCounts, count: int) -> list[float]:
    """Return the top-1 or top-5 accuracy of each finished run in per cent."""
    scores = [run["last"]["test"] for run in case["runs"] if run["last"] is not None]
    return [100 * (score["correct"] if count == 1 else score["correct_top5"]) / score["total"] for score in scores]


def claims(result: Result) -> list[Claim]:
    """Compare our rows with the paper's, and bi-half with Sign."""
    rows = []
    for net, methods in result["nets"].items():
        for method, case in methods.items():
            if not result["quick"]:
                rows += [_against(net, method, case, count) for count in (1, 5)]
        paper = "+0.42 points" if net == "ResNet-18" and not result["quick"] else "not reported"
        classes = 10 if result["quick"] else 1000
        claim = f"{net}: bi-half above Sign, top-1"
        rows.append(above(claim, methods["bihalf"], methods["sign"], paper=paper, classes=classes))
    return rows


def _against(net: str, method: str, case: CaseCounts, count: int) -> Claim:
    printed = {(row.net, row.method): row.top1 if count == 1 else row.top5 for row in TABLE_3}
    paper, ours, diverged = printed.get((net, method_name(method))), top(case, count), count_diverged(case)
    claim = f"{net}, {method_name(method)}, top-{count}: within {MARGIN} points of the paper's"
    why = other_images(case, "tab3") or (ONE_SEED if len(case["runs"]) < 2 else SOME_DIVERGED if diverged else "")
    words = "not reported" if paper is None else f"{paper:.2f} %"
    row = undecided(claim, words, as_score(ours, diverged=diverged), why=why or "–", n=len(ours))
    if not ours or paper is None:
        return row
    gap = sum(ours) / len(ours) - paper
    if why:
        return replace(row, difference=gap)
    test = "the mean and the paper's one run: no test"
    return replace(row, difference=gap, agrees=abs(round(gap, 2)) <= MARGIN, decided_by=test)


def draw(result: Result, out: Path) -> None:
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
    save_figure(figure, out, "tab3")


ITEM = Item(
    name="tab3",
    title="ResNets with binary weights and activations",
    needs="imagenet",
    measure=measure,
    draw=draw,
    claims=claims,
    grid={"nets": tuple(NETS)},
    full_only=("nets",),
)
