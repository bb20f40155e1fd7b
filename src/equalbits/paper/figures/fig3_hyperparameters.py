"""Figure 3: effect of weight decay and learning rate schedule on latents, gradients, flips and accuracy.

Bi-half, Conv2. The paper does not give its weight decays; these are common values around its own 1e-4.
"""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from equalbits._plotting import GAP, UP, new_figure, save_figure
from equalbits.analysis import FlipWatcher, binary_layers
from equalbits.functional import as_filters, positive_count
from equalbits.paper.claims import Claim
from equalbits.paper.drawing import heading, legend, panel, shades
from equalbits.paper.item import Item, Options, Result
from equalbits.paper.runs import EachEpoch, Watch, quick_recipe, run_watched
from equalbits.recipes import FinishedRun, Recipe, get_recipe

DECAYS = (0.0, 1e-5, 1e-4, 5e-4, 1e-3)
QUICK_DECAYS = (0.0, 1e-3, 1e-2)  # in a few epochs only large ones have an effect
SCHEDULES = ("constant", "cosine")
STYLES = {"constant": "--", "cosine": "-"}


class MagnitudeWatcher:
    """Mean |latent| and |cut| at each call of :meth:`look`, and mean |gradient| over the steps since the last one.

    The cut is the smallest latent that is +1: the threshold of figure 3 (a). All are means over the weights of the net,
    so a filter's cut is weighted by the filter's number of weights.
    """

    def __init__(self) -> None:
        self.latents: list[float] = []
        self.cuts: list[float] = []
        self.gradients: list[float] = []
        self._sum: Tensor | None = None
        self._steps = 0

    @torch.no_grad()
    def __call__(self, model: nn.Module, step: int) -> None:
        """Accumulate the gradients of a step, without a transfer from the device."""
        grads = [layer.weight.grad for layer in binary_layers(model).values() if layer.weight.grad is not None]
        if step and grads:
            mean = torch.stack([grad.abs().sum() for grad in grads]).sum() / sum(grad.numel() for grad in grads)
            self._sum = mean if self._sum is None else self._sum + mean
            self._steps += 1

    @torch.no_grad()
    def look(self, model: nn.Module, epoch: int) -> None:
        """Record the latents and cuts, and average the accumulated gradients."""
        rows = [as_filters(layer.to_filters(layer.weight)) for layer in binary_layers(model).values()]
        weights = sum(row.numel() for row in rows)
        cuts = [row.kthvalue(_cut_rank(row), dim=1).values.abs().sum() * row.shape[1] for row in rows]
        self.latents.append(float(sum(row.abs().sum() for row in rows)) / weights)
        self.cuts.append(float(sum(cuts)) / weights)
        if epoch:
            self.gradients.append(float(self._sum) / self._steps if self._sum is not None else 0.0)
            self._sum, self._steps = None, 0


def _cut_rank(rows: Tensor) -> int:
    """Return the rank, counted from 1, of the smallest latent that is +1."""
    return rows.shape[1] - positive_count(rows.shape[1], 0.5) + 1


def _recipe(options: Options) -> Recipe:
    quick = {"epochs": 6, "data__limit": 2000}
    recipe = quick_recipe("conv2", **quick) if options.quick else get_recipe("cifar10-conv2")
    return recipe.with_settings({**options.settings, "schedule.per": "epoch"})


def measure(out: Path, options: Options) -> Result:
    """Train with each weight decay and schedule, with watchers at every step."""
    decays = list(options.grid.get("optimizer.weight_decay", QUICK_DECAYS if options.quick else DECAYS))
    grid = {f"{schedule}_{decay:g}": (schedule, decay) for schedule in SCHEDULES for decay in decays}
    recipes = {
        name: _recipe(options).with_settings({"schedule.name": schedule, "optimizer.weight_decay": decay})
        for name, (schedule, decay) in grid.items()
    }
    found = run_watched(out / "runs", recipes, options, _watch, may_diverge=True)
    runs = [{"schedule": grid[name][0], "weight_decay": grid[name][1], **counts} for name, counts in found.items()]
    return {"seeds": [_recipe(options).train.seed], "weight_decays": decays, "runs": runs}


