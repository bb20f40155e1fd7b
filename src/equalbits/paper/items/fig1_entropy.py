"""Figure 1: entropy of binary weights over the epochs (a), and of binary activations after training (b).

Entropy is computed per filter (per channel in b) and then averaged: pooling a layer's weights would hide filters that
lean in opposite directions. (b) reads the nets that figure 7 trained in a sibling directory, ``runs/fig7`` beside
``runs/fig1``; without them it trains one seed.
"""

import math
import statistics
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import nn

from equalbits._claim import Claim, signed
from equalbits._plotting import Figure, SubplotSpec, heading, legend, method_color, method_name, new_figure, panel
from equalbits._statistics import Sample
from equalbits.analysis import EntropyWatcher, activation_bits, binary_layers
from equalbits.functional import as_filters, attainable_entropy
from equalbits.paper.claims import counted, decide_by_welch, undecided
from equalbits.paper.item import Item, Options, Result
from equalbits.paper.item_runs import EachEpoch, Watch, quick_recipe, run_watched
from equalbits.paper.items import fig7_architectures as fig7
from equalbits.recipes import Recipe, RunStore, TrainedRun, get_recipe, load_run, make_loader, pick_device
from equalbits.training import CheckpointError, ProcessRank

WEIGHTS = ("sign", "irnet-stable", "bihalf")
ACTIVATIONS = fig7.COMPARED  # IR-Net as published: these nets have batch norm
PARTS = ("weights", "activations")
#: Rounding error of a mean of float32 entropies against the float64 value.
ROUNDING = 1e-6
#: Legends below the axes, where no whisker crosses them.
_BELOW = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.13)}


def _recipes(options: Options) -> tuple[Recipe, Recipe]:
    """Return Conv2 for the weights, and a ResNet with binary inputs for the activations."""
    if options.quick:
        shallow = quick_recipe("conv2", epochs=4)
        deep = quick_recipe("resnet18", width=0.0625, input_quantizer="sign", images=1000)
    else:
        shallow, deep = get_recipe("cifar10-conv2"), get_recipe("cifar100-resnet18-1w1a")
    return shallow.with_settings(options.settings), deep.with_settings(options.settings)


def measure(out: Path, options: Options) -> Result:
    """Train the three methods twice: shallow for the weights, with binary inputs for the activations."""
    shallow, deep = _recipes(options)
    parts = options.grid.get("parts", PARTS)
    found: Result = {"seeds": [shallow.train.seed], "weights": {}, "activations": {}}
    recipes = {
        f"weights/{method}": shallow.with_settings({"model.weight_quantizer": method})
        for method in (WEIGHTS if "weights" in parts else ())
    }
    if "activations" in parts:
        cases = fig7.method_cases("ResNet-18 1/1", deep, options)
        store = RunStore(out.parent / out.name.replace("fig1", "fig7") / "runs")
        for method, case in zip(ACTIVATIONS, cases, strict=True):
            trained: list[Result] = []
            with suppress(CheckpointError):  # of other settings, or without weights
                runs = [run for run in case.runs(range(fig7.SEEDS)) if store.find(run)]
                trained = [_activations(options, run.recipe, load_run(store.dir(run)).model) for run in runs]
            if trained:
                found["activations"][method] = {**trained[0], "means": [_mean(each) for each in trained]}
            else:
                recipes[f"activations/{method}"] = case.recipe
    for name, counts in run_watched(out, recipes, options, partial(_watch, options)).items():
        part, _, method = name.partition("/")
        found[part][method] = counts | ({"means": [_mean(counts)]} if part == "activations" else {})
    return found


def _watch(options: Options, name: str) -> Watch:
    if name.startswith("activations"):
        return Watch([], lambda finished: _activations(options, finished.recipe, finished.model))
    entropy = EntropyWatcher()

    def read(finished: TrainedRun) -> Result:
        layers = binary_layers(finished.model).items()
        return {
            **entropy.as_dict(),
            "shapes": {name: list(as_filters(layer.symbols()).shape) for name, layer in layers},
        }

    return Watch([EachEpoch(entropy)], read)


def _activations(options: Options, recipe: Recipe, model: nn.Module) -> Result:
    """Count over the whole test set how often each input channel of each binary layer is +1."""
    device = pick_device(options.device)
    test = make_loader(recipe.data, "test", root=options.root, device=device, seed=0, place=ProcessRank())
    bits = activation_bits(model.to(device), test)
    return {"layers": {name: {"positive": each.positive.tolist(), "total": each.total} for name, each in bits.items()}}


