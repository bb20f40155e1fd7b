"""Table 3 on Tiny-ImageNet: the same nets and recipe, on a data set of a tenth of the pictures at 64×64.

A stand-in for ImageNet, and named so: its accuracies are not comparable with the paper's, the order of methods is.
Sign, IR-Net (with its own estimator for activations) and bi-half are trained with three seeds.
"""

from pathlib import Path

from equalbits._plotting import method_name
from equalbits.paper.claims import Claim, above
from equalbits.paper.figures import fig7_architectures as fig7
from equalbits.paper.item import Item, Options, Result
from equalbits.paper.item_runs import by_method, item_recipes, quick_recipe, run_cases
from equalbits.paper.published_numbers import TABLE_3

NETS = {"ResNet-18": "tinyimagenet-resnet18", "ResNet-34": "tinyimagenet-resnet34"}
SEEDS = 3
_NOTE = (
    "Tiny-ImageNet stands in for ImageNet: 200 classes, 100,000 training and 10,000 validation pictures of 64×64, "
    "enlarged to 72×72 and cropped to 64×64 as ImageNet's 256×256 are to 224×224; the nets are those for 224×224."
)


def measure(out: Path, options: Options) -> Result:
    """Train every net with every method and three seeds, or two when quick."""
    seeds = options.seeds_or(SEEDS)
    small = quick_recipe("resnet18", width=0.0625, model__input_quantizer="sign", data__limit=1000)
    recipes = item_recipes(NETS, options, quick={"ResNet-18": small})
    groups = {net: fig7.method_cases(net, recipe, options) for net, recipe in recipes.items()}
    nets = run_cases(out / "runs", groups, options, seeds=seeds)
    return {"seeds": seeds, "nets": {net: by_method(cases) for net, cases in nets.items()}, "notes": [_NOTE]}


def claims(result: Result) -> list[Claim]:
    """Bi-half is above the other methods, as the paper's is on ImageNet."""
    printed = {(row.net, row.method): row.top1 for row in TABLE_3}
    rows = []
    for net, methods in result["nets"].items():
        for other in methods:
            if other == "bihalf" or "bihalf" not in methods:
                continue
            ours, theirs = printed[net, "Bi-half"], printed.get((net, method_name(other)))
            paper = "not reported" if theirs is None else f"{ours - theirs:+.2f} points, on ImageNet"
            classes = 10 if result["quick"] else 200
            claim = f"{net}: bi-half above {method_name(other)}, top-1"
            rows.append(above(claim, methods["bihalf"], methods[other], paper=paper, classes=classes))
    return rows


ITEM = Item(
    name="tab3-tiny",
    title="ResNets with binary weights and activations, on Tiny-ImageNet in place of ImageNet",
    needs="tinyimagenet",
    measure=measure,
    draw=fig7.draw,
    claims=claims,
    grid={"nets": tuple(NETS), "model.weight_quantizer": fig7.COMPARED},
    full_only=("nets",),
    uneven=("seeds", "model.weight_quantizer", "nets"),
    seeds=SEEDS,
    decides=("model.input_quantizer",),
)
