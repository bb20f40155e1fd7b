"""Table, summary, plot and HTML page of the demo, made from its counts."""

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from equalbits._files import write_atomically
from equalbits._plotting import DOWN, GAP, UP, method_color, new_figure, save_figure
from equalbits.paper.claims import signed

METHODS = {"sign": "Sign", "irnet-stable": "IR-Net", "bihalf": "Bi-half"}
#: The filter whose flips are plotted: the first of the second convolution, as in figure 2.
FILTER = ("conv2", 0)


@dataclass(frozen=True)
class DemoCounts:
    """Counts of one method, as stored in measured.json."""

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


def demo_table(measured: list[DemoCounts]) -> list[dict[str, str]]:
    """Return a row per method, by the names of the columns."""
    return [
        {
            "method": METHODS[each.method],
            "test accuracy": f"{each.accuracy:.2f} % ({each.correct:,} of {each.total:,})",
            "weight entropy": f"{each.entropy:.6f} bits",
            "of attainable": f"{each.entropy / each.attainable:.4%}",
            "flips to +1": f"{each.to_positive:,}",
            "flips to −1": f"{each.to_negative:,}",
            "filters exactly half": f"{each.exact_filters:,} of {each.filters:,}",
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
        axes = figure.add_subplot(grid[0, column], sharey=shared)
        shared = shared or axes
        steps = range(1, len(each.filter_to_positive) + 1)
        axes.plot(steps, list(accumulate(each.filter_to_positive)), color=UP, label="flips to +1")
        axes.plot(steps, list(accumulate(each.filter_to_negative)), color=DOWN, label="flips to −1", linestyle="--")
        axes.plot(steps, each.filter_difference, color=GAP, label="difference")
        end = each.filter_difference[-1]
        axes.set_title(f"{METHODS[each.method]}: difference ends at {signed(end, 0) if end else 0}")
        axes.set_xlabel("step")
        axes.grid(alpha=0.25)
        if column == 0:
            axes.set_ylabel(f"flips so far, filter {FILTER[1]} of {FILTER[0]}")
        if column == len(measured) - 1:
            axes.legend(frameon=False, loc="lower right")
    axes = figure.add_subplot(grid[1, :])
    for each in measured:
        color = method_color(each.method)
        axes.plot(each.steps, each.entropies, color=color, label=METHODS[each.method], linewidth=1.6)
    axes.axhline(measured[0].attainable, color="black", linestyle=":", linewidth=1, label="attainable")
    axes.set_xlabel("step")
    axes.set_ylabel("entropy of the weights, bits\n(mean over all filters)")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="center right")
    figure.suptitle("Bits flip evenly and entropy stays at its maximum only where the share of +1 is exact")
    save_figure(figure, out, "demo")


def write_demo_page(measured: list[DemoCounts], out: Path) -> None:
    """Write report.html, a self-contained page."""
    from jinja2 import Environment, PackageLoader

    template = Environment(loader=PackageLoader("equalbits.paper.demo"), autoescape=True).get_template("demo.html")
    picture = b64encode((out / "demo.png").read_bytes()).decode()
    page = template.render(rows=demo_table(measured), summary=list(demo_summary(measured)), picture=picture)
    write_atomically(out / "report.html", page.encode())
