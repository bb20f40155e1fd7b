"""Table 1: the four update rules on one net.

(a) Sign: the sign of a latent. (b) IR-Net: the sign of a latent minus its filter's mean. (c) Bi-half: a bit flips when
its latent's rank crosses the middle of the filter. (d) Bop: no latents; a bit flips when the averaged gradient is
large enough and has the bit's sign. The flip form (c) runs beside the ranking of Eq. 4 at every step, to show that
they are the same rule. The net is Conv2 with batch norm: without it Bop's unbalanced bits drift until all units are
dead.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equalbits._claim import Claim, signed
from equalbits._plotting import DOWN, UP, Axes, Figure, heading, legend, method_color, method_name, new_figure, panel
from equalbits.analysis import FlipWatcher, audit, binary_layers
from equalbits.functional import positive_count, stable_ranks
from equalbits.paper.claims import counted, last_accuracy, undecided
from equalbits.paper.item import Item, Options, Result
from equalbits.paper.item_runs import Watch, quick_recipe, run_watched
from equalbits.recipes import Recipe, TrainedRun, get_recipe

#: Method to its further settings.
RULES: dict[str, dict[str, Any]] = {
    "sign": {},
    "irnet-stable": {},
    "bihalf": {},
    "bits": {"optimizer.name": "bop", "optimizer.gamma": 1e-3, "optimizer.tau": 1e-6},
}


class FlipForm:
    """Update bits by Table 1 (c), and count those that differ from the model's.

    Also keeps which ranks were below the middle, so that one sort per step finds those that crossed it. The counts stay
    on the device until they are read, so no step waits for them.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._bits: dict[str, Tensor] = {}
        self._below: dict[str, Tensor] = {}
        self._flips: Tensor | int = 0
        self._differing: Tensor | int = 0

    @torch.no_grad()
    def __call__(self, model: nn.Module, step: int) -> None:
        """Flip the bits whose rank crossed the middle since the last call."""
        for name, layer in binary_layers(model).items():
            rows = layer.to_filters(layer.weight.detach()).flatten(1)
            below = stable_ranks(rows) < rows.shape[1] - positive_count(rows.shape[1], 0.5)
            symbols = layer.symbols().flatten(1)
            if name in self._bits:
                crossed = below != self._below[name]
                self._bits[name] = torch.where(crossed, -self._bits[name], self._bits[name])
                self._flips += crossed.sum()
                self._differing += (self._bits[name] != symbols).sum()
            else:
                self._bits[name] = symbols.clone()
            self._below[name] = below
        self.steps = step

    def read(self) -> dict[str, int]:
        """Return steps, flips and differing bits so far; waits for the GPU."""
        return {"steps": self.steps, "flips": int(self._flips), "bits_that_differ": int(self._differing)}


def _recipe(options: Options) -> Recipe:
    recipe = quick_recipe("conv2", epochs=3) if options.quick else get_recipe("cifar10-conv2")
    return recipe.with_settings({"model.options.batch_norm": True, **options.settings})


def measure(out: Path, options: Options) -> Result:
    """Train by each rule, with watchers at every step; bi-half also by its flip form."""
    recipes = {
        method: _recipe(options).with_settings({"model.weight_quantizer": method, **own})
        for method, own in RULES.items()
    }
    rules = run_watched(out / "runs", recipes, options, _watch)
    return {"seeds": [_recipe(options).train.seed], "rules": rules}


def _watch(method: str) -> Watch:
    flips, form = FlipWatcher(), FlipForm()

    def read(finished: TrainedRun) -> Result:
        series, layers = flips.layers.values(), audit(finished.model).layers
        exact = sum(int((layer.positive == positive_count(layer.connections, 0.5)).sum()) for layer in layers)
        ups = [sum(counts) for counts in zip(*(each.to_positive for each in series), strict=True)]
        downs = [sum(counts) for counts in zip(*(each.to_negative for each in series), strict=True)]
        return {
            "to_positive": ups,
            "to_negative": downs,
            "flips": [sum(ups), sum(downs)],
            "weights": sum(each.symbols for each in series),
            "filters": sum(layer.filters for layer in layers),
            "filters_exactly_half": exact,
            **({"flip_form": form.read()} if method == "bihalf" else {}),
        }

    return Watch([flips, form] if method == "bihalf" else [flips], read)


