"""``equalbits demo``: sign, IR-Net and bi-half trained alike in two minutes, their flips and entropy side by side.

The net is the paper's Conv2, narrower and on the embedded Fashion-MNIST: the numbers are not the paper's, the effect
is. Every method has the same seed, initial weights, batches and settings. The bi-half net is also packed, and exported
as a web page that classifies pictures.
"""

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from equalbits._claim import signed
from equalbits._extras import require_matplotlib
from equalbits._files import write_atomically
from equalbits._plotting import DOWN, GAP, UP, legend, method_color, new_figure, panel, save_figure
from equalbits.analysis import EntropyWatcher, FlipWatcher, audit
from equalbits.data import load_dataset, normalise
from equalbits.functional import attainable_entropy, positive_count
from equalbits.paper.item import Options
from equalbits.paper.item_runs import Watch, run_watched
from equalbits.recipes import Recipe, TrainedRun, check_kind, get_recipe, lock_dir, pack_run, pick_device
from equalbits.runtime import web_page
from equalbits.training import Reporter

METHODS = {"sign": "Sign", "irnet-stable": "IR-Net", "bihalf": "Bi-half"}
#: The web page of the packed net, which the report links.
CLASSIFIER = "classifier.html"
#: The filter whose flips are plotted: the first of the second convolution, as in figure 2.
FILTER = ("conv2", 0)


@dataclass(frozen=True)
class DemoCounts:
    """Counts of one method, as stored in its run.json."""

    method: str
    correct: int
    total: int
    to_positive: int
    to_negative: int
    filters: int
    exact_filters: int
    entropy: float
    attainable: float
    steps: list[int]
    entropies: list[float]
    filter_to_positive: list[int]
    filter_to_negative: list[int]
    seconds: float

    @property
    def accuracy(self) -> float:
        """Test accuracy after the last epoch in per cent."""
        return 100 * self.correct / self.total

    @property
    def filter_difference(self) -> list[int]:
        """Flips to +1 minus flips to −1 of the plotted filter, accumulated over the steps."""
        pairs = zip(self.filter_to_positive, self.filter_to_negative, strict=True)
        return list(accumulate(up - down for up, down in pairs))


def demo_recipe(*, epochs: int = 4) -> Recipe:
    """Return the demo's recipe; the method is set for each run."""
    settings = {"epochs": epochs, "model.options.batch_norm": False, "speed": "plain"}
    return get_recipe("fashion-conv2").with_settings(settings)


def run_demo(
    out: Path,
    *,
    recipe: Recipe | None = None,
    device: str = "cpu",
    reporters_for: Callable[[str], Sequence[Reporter]] = lambda title: [],
) -> list[DemoCounts]:
    """Train each method into a folder of ``out``, draw demo.png and demo.svg, and write report.html.

    Methods that an earlier call measured are not trained again.
    """
    require_matplotlib()
    from jinja2 import Environment, PackageLoader

    check_kind(out, "demo")
    options = Options(device=pick_device(device), reporters_for=lambda method: reporters_for(METHODS[method]))
    plain = recipe or demo_recipe()
    recipes = {method: plain.with_settings({"model.weight_quantizer": method}) for method in METHODS}
    measured = []
    with lock_dir(out):
        for method, counts in run_watched(out, recipes, options, lambda method: _watch()).items():
            measured.append(DemoCounts(method, **{name: counts[name] for name in counts if name != "epochs"}))
        draw_demo(measured, out)
        template = Environment(loader=PackageLoader("equalbits.paper"), autoescape=True).get_template("demo.html")
        picture = b64encode((out / "demo.png").read_bytes()).decode()
        page = template.render(
            rows=demo_table(measured), summary=list(demo_summary(measured)), picture=picture, classifier=CLASSIFIER
        )
        write_atomically(out / "report.html", page.encode())
    return measured


def _watch() -> Watch:
    flips, entropy = FlipWatcher(filters=dict([FILTER])), EntropyWatcher()

    def read(finished: TrainedRun) -> dict[str, Any]:
        layers, epochs = audit(finished.model).layers, finished.history.epochs
        filters, last = sum(layer.filters for layer in layers), epochs[-1].test
        halves = [layer.positive == positive_count(layer.connections, 0.5) for layer in layers]
        assert last is not None  # the last epoch is always scored
        return {
            "correct": last.correct,
            "total": last.total,
            "to_positive": sum(sum(series.to_positive) for series in flips.layers.values()),
            "to_negative": sum(sum(series.to_negative) for series in flips.layers.values()),
            "filters": filters,
            "exact_filters": sum(int(half.sum()) for half in halves),
            "entropy": entropy.network[-1],
            "attainable": sum(layer.filters * attainable_entropy(layer.connections) for layer in layers) / filters,
            "steps": entropy.steps,
            "entropies": entropy.network,
            "filter_to_positive": flips.filters[FILTER[0]].to_positive,
            "filter_to_negative": flips.filters[FILTER[0]].to_negative,
            "seconds": sum(epoch.seconds for epoch in epochs),
        }

    return Watch([flips, entropy], read)


