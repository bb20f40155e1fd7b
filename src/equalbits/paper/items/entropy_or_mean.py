"""Beyond the paper: do equal bits help by their entropy, or by their zero mean?

A share of +1 other than one half lowers the entropy of a filter's bits and also moves its mean away from 0. The paper
explains the gain of bi-half by the entropy. Two controls separate the two: batch norm removes each channel's mean over
the batch, and ``zero-mean`` values have mean 0 and variance 1 at any share. If a share of 0.45 with zero mean is as
good as one half, entropy is not what helps.
"""

from pathlib import Path

from equalbits._claim import Claim
from equalbits._plotting import Figure, heading, method_color, method_name, new_figure, panels
from equalbits.paper.claims import above, accuracies
from equalbits.paper.item import Item, Options, Result
from equalbits.paper.item_runs import by_method, item_cases, nest, quick_recipe, run_cases
from equalbits.paper.items.tab2_convnets import draw_scores
from equalbits.recipes import get_recipe

NETS = ("conv2", "conv4")
FORMS = ("no batch norm", "batch norm")
METHODS = (
    "sign",
    "zero-mean",
    "irnet",
    "bihalf",
    "bihalf:p_pos=0.45",
    "zero-mean:p_pos=0.45",
    "bihalf:p_pos=0.55",
    "zero-mean:p_pos=0.55",
)
QUICK_METHODS = ("sign", "bihalf", "zero-mean:p_pos=0.45")
#: Pairs whose difference separates one cause: the better one if the paper's explanation holds, the other, the question.
TESTS = (
    ("bihalf", "sign", "bi-half above sign"),
    ("bihalf", "irnet", "bi-half above IR-Net"),
    ("bihalf", "bihalf:p_pos=0.45", "one half above a share of 0.45"),
    ("bihalf", "bihalf:p_pos=0.55", "one half above a share of 0.55"),
    ("bihalf", "zero-mean:p_pos=0.45", "one half above 0.45 with zero mean"),
    ("bihalf", "zero-mean:p_pos=0.55", "one half above 0.55 with zero mean"),
    ("bihalf", "zero-mean", "bi-half above sign with zero mean"),
    ("sign", "zero-mean", "sign not below sign with zero mean"),
    ("bihalf:p_pos=0.45", "zero-mean:p_pos=0.45", "0.45 not below 0.45 with zero mean, whose entropy is the same"),
    ("bihalf:p_pos=0.55", "zero-mean:p_pos=0.55", "0.55 not below 0.55 with zero mean, whose entropy is the same"),
)


#: The paper makes none of these claims; each row follows from its explanation.
_PREDICTED = "by its explanation"


def measure(out: Path, options: Options) -> Result:
    """Train every method on every net, with and without batch norm."""
    vary = {"model.weight_quantizer": QUICK_METHODS if options.quick else METHODS}
    groups = {}
    for net in options.grid.get("nets", NETS[:1] if options.quick else NETS):
        recipe = quick_recipe(net, images=1000) if options.quick else get_recipe(f"cifar10-{net}")
        for form in options.grid.get("forms", FORMS):
            cased = recipe.with_settings({"model.options.batch_norm": form == "batch norm"})
            groups[net, form] = item_cases(cased, vary, options, within=f"{net}/{form.replace(' ', '-')}")
    return {"nets": nest(run_cases(out / "runs", groups, options))}


def claims(result: Result) -> list[Claim]:
    """Test each pair that was trained; the paper's explanation predicts every row."""
    rows = []
    for net, forms in result["nets"].items():
        for form, cases in forms.items():
            methods = by_method(cases)
            rows += [
                above(f"{net.capitalize()}, {form}: {question}", methods[better], methods[worse], paper=_PREDICTED)
                for better, worse, question in TESTS
                if better in methods and worse in methods
            ]
    return rows


def draw(result: Result) -> Figure:
    """Plot a panel per net and form, with the seeds as dots and their mean as a line."""
    cases = {
        f"{net.capitalize()}, {form}": by_method(cases)
        for net, forms in result["nets"].items()
        for form, cases in forms.items()
    }
    rows = len(result["nets"])
    figure = new_figure(1 + 6 * len(cases) / rows, 4.4 * rows, title=heading(result))
    every = panels(figure, list(cases), x="", y="test accuracy, %", rows=rows)
    for axes, methods in zip(every, cases.values(), strict=True):
        for at, (method, case) in enumerate(methods.items()):
            draw_scores(axes, at, accuracies(case), method_color(method.partition(":")[0]))
        axes.set_xticks(range(len(methods)), [_label(method) for method in methods], fontsize=8)
        axes.set_xlim(-0.6, len(methods) - 0.1)
    return figure


def _label(method: str) -> str:
    name, _, share = method.partition(":p_pos=")
    return method_name(name) + (f"\n{share}" if share else "")


ITEM = Item(
    name="entropy",
    title="Entropy or zero mean: what equal bits give",
    needs="cifar10",
    measure=measure,
    draw=draw,
    claims=claims,
    grid={"nets": NETS, "forms": FORMS, "model.weight_quantizer": METHODS},
    uneven=("seeds", "model.weight_quantizer", "nets", "forms"),
    seeds=5,
    decides=("model.options.batch_norm",),
)