def claims(result: Result) -> list[Claim]:
    """Bi-half's two forms agree; it alone flips evenly and keeps every filter at half. Accuracies are of one seed."""
    rules = result["rules"]
    form = rules["bihalf"]["flip_form"]
    differ, flips = form["bits_that_differ"], form["flips"]
    claim = "bi-half: bits by the flip form that differ from those by rank"
    ours = f"{differ} over {form['steps']:,} steps and {flips:,} flips"
    rows = [counted(claim, "0", ours, differ == 0 and flips > 0, difference=float(differ))]
    for method, found in rules.items():
        exact, filters, even = found["filters_exactly_half"], found["filters"], method == "bihalf"
        (up, down), name = found["flips"], method_name(method)
        at_half, directions = f"{name}: filters exactly half at the end", f"{name}: flips to +1 and to −1"
        rows += [
            counted(at_half, "all" if even else "not all", f"{exact} of {filters}", (exact == filters) == even),
            counted(directions, "equal" if even else "not equal", f"{up:,} and {down:,}", (up == down) == even),
        ]
    half = last_accuracy(rules["bihalf"])
    for method in rules:
        if method != "bihalf":
            other = last_accuracy(rules[method])
            claim = f"test accuracy with batch norm: bi-half above {method_name(method)}"
            gap = f"{signed(half - other)} points ({half:.2f} % against {other:.2f} %)"
            rows.append(undecided(claim, "not reported", gap))
    return rows


def draw(result: Result) -> Figure:
    """Plot flips by direction, filters at half, test accuracy and, where they are kept, flips over the steps."""
    rules = result["rules"]
    names, places = [method_name(method).replace(" (", "\n(") for method in rules], range(len(rules))
    colours = [method_color(method) for method in rules]
    curves = all("to_positive" in found for found in rules.values())  # results/ keeps none
    columns = 4 if curves else 3
    figure = new_figure(3.75 * columns, 3.9, title=heading(result))
    axes = panel(figure, (1, columns, 1), x="", y="flips in all, millions")
    for shift, colour in ((-0.2, UP), (0.2, DOWN)):
        sums = [found["flips"][shift > 0] / 1e6 for found in rules.values()]
        axes.bar([at + shift for at in places], sums, 0.38, color=colour, label="to +1" if shift < 0 else "to −1")
    legend(axes, loc="upper center", ncols=2)
    second = panel(figure, (1, columns, 2), x="", y="filters exactly half, %")
    shares = [100 * found["filters_exactly_half"] / found["filters"] for found in rules.values()]
    second.bar_label(second.bar(places, shares, color=colours), fmt="%.0f")
    second.set_yticks(range(0, 101, 20))
    last = panel(figure, (1, columns, 3), x="", y="test accuracy, %")
    last.bar_label(last.bar(places, [last_accuracy(found) for found in rules.values()], color=colours), fmt="%.1f")
    for each in (axes, second, last):
        each.set_xticks(places, names)
        each.margins(y=0.2)
    if curves:
        _draw_curves(
            panel(figure, (1, 4, 4), x="step", y="share of all weights that flip per step", yscale="log"), rules
        )
    return figure


def _draw_curves(axes: Axes, rules: dict[str, dict[str, Any]]) -> None:
    for method, found in rules.items():
        both = zip(found["to_positive"], found["to_negative"], strict=True)
        rates = [(up + down) / found["weights"] for up, down in both]
        axes.plot(range(1, len(rates) + 1), rates, color=method_color(method), label=method_name(method), linewidth=1)
    legend(axes, fontsize=8)


ITEM = Item(
    name="tab1",
    title="Four rules for flipping a bit",
    needs="cifar10",
    measure=measure,
    draw=draw,
    claims=claims,
    watched=True,
    decides=("model.weight_quantizer", *RULES["bits"]),
)