def _watch(name: str) -> Watch:
    sizes, flips = MagnitudeWatcher(), FlipWatcher()
    return Watch([sizes, flips, EachEpoch(sizes.look)], partial(_read, sizes, flips))


def _read(sizes: MagnitudeWatcher, flips: FlipWatcher, finished: FinishedRun) -> Result:
    epochs = finished.recipe.train.epochs
    series = flips.layers.values()
    steps = next(iter(series)).steps
    a_step = [sum(s.to_positive[at] + s.to_negative[at] for s in series) for at in range(len(steps))]
    ends = [steps[-1] * number // epochs for number in range(epochs + 1)]
    by_epoch = [
        sum(count for step, count in zip(steps, a_step, strict=True) if low < step <= high)
        for low, high in pairwise(ends)
    ]
    return {
        "weights": sum(s.symbols for s in series),
        "flips": by_epoch,
        "latent": sizes.latents,
        "cut": sizes.cuts,
        "gradient": sizes.gradients,
    }


def _run(result: Result, schedule: str, decay: float) -> Result | None:
    """Return the run of these settings; None where it diverged."""
    for run in result["runs"]:
        if run["schedule"] == schedule and run["weight_decay"] == decay and "diverged" not in run:
            return dict(run)
    return None


def claims(result: Result) -> list[Claim]:
    """Compare with the text on each of the five panels.

    Of (b) it says that gradients fall under cosine, in a comparison of the schedules. That they fall more than under a
    constant rate is implied, and tested too.
    """
    low, high = min(result["weight_decays"]), max(result["weight_decays"])
    runs = {(s, d): _run(result, s, d) for s in SCHEDULES for d in (low, high)}
    ends = (low, high) if low < high else (low,)  # a single one is not compared with itself
    more = [
        _compare("(a) latents smaller with more weight decay, at the end", runs["cosine", high], runs["cosine", low],
                 "latent", -1),
        _compare("(a) cut smaller with more weight decay, at the end", runs["cosine", high], runs["cosine", low],
                 "cut", -1),
        _compare("(c) constant rate: more flips in the last epoch with more weight decay", runs["constant", high],
                 runs["constant", low], "flips", 1),
    ] if low < high else []  # fmt: skip
    rows = [
        *more[:2],
        *(_falls(f"(b) gradients fall under cosine, weight decay {d:g}", runs["cosine", d], "gradient") for d in ends),
        *(
            replace(
                _compare(
                    f"(b) gradients smaller under cosine than under constant, at the end, weight decay {d:g}",
                    runs["cosine", d],
                    runs["constant", d],
                    "gradient",
                    -1,
                ),
                paper="implied",
            )
            for d in ends
        ),
        *more[2:],
        *(_falls(f"(d) cosine: flips fall, weight decay {d:g}", runs["cosine", d], "flips") for d in ends),
    ]
    for schedule in SCHEDULES:
        scored = {d: run for d in result["weight_decays"] if (run := _run(result, schedule, d)) is not None}
        if scored:
            best = max(scored, key=lambda d: _accuracy(scored[d]))
            ours = f"{best:g} with {_accuracy(scored[best]):.2f} %"
            rows.append(
                Claim(claim=f"(e) best weight decay, {schedule} rate", paper="not reported", ours=ours, agrees=None,
                      within="–", n=1)
            )  # fmt: skip
    return rows


def _accuracy(run: Result) -> float:
    test = run["epochs"][-1]["test"]
    return float(100 * test["correct"] / test["total"])


def _compare(claim: str, more: Result | None, less: Result | None, what: str, sign: int) -> Claim:
    if more is None or less is None:
        return Claim(claim=claim, paper="yes", ours="diverged", agrees=None, within="–", n=0)
    one, other = more[what][-1], less[what][-1]
    agrees = None if one == other else (one - other) * sign > 0
    return Claim(
        claim=claim,
        paper="yes",
        ours=f"{_shown(one)} against {_shown(other)}",
        agrees=agrees,
        within="one run each",
        n=1,
    )


def _falls(claim: str, run: Result | None, what: str) -> Claim:
    if run is None:
        return Claim(claim=claim, paper="yes", ours="diverged", agrees=None, within="–", n=0)
    first, last, most = run[what][0], run[what][-1], max(run[what])
    agrees = None if len(run[what]) < 2 else last < first
    return Claim(
        claim=claim,
        paper="yes",
        ours=f"{_shown(first)} to {_shown(last)}{f', {_shown(most)} at most' if most > first else ''}",
        agrees=agrees,
        within="first to last epoch",
        n=1,
    )


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def draw(result: Result, out: Path) -> None:
    """Plot the five panels, and the legend in the sixth place."""
    figure = new_figure(13, 7.5, title=heading(result))
    names = {
        "a": ("epoch", "mean |latent|; dotted: |cut|", "(a) latents, cosine rate"),
        "b": ("epoch", "mean |gradient|", "(b) gradients"),
        "c": ("epoch", "flips an epoch", "(c) flips, constant rate"),
        "d": ("epoch", "flips an epoch", "(d) flips, cosine rate"),
        "e": ("weight decay", "test accuracy, %", "(e) accuracy"),
    }
    axes = {
        key: panel(figure, (2, 3, place), x=x, y=y, title=title)
        for place, (key, (x, y, title)) in enumerate(names.items(), start=1)
    }
    decays = result["weight_decays"]
    for decay, colour in zip(decays, shades(len(decays)), strict=True):
        axes["d"].plot([], [], color=colour, label=f"weight decay {decay:g}")
        for schedule in SCHEDULES:
            run = _run(result, schedule, decay)
            if run is None:
                continue
            epochs = range(1, len(run["flips"]) + 1)
            axes["b"].plot(epochs, run["gradient"], color=colour, linestyle=STYLES[schedule])
            flips = axes["d" if schedule == "cosine" else "c"]
            flips.plot(epochs, run["flips"], color=colour, linestyle=STYLES[schedule])
            if schedule == "cosine":
                axes["a"].plot(range(len(run["latent"])), run["latent"], color=colour)
                axes["a"].plot(range(len(run["cut"])), run["cut"], color=colour, linestyle=":")
    for schedule, colour in zip(SCHEDULES, (GAP, UP), strict=True):
        axes["d"].plot([], [], color="black", linestyle=STYLES[schedule], label=f"{schedule} rate")
        found = [(place, _run(result, schedule, decay)) for place, decay in enumerate(decays)]
        kept = [(place, _accuracy(run)) for place, run in found if run is not None]
        axes["e"].plot(
            [place for place, _ in kept],
            [score for _, score in kept],
            color=colour,
            linestyle=STYLES[schedule],
            marker="o",
            label=f"{schedule} rate",
        )
    axes["e"].set_xticks(range(len(decays)), [f"{decay:g}" for decay in decays])
    legend(axes["e"])
    beside = figure.add_subplot(2, 3, 6)
    beside.set_axis_off()
    beside.legend(*axes["d"].get_legend_handles_labels(), frameon=False, loc="center", ncols=-(-len(decays) // 8))
    save_figure(figure, out, "fig3")


ITEM = Item(
    name="fig3",
    title="Weight decay and learning rate against flips",
    needs="cifar10",
    measure=measure,
    draw=draw,
    claims=claims,
    grid={"optimizer.weight_decay": DECAYS},
    watched=True,
    decides=("schedule.name", "schedule.per"),
)