def attainable(shapes: dict[str, list[int]]) -> float:
    """Return the maximum mean entropy of filters of these shapes."""
    filters = sum(count for count, _ in shapes.values())
    return sum(count * attainable_entropy(connections) for count, connections in shapes.values()) / filters


def channel_entropies(layers: dict[str, Result]) -> list[list[float]]:
    """Return the entropy of each channel in bits, layer by layer."""
    shares = [[count / layer["total"] for count in layer["positive"]] for layer in layers.values()]
    return [[-sum(p * math.log2(p) for p in (share, 1 - share) if p > 0) for share in layer] for layer in shares]


def claims(result: Result) -> list[Claim]:
    """Only bi-half's weights stay at the maximum, and its activations have the highest entropy."""
    rows = []
    for method, found in result["weights"].items():
        most = attainable(found["shapes"])
        short = max(most - value for value in found["network"])
        exact = method == "bihalf"
        claim = f"{method_name(method)}: weight entropy, furthest below the maximum at any epoch"
        agrees, words = (abs(short) < ROUNDING) == exact, f"{short:.2e} bits below {most:.6f}"
        row = counted(claim, "0" if exact else "above 0", words, agrees)
        rows.append(replace(row, decided_by=f"its size: 0 within {ROUNDING:g} bits"))
    samples = {method: Sample.of(found["means"]) for method, found in result["activations"].items()}
    for method in ACTIVATIONS[:-1] if samples else ():
        ours, other = samples["bihalf"], samples[method]
        words = f"{signed(ours.mean - other.mean, 4)} bits ({ours.mean:.4f} against {other.mean:.4f})"
        claim = f"activation entropy of bi-half above that of {method_name(method)}"
        row = undecided(claim, "yes", words, n=min(ours.n, other.n))
        rows.append(decide_by_welch(row, ours, other))
    return rows


def _mean(found: Result) -> float:
    return statistics.fmean(value for layer in channel_entropies(found["layers"]) for value in layer)


def draw(result: Result) -> Figure:
    """Plot the weights over epochs (left) and the channels of each layer as boxes (right), where measured."""
    widths = [share for name, share in zip(PARTS, (2, 3), strict=True) if result[name]]
    figure = new_figure(2.6 * sum(widths), 5.2, title=heading(result))
    grid = figure.add_gridspec(1, len(widths), width_ratios=widths)
    if result["weights"]:
        _draw_weights(figure, grid[0], result)
    if result["activations"]:
        _draw_activations(figure, grid[-1], result)
    return figure


def _draw_weights(figure: Figure, place: SubplotSpec, result: Result) -> None:
    axes = panel(figure, place, x="epoch", y="entropy of the weights, bits", title="(a) mean over all filters")
    for method, found in result["weights"].items():
        axes.plot(found["steps"], found["network"], color=method_color(method), label=method_name(method), marker=".")
    axes.axhline(attainable(found["shapes"]), color="black", linestyle=":", linewidth=1, label="attainable")
    axes.locator_params(axis="x", integer=True)
    legend(axes, **_BELOW, ncols=2)


def _draw_activations(figure: Figure, place: SubplotSpec, result: Result) -> None:
    axes = panel(figure, place, x="binary layer", y="entropy of a channel, bits", title="(b) activations, by channel")
    width = 0.8 / len(result["activations"])
    for shift, (method, found) in enumerate(result["activations"].items(), start=-1):
        layers = channel_entropies(found["layers"])
        at = [number + shift * width for number in range(1, len(layers) + 1)]
        boxes = axes.boxplot(layers, positions=at, widths=0.8 * width, patch_artist=True, showfliers=False)
        for part in ("boxes", "medians", "whiskers", "caps"):
            for line in boxes[part]:
                line.set(color="white" if part == "medians" else method_color(method), linewidth=1)
        label = f"{method_name(method)}, mean {_mean(found):.3f}"
        axes.plot([], [], color=method_color(method), linewidth=5, label=label)
    axes.set_xticks(range(1, len(layers) + 1), map(str, range(1, len(layers) + 1)))
    legend(axes, **_BELOW, ncols=3)


ITEM = Item(
    name="fig1",
    title="Entropy of binary weights and activations",
    needs="cifar10 and cifar100",
    measure=measure,
    draw=draw,
    claims=claims,
    grid={"parts": PARTS},
    watched=True,
    decides=("model.weight_quantizer", "model.input_quantizer"),
)
