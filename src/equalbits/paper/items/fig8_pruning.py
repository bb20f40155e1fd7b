"""Figure 8: test accuracy of pruned nets over the share of pruned weights.

The paper's text, its released code and the method it builds on have different rules:

* bi-half, middle ranks pruned: the released code.
* bi-half on learned masks: the text, Eq. 4 on the weights that the scores keep.
* Sign, smallest weights pruned: very likely the "MPT baseline" that was run, since at 0 it is the full binary net.
* the same at a tenth of the learning rate, since at the paper's rate it does not learn when most weights are pruned.
* MPT, frozen signs: Multi-Prize Tickets; at 0 that is an untrained net.

All scale a layer by the weights that are kept (``scale_fan``), since Conv2 to Conv8 have no batch norm. The released
code has that as an option; Multi-Prize Tickets scale by those that are pruned (``nn/methods/mpt.py``).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from equalbits._claim import Claim
from equalbits._plotting import Axes, Figure, heading, mean_and_range, method_color, method_name, new_figure, panels
from equalbits.paper.claims import CaseCounts, above, accuracies, best_key, guesses
from equalbits.paper.item import Item, Options, Result
from equalbits.paper.item_runs import item_cases, item_recipes, quick_recipe, run_cases


class Rule(NamedTuple):
    """Quantizer with a placeholder for the sparsity, initialization, and factor of the learning rate."""

    quantizer: str
    init: str
    rate: float = 1.0


RULES = {
    "pruned-bihalf": Rule("pruned-bihalf:sparsity={}", "torch"),
    "pruned-bihalf-score": Rule("pruned-bihalf:sparsity={},by=score", "kaiming"),
    "pruned-sign": Rule("pruned-sign:sparsity={}", "torch"),
    "pruned-sign-slow": Rule("pruned-sign:sparsity={}", "torch", 0.1),
    "mpt": Rule("mpt:sparsity={}", "kaiming"),
}
#: Label to recipe name.
NETS = {**{f"Conv{size}": f"cifar10-conv{size}" for size in (2, 4, 6, 8)}, "ResNet-18": "cifar100-resnet18-1w32a"}
SPARSITIES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
QUICK_SPARSITIES = (0.0, 0.5, 0.9)


def measure(out: Path, options: Options) -> Result:
    """Train every net by every rule at every sparsity with five seeds, or two when quick."""
    sparsities = list(options.grid.get("sparsity", QUICK_SPARSITIES if options.quick else SPARSITIES))
    groups, recipes = {}, item_recipes(NETS, options, quick={"Conv2": quick_recipe("conv2", images=2000)})
    for net, recipe in recipes.items():
        # Rules of one start share stacks.
        for name in sorted(options.grid.get("rules", RULES), key=lambda rule: (RULES[rule].init, RULES[rule].rate)):
            quantizer, init, rate = RULES[name]
            start = {"model.init": init, "optimizer.lr": round(recipe.train.optimizer.lr * rate, 9)}
            vary = {"model.weight_quantizer": [quantizer.format(sparsity) for sparsity in sparsities]}
            within = f"{net.lower()}/{init}-start" + (f"-rate-{rate:g}" if rate != 1 else "")
            groups[net, name] = item_cases(recipe.with_settings(start), vary, options, within=within)
    measured = run_cases(out / "runs", groups, options)
    nets = {net: {name: measured[net, name] for name in RULES if (net, name) in measured} for net in recipes}
    return {"sparsities": sparsities, "nets": nets, "notes": [_NOTE]}


_NOTE = (
    "Sparsity is the share of weights that are 0. The paper does not say which of the readings of MPT it ran. Bi-half "
    "on learned masks and MPT start from Kaiming's normal, as the latter does; the others as torch starts a layer."
)


def claims(result: Result) -> list[Claim]:
    """Bi-half is above each reading of the baseline at every sparsity, and pruned nets are above the full one.

    Both by the rule of the released code and by that of the text. Unpruned MPT is an untrained net and not compared.
    """
    rows = []
    for net, rules in result["nets"].items():
        for rule, words in _OURS.items():
            if rule not in rules:
                continue
            ours = dict(zip(result["sparsities"], rules[rule], strict=True))
            for readings in _BASELINES:
                rates = [rules[name] for name in readings if name in rules]
                for sparsity, *theirs in zip(result["sparsities"], *rates, strict=True) if rates else ():
                    if sparsity or readings != ("mpt",):
                        claim = f"{net}, {sparsity:.0%} pruned: {words} above {method_name(readings[0])}"
                        rows.append(_above(claim, ours[sparsity], theirs, classes=_CLASSES.get(net, 10)))
            rows += _better_than_full(f"{net}: best pruned {words}", ours, classes=_CLASSES.get(net, 10))
    return rows


#: Our rules, and their names in the claims.
_OURS = {"pruned-bihalf": "bi-half", "pruned-bihalf-score": "bi-half on learned masks"}
#: Baselines, each with its learning rates: the better one counts at every sparsity.
_BASELINES = (("pruned-sign", "pruned-sign-slow"), ("mpt",))
#: Number of classes of a net's data set, if not ten.
_CLASSES = {"ResNet-18": 100}


def _above(claim: str, ours: CaseCounts, rates: list[CaseCounts], *, classes: int) -> Claim:
    """Test ours against the best of a baseline's rates; undecided where the baseline did not learn."""
    theirs = rates[best_key(enumerate(rates))]
    words = ", at the better of two rates" if len(rates) > 1 else ""
    row = above(f"{claim}{words}", ours, theirs, best_of=len(rates), classes=classes)
    guess = guesses(theirs, classes)
    return replace(row, agrees=None, decided_by="the baseline did not learn", p=None) if guess and all(guess) else row