def pack_demo(out: Path) -> str:
    """Pack the bi-half net of the demo, compare both on every test image, and return a sentence on it.

    Write ``classifier.html`` beside it: the packed net as a web page, with test images to begin with.
    """
    path, test = out / "bihalf.ebits", load_dataset("fashion", split="test")
    packed, model, _ = pack_run(out / "bihalf" / "seed0")
    packed.save(path)
    page = web_page(packed, title="The bi-half net of the demo", examples=test.images[:10].numpy())
    write_atomically(path.with_name(CLASSIFIER), page.encode())
    predicted = packed(test.images.numpy()).argmax(axis=1)  # the file normalizes the bytes itself
    with torch.no_grad():
        images = normalise(test.images, torch.tensor(test.mean), torch.tensor(test.std))
        expected = model(images).argmax(dim=1).numpy()
    size, real = path.stat().st_size, 4 * sum(parameter.numel() for parameter in model.parameters())
    return (
        f"Packed: {path} holds the bi-half net in {size:,} bytes, {real / size:.1f} times fewer than its weights in "
        f"float32; run without torch it gives the model's class for {int((predicted == expected).sum()):,} of "
        f"{len(expected):,} test images."
    )


def demo_table(measured: list[DemoCounts]) -> list[dict[str, str]]:
    """Return a row per method, by the names of the columns."""
    return [
        {
            "method": METHODS[each.method],
            "accuracy": f"{each.accuracy:.2f} %",
            "entropy": f"{each.entropy:.6f}",
            "attainable": f"{each.entropy / each.attainable:.4%}",
            "flips to +1": f"{each.to_positive:,}",
            "flips to −1": f"{each.to_negative:,}",
            "exactly half": f"{each.exact_filters:,} of {each.filters:,}",
        }
        for each in measured
    ]


def demo_summary(measured: list[DemoCounts]) -> Iterator[str]:
    """Yield sentences that say what the counts show."""
    by_method = {each.method: each for each in measured}
    half = by_method["bihalf"]
    balanced = half.exact_filters == half.filters and half.to_positive == half.to_negative
    yield (
        f"Bi-half holds exactly half in {half.exact_filters:,} of {half.filters:,} filters and flipped "
        f"{half.to_positive:,} weights up and {half.to_negative:,} down: {'balanced' if balanced else 'NOT balanced'}."
    )
    for method in ("sign", "irnet-stable"):
        other = by_method[method]
        yield (
            f"{METHODS[method]} holds it in {other.exact_filters:,}; its flips differ by "
            f"{abs(other.to_positive - other.to_negative):,}."
        )
    best = max(measured, key=lambda each: each.correct)
    gap = half.accuracy - by_method["sign"].accuracy
    share = half.correct / half.total
    margin = 200 * (2 * share * (1 - share) / half.total) ** 0.5  # two standard errors of a difference, in points
    yield (
        f"Best here: {METHODS[best.method]} with {best.accuracy:.2f} %; bi-half against sign: {signed(gap)} points. "
        f"One seed and {half.total:,} test images: differences below about {margin:.1f} points are not significant."
    )


def draw_demo(measured: list[DemoCounts], out: Path) -> None:
    """Draw the flips of one filter (top) and the entropy of all filters (bottom) as demo.png and demo.svg."""
    figure = new_figure(11, 7)
    grid = figure.add_gridspec(2, 3, height_ratios=(1, 1))
    shared = None
    for column, each in enumerate(measured):
        end = each.filter_difference[-1]
        title = f"{METHODS[each.method]}: difference ends at {signed(end, 0) if end else 0}"
        y = "" if column else f"flips so far, filter {FILTER[1]} of {FILTER[0]}"
        axes = panel(figure, grid[0, column], x="step", y=y, title=title, sharey=shared)
        shared = shared or axes
        steps = range(1, len(each.filter_to_positive) + 1)
        axes.plot(steps, list(accumulate(each.filter_to_positive)), color=UP, label="flips to +1")
        axes.plot(steps, list(accumulate(each.filter_to_negative)), color=DOWN, label="flips to −1", linestyle="--")
        axes.plot(steps, each.filter_difference, color=GAP, label="difference")
    legend(axes, loc="lower right")
    axes = panel(figure, grid[1, :], x="step", y="entropy of the weights, bits\n(mean over all filters)")
    for each in measured:
        color = method_color(each.method)
        axes.plot(each.steps, each.entropies, color=color, label=METHODS[each.method], linewidth=1.6)
    axes.axhline(measured[0].attainable, color="black", linestyle=":", linewidth=1, label="attainable")
    legend(axes, loc="center right")
    figure.suptitle("Bits flip evenly and entropy stays at its maximum only where the share of +1 is exact")
    save_figure(figure, out, "demo")
