"""Figure 5: test accuracy over the share of +1, Conv2 on CIFAR-10 and CIFAR-100.

Measured twice. Conv2 has no batch norm, and inputs after a ReLU are positive, so a share other than one half shifts the
mean of every sum by √(2D)(2p − 1)E[x]: at p = 0.45 nearly all units are dead at the start, at 0.6 the logits are in the
thousands. The literal net therefore also measures signal propagation; the one with batch norm isolates the effect of
the share.
"""

from dataclasses import replace
from pathlib import Path

from equalbits._claim import Claim
from equalbits._plotting import GAP, UP, Figure, heading, legend, mean_and_range, new_figure, panels
from equalbits.paper.claims import CaseCounts, above, accuracies, best_key, score_of
from equalbits.paper.item import Item, Options, Result
from equalbits.paper.item_runs import item_cases, item_recipes, nest, quick_recipe, run_cases

SHARES = (0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9)
QUICK_SHARES = (0.3, 0.4, 0.5, 0.6, 0.7)
DATA = {"CIFAR-10": "cifar10-conv2", "CIFAR-100": "cifar100-conv2"}
#: Number of classes of a data set, if not ten.
CLASSES = {"CIFAR-100": 100}
FORMS = {"literal": False, "with batch norm": True}


def measure(out: Path, options: Options) -> Result:
    """Train every share on every data set, literal and with batch norm."""
    shares = list(options.grid.get("p_pos", QUICK_SHARES if options.quick else SHARES))
    quick = {"Fashion-MNIST": quick_recipe("conv2", images=2000)}
    vary = {"model.weight_quantizer": [f"bihalf:p_pos={share}" for share in shares]}
    groups = {
        (data, form): item_cases(
            recipe.with_settings({"model.options.batch_norm": FORMS[form]}),
            vary,
            options,
            within=f"{data.lower()}/{form.replace(' ', '-')}",
        )
        for data, recipe in item_recipes(DATA, options, quick=quick, part="data").items()
        for form in options.grid.get("forms", FORMS)
    }
    found = run_cases(out / "runs", groups, options)
    return {"shares": shares, "data": nest(found), "notes": [_NOTE]}


_NOTE = (
    "Without batch norm, the only form the paper shows, a share other than one half also shifts the mean of every sum, "
    "and the fall on both sides is of both together: the form with batch norm is the fairer test of the share."
)


def claims(result: Result) -> list[Claim]:
    """One half is the best share on each data set, with and without batch norm."""
    rows = []
    for data, forms in result["data"].items():
        for form, cases in forms.items():
            if 0.5 in result["shares"]:
                by_share = dict(zip(result["shares"], cases, strict=True))
                rows.append(_best(f"{data}, {form}: the best share of +1", by_share, classes=CLASSES.get(data, 10)))
    return rows


def _best(claim: str, cases: dict[float, CaseCounts], *, classes: int = 10) -> Claim:
    """Compare one half with the best of the others, which is selected by its score."""
    others = {share: case for share, case in cases.items() if share != 0.5} or cases
    first, rival = best_key(cases.items()), best_key(others.items())
    row = above(claim, cases[0.5], cases[rival], best_of=len(others), classes=classes)
    other = rival if first == 0.5 else 0.5
    ours = f"{first:g} with {score_of(cases[first])}; {other:g} has {score_of(cases[other])}"
    if not accuracies(cases[first]):
        return replace(row, paper="0.5", ours="all diverged")
    return replace(row, paper="0.5", ours=ours, difference=first - 0.5)


_COLOURS = {"literal": GAP, "with batch norm": UP}
_LABELS = {"literal": "no batch norm (paper)", "with batch norm": "with batch norm"}


def draw(result: Result) -> Figure:
    """Plot a panel per data set, with means and ranges for both forms."""
    figure = new_figure(1 + 5.5 * len(result["data"]), 4.4, title=heading(result))
    titles = [f"Conv2 on {data}" for data in result["data"]]
    for axes, data in zip(panels(figure, titles, x="share of +1", y="test accuracy, %"), result["data"], strict=True):
        for form, cases in result["data"][data].items():
            colour = _COLOURS[form]
            scores = [accuracies(case) for case in cases]
            mean_and_range(axes, result["shares"], scores, color=colour, label=_LABELS[form])
            for share, case in zip(result["shares"], cases, strict=True):
                if not accuracies(case):
                    axes.annotate("×", (share, 0.02), xycoords=("data", "axes fraction"), color=colour, ha="center")
        axes.axvline(0.5, color="black", linestyle=":", linewidth=1)
        legend(axes, loc="upper right")
    return figure


ITEM = Item(
    name="fig5",
    title="Which share of +1 is preferred",
    needs="cifar10 and cifar100",
    measure=measure,
    draw=draw,
    claims=claims,
    grid={"data": tuple(DATA), "forms": tuple(FORMS), "p_pos": SHARES},
    uneven=("seeds", "data", "forms"),
    seeds=5,
    decides=("model.options.batch_norm",),
)
