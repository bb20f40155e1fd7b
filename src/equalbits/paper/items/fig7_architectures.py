"""Figure 7: five architectures on CIFAR-100 with Sign, IR-Net and bi-half, at 1/32 and 1/1 bits (weights/activations).

The paper gives no numbers for it. As in the authors' code, the nets with binary activations are the two ResNets. Their
activations are binarized by the sign with a clipped gradient; IR-Net's by its own estimator, EDE.
"""

from pathlib import Path

from equalbits._claim import Claim
from equalbits._plotting import Figure, heading, legend, method_color, method_name, new_figure, panel
from equalbits.paper.claims import above, accuracies
from equalbits.paper.item import Item, Options, Result
from equalbits.paper.item_runs import item_cases, item_recipes, quick_recipe, run_methods
from equalbits.recipes import Case, Recipe

SEEDS = 5
COMPARED = ("sign", "irnet", "bihalf")
#: Label to recipe name.
NETS = {
    "VGG16 1/32": "cifar100-vgg16-1w32a",
    "ResNet-18 1/32": "cifar100-resnet18-1w32a",
    "ResNet-34 1/32": "cifar100-resnet34-1w32a",
    "InceptionV3 1/32": "cifar100-inception-v3-1w32a",
    "ShuffleNet 1/32": "cifar100-shufflenet-1w32a",
    "ResNet-18 1/1": "cifar100-resnet18-1w1a",
    "ResNet-34 1/1": "cifar100-resnet34-1w1a",
}


def measure(out: Path, options: Options) -> Result:
    """Train every net with every method and five seeds, which the paper does not state, or two when quick."""
    small = quick_recipe("resnet18", width=0.0625, images=1000)
    quick = {"ResNet-18 1/32": small, "ResNet-18 1/1": small.with_settings({"model.input_quantizer": "sign"})}
    recipes = item_recipes(NETS, options, quick=quick)
    groups = {net: method_cases(net, recipe, options) for net, recipe in recipes.items()}
    found = run_methods(out, groups, options, keep_weights=True)  # figure 1 reads them
    return {**found, "notes": [_NOTE]}


_NOTE = (
    "The nets start from Kaiming's normal, as the paper's text and the authors' earlier public code for them do. With "
    "binary activations IR-Net has its own estimator, EDE, and the others the sign with a clipped gradient."
)


def method_cases(net: str, recipe: Recipe, options: Options) -> list[Case]:
    """Return a case per method; IR-Net binarizes activations by its own estimator."""
    within = net.lower().replace(" ", "-").replace("/", "w")
    own = {"irnet": {"model.input_quantizer": "ede"}} if recipe.model.input_quantizer else {}
    return item_cases(recipe, {"model.weight_quantizer": COMPARED}, options, within=within, own=own)


def claims(result: Result) -> list[Claim]:
    """Bi-half is never worse."""
    return [
        above(
            f"{net}: bi-half not below {method_name(other)}",
            methods["bihalf"],
            methods[other],
            paper="never worse",
            classes=10 if result["quick"] else 100,
        )
        for net, methods in result["nets"].items()
        for other in methods
        if other != "bihalf" and "bihalf" in methods
    ]


def draw(result: Result) -> Figure:
    """Plot a group of bars per net, a bar per method."""
    nets = result["nets"]
    figure = new_figure(max(7.5, 2 + 1.7 * len(nets)), 4.2)
    axes = panel(figure, (1, 1, 1), x="", y="test accuracy, %", title=heading(result))
    width = 0.8 / len(COMPARED)
    for place, method in enumerate(COMPARED):
        scores = [accuracies(methods[method]) if method in methods else [] for methods in nets.values()]
        means = [sum(some) / len(some) if some else 0.0 for some in scores]
        at = [number + (place - 1) * width for number in range(len(nets))]
        bars = axes.bar(at, means, width=0.92 * width, color=method_color(method), label=method_name(method))
        axes.bar_label(
            bars, [f"{mean:.1f}" if some else "–" for mean, some in zip(means, scores, strict=True)], fontsize=8
        )
    axes.margins(y=0.2)
    axes.set_xticks(range(len(nets)), list(nets))
    legend(axes, ncols=3, loc="upper left")
    return figure


ITEM = Item(
    name="fig7",
    title="Architectures, at 1/32 and 1/1 bits",
    needs="cifar100",
    measure=measure,
    draw=draw,
    claims=claims,
    grid={"nets": tuple(NETS), "model.weight_quantizer": COMPARED},
    uneven=("seeds", "model.weight_quantizer", "nets"),
    seeds=SEEDS,
    decides=("model.input_quantizer",),
)
