"""Figure 3: effect of weight decay and learning rate schedule on latents, gradients, flips and accuracy.

Bi-half, Conv2. The paper does not give its weight decays; these are common values around its own 1e-4.
"""

import statistics
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from equalbits._claim import Claim, signed
from equalbits._plotting import GAP, UP, Figure, heading, legend, new_figure, panel, shades
from equalbits._statistics import kendall
from equalbits.analysis import FlipWatcher, binary_layers
from equalbits.functional import as_filters, positive_count
from equalbits.paper.claims import ONE_SEED, last_accuracy, undecided
from equalbits.paper.item import Item, Options, Result
from equalbits.paper.item_runs import EachEpoch, Watch, quick_recipe, run_watched
from equalbits.recipes import Recipe, TrainedRun, get_recipe

DECAYS = (0.0, 1e-5, 1e-4, 5e-4, 1e-3)
QUICK_DECAYS = (0.0, 1e-3, 1e-2)  # in a few epochs only large ones have an effect
SCHEDULES = ("constant", "cosine")
#: Number of equal parts of a run whose means show a trend.
WINDOWS = 10
STYLES = {"constant": "--", "cosine": "-"}


class MagnitudeWatcher:
    """Mean |latent| and |cut| at each call of :meth:`measure`, and mean |gradient| over the steps since the last one.

    The cut is the smallest latent that is +1: the threshold of figure 3 (a). All are means over the weights of the net,
    so a filter's cut is weighted by the filter's number of weights.
    """

    def __init__(self) -> None:
        self.latents: list[float] = []
        self.cuts: list[float] = []
        self.gradients: list[float] = []
        self._sum: Tensor | float = 0.0
        self._steps = 0

    @torch.no_grad()
    def __call__(self, model: nn.Module, step: int) -> None:
        """Accumulate the gradients of a step, without a transfer from the device."""
        grads = [layer.weight.grad for layer in binary_layers(model).values() if layer.weight.grad is not None]
        if step and grads:
            self._sum += torch.stack([grad.abs().sum() for grad in grads]).sum() / sum(grad.numel() for grad in grads)
            self._steps += 1

    @torch.no_grad()
    def measure(self, model: nn.Module, epoch: int) -> None:
        """Record the latents and cuts, and average the accumulated gradients."""
        rows = [as_filters(layer.to_filters(layer.weight)) for layer in binary_layers(model).values()]
        weights = sum(row.numel() for row in rows)
        ranks = [row.shape[1] - positive_count(row.shape[1], 0.5) + 1 for row in rows]  # of the smallest +1, from 1
        cuts = [
            row.kthvalue(rank, dim=1).values.abs().sum() * row.shape[1] for row, rank in zip(rows, ranks, strict=True)
        ]
        self.latents.append(float(sum(row.abs().sum() for row in rows)) / weights)
        self.cuts.append(float(sum(cuts)) / weights)
        if epoch:
            self.gradients.append(float(self._sum) / max(self._steps, 1))
            self._sum, self._steps = 0.0, 0


