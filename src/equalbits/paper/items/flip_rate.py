"""Beyond the paper: does bi-half only help because it flips more or fewer bits than Sign?

The learning rate sets how often bits flip. Both methods are trained at several rates, and the flips of every tenth step
are counted, so that Sign can be compared with bi-half where both flip equally often. Counting those of every step would
take many times as long as training.
"""

import statistics
from pathlib import Path

import torch
from torch import Tensor, nn

from equalbits._claim import Claim
from equalbits._plotting import Figure, heading, legend, method_color, method_name, new_figure, panel
from equalbits.analysis import binary_layers
from equalbits.paper.claims import CaseCounts, above, accuracies
from equalbits.paper.item import Item, Options, Result
from equalbits.paper.item_runs import Watch, quick_recipe, run_watched
from equalbits.recipes import TrainedRun, get_recipe

METHODS = ("sign", "bihalf")
LEARNING_RATES = (0.025, 0.05, 0.1, 0.2, 0.4)
USUAL = 0.1  # the paper's learning rate
EVERY = 10


def measure(out: Path, options: Options) -> Result:
    """Train both methods at every learning rate, and count flips."""
    recipe = quick_recipe("conv2", images=1000) if options.quick else get_recipe("cifar10-conv2")
    recipe = recipe.with_settings({"evaluate_every": recipe.train.epochs, **options.settings})
    rates = options.grid.get("optimizer.lr", LEARNING_RATES)
    cases = [{"model.weight_quantizer": method, "optimizer.lr": rate} for method in METHODS for rate in rates]
    recipes = {
        _name(case, seed): recipe.with_settings({**case, "seed": seed}) for case in cases for seed in options.seeds
    }
    found = run_watched(out / "runs", recipes, options, _watch, may_diverge=True)
    runs = [[_run(seed, **found[_name(case, seed)]) for seed in options.seeds] for case in cases]
    return {"cases": [{"settings": case, "runs": some} for case, some in zip(cases, runs, strict=True)]}


def _name(case: Result, seed: int) -> str:
    method, rate = case.values()
    return f"{method}-lr{rate:g}-seed{seed}"


def _run(seed: int, *, epochs: list[Result], **counts: object) -> Result:
    """Return the last epoch and the flips of a run, in the form of :data:`~equalbits.paper.claims.CaseCounts`."""
    return {"seed": seed, "last": epochs[-1] if epochs else None, **counts}


class SampledFlips:
    """Count the symbols that flip in every n-th step, on the device, in all layers together."""

    def __init__(self, every: int = EVERY) -> None:
        self.every, self.steps = every, 0
        self.before: list[Tensor] = []
        self.flipped: Tensor | int = 0

    @torch.no_grad()
    def __call__(self, model: nn.Module, step: int) -> None:
        """Keep the symbols before a counted step, and count those that differ after it."""
        if step % self.every == 0:
            self.before = _symbols(model)
        elif step % self.every == 1 and self.before:
            pairs = zip(self.before, _symbols(model), strict=True)
            self.flipped += torch.stack([(before != now).sum() for before, now in pairs]).sum()
            self.steps += 1


def _symbols(model: nn.Module) -> list[Tensor]:
    return [layer.symbols().to(torch.int8) for layer in binary_layers(model).values()]


def _watch(name: str) -> Watch:
    flips = SampledFlips()

    def read(finished: TrainedRun) -> Result:
        symbols = sum(each.numel() for each in _symbols(finished.model))
        return {"flips": int(flips.flipped), "symbols": symbols, "steps": flips.steps}

    return Watch([flips], read)


def flip_rate(case: CaseCounts) -> float:
    """Return the share of the bits that flip in a step, in parts per million, over the counted steps of all runs."""
    runs: list[Result] = [dict(run) for run in case["runs"] if run["last"] is not None]
    return statistics.fmean(1e6 * run["flips"] / run["symbols"] / run["steps"] for run in runs) if runs else 0.0


def _cases(result: Result, method: str) -> dict[float, CaseCounts]:
    """Return the cases of a method by learning rate."""
    cases = [case for case in result["cases"] if case["settings"]["model.weight_quantizer"] == method]
    return {case["settings"]["optimizer.lr"]: case for case in cases}


def claims(result: Result) -> list[Claim]:
    """Compare bi-half at the paper's learning rate with Sign at that rate, and where Sign flips as often.

    A case that diverged in all runs has no flip rate.
    """
    sign, half = _cases(result, "sign"), _cases(result, "bihalf").get(USUAL)
    if half is None:
        return []
    rows = [above("bi-half above Sign at the same learning rate", half, sign[USUAL])] if USUAL in sign else []
    rate, rates = flip_rate(half), {lr: flip_rate(case) for lr, case in sign.items() if accuracies(case)}
    if not rates or not accuracies(half):
        return rows
    nearest = min(rates, key=lambda lr: abs(rates[lr] - rate))
    if nearest == USUAL:  # the row above
        return rows
    where = f"learning rate {nearest:g}: {rates[nearest]:.1f} flips a million bits and step, not {rate:.1f}"
    return [*rows, above(f"bi-half above Sign at its nearest flip rate ({where})", half, sign[nearest])]


def draw(result: Result) -> Figure:
    """Plot accuracy over flip rate, a curve per method and a point per learning rate."""
    figure = new_figure(8, 4.6)
    x, y = "flips per million bits and step", "test accuracy, %"
    axes = panel(figure, (1, 1, 1), x=x, y=y, title=heading(result))
    axes.set_xscale("log")
    for method in METHODS:
        points = [(rate, flip_rate(case), accuracies(case)) for rate, case in _cases(result, method).items()]
        points = [point for point in points if point[2]]
        means = [statistics.fmean(scores) for _, _, scores in points]
        color = method_color(method)
        axes.plot([flips for _, flips, _ in points], means, color=color, marker="o", label=method_name(method))
        for rate, flips, scores in points:
            axes.plot([flips] * len(scores), scores, ".", color=color, alpha=0.5)
            axes.annotate(f"{rate:g}", (flips, max(scores)), xytext=(0, 5), textcoords="offset points", fontsize=8)
    legend(axes, title="learning rate at each point")
    return figure


ITEM = Item(
    name="flip-rate",
    title="Sign at the flip rate of bi-half",
    needs="cifar10",
    measure=measure,
    draw=draw,
    claims=claims,
    grid={"optimizer.lr": LEARNING_RATES},
    seeds=3,
    decides=("model.weight_quantizer", "evaluate_every"),
)
