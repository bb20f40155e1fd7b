"""The demo's table, words, picture and page, drawn from what was measured."""

import base64
import html
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from equalbits._files import write_atomically
from equalbits._plotting import save_figure
from equalbits.paper.claims import signed
from equalbits.paper.demo_measure import FILTER, METHODS, Measured

UP, DOWN, GAP = "#1f3b73", "#29a7c9", "#d1495b"
COLOURS = {"sign": "#8a8a8a", "irnet-stable": "#e08e2b", "bihalf": "#1f3b73"}


def table(measured: list[Measured]) -> list[dict[str, Any]]:
    """The rows a person reads, counts and all."""
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


def verdict(measured: list[Measured]) -> Iterator[str]:
    """What the numbers say, whatever they say."""
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
    yield (
        f"Best here: {METHODS[best.method]} with {best.accuracy:.2f} %; bi-half against sign: {signed(gap)} points. "
        f"One seed and {half.total:,} test images: differences below about {_margin(half):.1f} points say nothing."
    )


def _margin(each: Measured) -> float:
    """Two standard errors of the difference of two such scores, in points."""
    share = each.correct / each.total
    return float(200 * (2 * share * (1 - share) / each.total) ** 0.5)


def draw(measured: list[Measured], out: Path) -> None:
    """Draw flips of one filter (top) and entropy of all filters (bottom) as demo.png and demo.svg."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    grid = figure.add_gridspec(2, 3, height_ratios=(1, 1))
    shared = None
    for column, each in enumerate(measured):
        axes = figure.add_subplot(grid[0, column], sharey=shared)
        shared = shared or axes
        steps = range(1, len(each.filter_to_positive) + 1)
        axes.plot(steps, list(accumulate(each.filter_to_positive)), color=UP, label="flips to +1")
        axes.plot(steps, list(accumulate(each.filter_to_negative)), color=DOWN, label="flips to −1", linestyle="--")
        axes.plot(steps, each.filter_difference, color=GAP, label="difference")
        axes.set_title(f"{METHODS[each.method]}: difference ends at {_signed(each.filter_difference[-1])}")
        axes.set_xlabel("step")
        axes.grid(alpha=0.25)
        if column == 0:
            axes.set_ylabel(f"flips so far, filter {FILTER[1]} of {FILTER[0]}")
        if column == len(measured) - 1:
            axes.legend(frameon=False, loc="lower right")
    axes = figure.add_subplot(grid[1, :])
    for each in measured:
        axes.plot(each.steps, each.entropies, color=COLOURS[each.method], label=METHODS[each.method], linewidth=1.6)
    axes.axhline(measured[0].attainable, color="black", linestyle=":", linewidth=1, label="attainable")
    axes.set_xlabel("step")
    axes.set_ylabel("entropy of the weights, bits\n(mean over all filters)")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="center right")
    figure.suptitle("Bits flip evenly and entropy stays at its maximum only where the share of +1 is exact")
    save_figure(figure, out, "demo")


def _signed(number: int) -> str:
    return f"{number:+d}".replace("-", "−") if number else "0"


def write_report(measured: list[Measured], out: Path) -> None:
    """Write report.html: one page that needs nothing beside it."""
    rows = table(measured)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(value))}</td>" for value in row.values()) + "</tr>" for row in rows
    )
    words = "".join(f"<li>{html.escape(line)}</li>" for line in verdict(measured))
    picture = base64.b64encode((out / "demo.png").read_bytes()).decode()
    page = _PAGE.format(head=head, body=body, words=words, picture=picture)
    write_atomically(out / "report.html", page.encode())


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>equalbits demo</title>
<style>
:root {{ color-scheme: light dark; --line: #8884; }}
body {{ font: 16px/1.55 system-ui, sans-serif; max-width: 68rem; margin: 2.5rem auto; padding: 0 1rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .35rem .8rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; }}
img {{ width: 100%; background: white; border-radius: 6px; }}
</style>
<h1>Equal bits, in two minutes</h1>
<p>A narrow Conv2 without batch norm, all layers binary, trained on 10,000 images of Fashion-MNIST by three methods that
differ in nothing but how a real weight becomes +1 or −1.</p>
<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>
<ul>{words}</ul>
<p><img alt="Top: flips of one filter for each method. Bottom: entropy of the weights over the steps."
src="data:image/png;base64,{picture}"></p>
<p>Counts are in each method's measured.json; recipe.toml, history.jsonl and run.json beside it say what made them.</p>
</html>
"""