def _recipe(options: Options) -> Recipe:
    recipe = quick_recipe("conv2", images=2000, epochs=6) if options.quick else get_recipe("cifar10-conv2")
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

    def read(finished: TrainedRun) -> Result:
        epochs, series = finished.recipe.train.epochs, flips.layers.values()
        steps = next(iter(series)).steps
        a_step = [sum(s.to_positive[at] + s.to_negative[at] for s in series) for at in range(len(steps))]
        ends = [steps[-1] * number // epochs for number in range(epochs + 1)]
        return {
            "weights": sum(s.symbols for s in series),
            "flips": [
                sum(count for step, count in zip(steps, a_step, strict=True) if low < step <= high)
                for low, high in pairwise(ends)
            ],
            "latent": sizes.latents,
            "cut": sizes.cuts,
            "gradient": sizes.gradients,
        }

    return Watch([sizes, flips, EachEpoch(sizes.measure)], read)


def _run(result: Result, schedule: str, decay: float) -> Result | None:
    """Return the run of these settings; None where it diverged."""
    for run in result["runs"]:
        if run["schedule"] == schedule and run["weight_decay"] == decay and "diverged" not in run:
            return dict(run)
    return None


def claims(result: Result) -> list[Claim]:
    """Compare with the text on each of the five panels; one seed decides none of it.

    Of (b) it says that gradients fall under cosine, in a comparison of the schedules. That they fall more than under a
    constant rate is implied, and shown too.
    """
    decays = result["weight_decays"]
    low, high = min(decays), max(decays)
    ends = sorted({low, high})
    constant, cosine = ({decay: _run(result, schedule, decay) for decay in ends} for schedule in SCHEDULES)
    rows = []
    if low < high:
        rows += [
            _compare("(a) latents smaller with more weight decay, at the end", cosine[high], cosine[low], "latent"),
            _compare("(a) cut smaller with more weight decay, at the end", cosine[high], cosine[low], "cut"),
        ]
    rows += [_falls(f"(b) gradients fall under cosine, weight decay {d:g}", cosine[d], "gradient") for d in ends]
    for decay in ends:
        claim = f"(b) gradients smaller under cosine than under constant, at the end, weight decay {decay:g}"
        rows.append(_compare(claim, cosine[decay], constant[decay], "gradient", paper="implied"))
    if low < high:
        claim = "(c) constant rate: more flips in the last epoch with more weight decay"
        rows.append(_compare(claim, constant[high], constant[low], "flips"))
    rows += [_falls(f"(d) cosine: flips fall gradually, weight decay {d:g}", cosine[d], "flips") for d in ends]
    for schedule in SCHEDULES:
        scored = {d: run for d in decays if (run := _run(result, schedule, d)) is not None}
        if scored:
            best = max(scored, key=lambda d: last_accuracy(scored[d]))
            ours = f"{best:g} with {last_accuracy(scored[best]):.2f} %"
            rows.append(undecided(f"(e) best weight decay, {schedule} rate", "not reported", ours))
    return rows


def _compare(claim: str, one: Result | None, other: Result | None, what: str, *, paper: str = "yes") -> Claim:
    """Show the last values of two runs."""
    if one is None or other is None:
        return undecided(claim, paper, "diverged", why="–", n=0)
    return undecided(claim, paper, f"{_shown(one[what][-1])} against {_shown(other[what][-1])}")


def _falls(claim: str, run: Result | None, what: str) -> Claim:
    """Show the trend over the whole of a run: its ends alone would hide a rise before the fall."""
    if run is None:
        return undecided(claim, "yes", "diverged", why="–", n=0)
    values = run[what]
    size = -(-len(values) // WINDOWS)
    means = [statistics.fmean(values[at : at + size]) for at in range(0, len(values), size)]
    ours = f"{_shown(values[0])} to {_shown(values[-1])}, {_shown(max(values))} at most"
    if len(means) < 2:
        return undecided(claim, "yes", ours)
    tau, p = kendall(means)
    trend = f"Kendall's τ {signed(tau)} over {len(means)} windows"
    return undecided(claim, "yes", f"{trend}, p = {p:.2g} ({ours})", why=f"a trend within one run; {ONE_SEED}")


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


_LABELS = {"constant": "constant learning rate", "cosine": "cosine schedule"}


def draw(result: Result) -> Figure:
    """Plot the five panels, and the legend in the sixth place."""
    figure = new_figure(13, 7.5, title=heading(result))
    names = {
        "a": ("epoch", "mean |latent|; dotted: |threshold|", "(a) latents, cosine schedule"),
        "b": ("epoch", "mean |gradient|, 10⁻⁵", "(b) gradients"),
        "c": ("epoch", "flips per epoch, millions", "(c) flips, constant learning rate"),
        "d": ("epoch", "flips per epoch, millions", "(d) flips, cosine schedule"),
        "e": ("weight decay", "test accuracy, %", "(e) accuracy"),
    }
    axes = {
        key: panel(figure, (2, 3, place), x=x, y=y, title=title)
        for place, (key, (x, y, title)) in enumerate(names.items(), start=1)
    }
    decays = result["weight_decays"]
    plain = [np.format_float_positional(decay, trim="-") for decay in decays]  # without an exponent
    for decay, word, blue in zip(decays, plain, shades(len(decays)), strict=True):
        axes["d"].plot([], [], color=blue, label=f"weight decay {word}")
        for schedule in SCHEDULES:
            run = _run(result, schedule, decay)
            if run is None:
                continue
            epochs = range(1, len(run["flips"]) + 1)
            axes["b"].plot(epochs, [value * 1e5 for value in run["gradient"]], color=blue, linestyle=STYLES[schedule])
            flips = axes["d" if schedule == "cosine" else "c"]
            flips.plot(epochs, [count / 1e6 for count in run["flips"]], color=blue, linestyle=STYLES[schedule])
            if schedule == "cosine":
                axes["a"].plot(range(len(run["latent"])), run["latent"], color=blue)
                axes["a"].plot(range(len(run["cut"])), run["cut"], color=blue, linestyle=":")
    for schedule, colour in zip(SCHEDULES, (GAP, UP), strict=True):
        axes["d"].plot([], [], color="black", linestyle=STYLES[schedule], label=_LABELS[schedule])
        runs = [_run(result, schedule, decay) for decay in decays]
        scores = [float("nan") if run is None else last_accuracy(run) for run in runs]
        line = {"color": colour, "linestyle": STYLES[schedule], "marker": "o", "label": _LABELS[schedule]}
        axes["e"].plot(range(len(decays)), scores, **line)
    axes["e"].set_xticks(range(len(decays)), plain)
    legend(axes["e"])
    beside = figure.add_subplot(2, 3, 6)
    beside.set_axis_off()
    beside.legend(*axes["d"].get_legend_handles_labels(), frameon=False, loc="center", ncols=-(-len(decays) // 8))
    return figure


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