def _better_than_full(words: str, cases: dict[float, CaseCounts], *, classes: int = 10) -> list[Claim]:
    """Test the best pruned net, which is selected by its score, against the full one."""
    pruned = {sparsity: case for sparsity, case in cases.items() if sparsity}
    if 0.0 not in cases or not pruned:
        return []
    chosen = best_key(pruned.items())
    claim = f"{words} ({chosen:.0%}) above the full binary net"
    return [above(claim, pruned[chosen], cases[0.0], best_of=len(pruned), classes=classes)]


def _draw_rule(
    axes: Axes, x: Sequence[float], cases: Sequence[CaseCounts], *, name: str, classes: int, place: int
) -> None:
    """Plot the nets of one rule that learned; where some did not, a cross on the axis."""
    guess = [guesses(case, classes) for case in cases]
    learned = [
        [score for score, dead in zip(accuracies(case), flags, strict=True) if not dead]
        for case, flags in zip(cases, guess, strict=True)
    ]
    mean_and_range(axes, x, learned, color=method_color(name), label=method_name(name))
    dead = [at for at, flags in zip(x, guess, strict=True) if any(flags)]
    beside = [at + 1.5 * (place - 2) for at in dead]  # so that two rules at one sparsity are both seen
    on_axis = axes.get_xaxis_transform()
    (crosses,) = axes.plot(beside, [0] * len(dead), "x", color=method_color(name), transform=on_axis, clip_on=False)
    crosses.set_in_layout(False)  # which takes the sparsity for a distance


def draw(result: Result) -> Figure:
    """Plot a panel per net, two in a row, and a curve per rule; crosses at the bottom mark nets that did not learn."""
    nets = result["nets"]
    rows = -(-len(nets) // 2)
    figure = new_figure(6.6 if len(nets) == 1 else 11, 1.6 + 3.2 * rows, title=heading(result))
    x, handles = [100 * sparsity for sparsity in result["sparsities"]], {}
    for axes, (net, rules) in zip(panels(figure, list(nets), x="% pruned", y="", rows=rows), nets.items(), strict=True):
        axes.set_ylabel("test accuracy, %")
        for row, (name, cases) in enumerate(rules.items()):
            _draw_rule(axes, x, cases, name=name, classes=_CLASSES.get(net, 10), place=row)
        handles.update({label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)})
    (handles["did not learn, some or all of the seeds"],) = figure.axes[0].plot([], [], "x", color="#5b6470")
    place = {"loc": "outside lower center", "ncols": 2, "frameon": False, "fontsize": 9}
    figure.legend(list(handles.values()), list(handles), **place)
    return figure


ITEM = Item(
    name="fig8",
    title="Pruned binary nets",
    needs="cifar10 and cifar100",
    measure=measure,
    draw=draw,
    claims=claims,
    grid={"nets": tuple(NETS), "sparsity": SPARSITIES, "rules": tuple(RULES)},
    uneven=("nets", "rules", "seeds"),
    seeds=5,
    decides=("optimizer.lr", "model.init"),
)
