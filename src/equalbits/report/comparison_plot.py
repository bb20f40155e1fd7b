"""Plot of a comparison of methods: accuracy, entropy, flips, exact filters, time and size."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from equalbits._plotting import Axes, new_figure, save_figure
from equalbits.nn import list_quantizers, quantizer_settings
from equalbits.recipes import Comparison, MethodResult
from equalbits.report.comparison_table import ranked

_EXACT, _OTHER = "#1f3b73", "#9aa0a8"  # methods with and without an exact share of +1
_UP, _DOWN = "#d98032", "#f0c596"
_WIDTH, _FONT = 9.4, 10  # as wide as a page, which shows it without scaling


def draw_comparison(comparison: Comparison, out: Path) -> None:
    """Write compare.png and compare.svg into a folder; nothing where every method failed."""
    rows = [row for row in reversed(ranked(comparison)) if row.mean is not None]
    if not rows:
        return
    figure = new_figure(_WIDTH, 3.2 + 0.52 * len(rows))
    from matplotlib import rc_context

    with rc_context({"font.size": _FONT}):
        (first, second, third), (fourth, fifth, sixth) = figure.subplots(2, 3, sharey=True, width_ratios=(1.5, 1, 1.3))
        _accuracy(first, rows)
        _entropy(second, rows)
        _flips(third, rows)
        shares = [100 * statistics.fmean(row.exact_filters) / row.filters if row.filters else None for row in rows]
        _bars(fourth, shares, rows, "filters exactly half, %")
        _bars(fifth, [statistics.fmean(row.seconds) for row in rows], rows, "seconds a net")
        _bars(sixth, [row.packed_bytes / 1000 for row in rows], rows, "packed size, kB")
        first.set_ylim(-0.7, len(rows) - 0.3)
        first.set_yticks(range(len(rows)), [row.method for row in rows])
        facts = comparison.facts
        figure.suptitle(
            f"{facts['recipe']}: the same net, data, start and batches (n = {facts['n']})\n"
            "navy: the method promises every filter its share of +1; grey: it does not"
        )
        save_figure(figure, out, "compare", dpi=140)


def _colors(rows: Sequence[MethodResult]) -> list[str]:
    return [_OTHER if row.p_pos is None else _EXACT for row in rows]


def _accuracy(axes: Axes, rows: Sequence[MethodResult]) -> None:
    for place, (row, color) in enumerate(zip(rows, _colors(rows), strict=True)):
        axes.errorbar(row.mean, place + 0.12, xerr=row.std, fmt="o", color=color, capsize=3, markersize=5)
        below = [place - 0.22] * len(row.correct)  # the error bar would hide them
        axes.plot(row.accuracies, below, "o", color="black", markerfacecolor="none", markersize=4, markeredgewidth=0.8)
    axes.set_xlabel("test accuracy, % (last epoch:\nmean ± std, a ring for each seed)")
    axes.grid(alpha=0.25)


def _entropy(axes: Axes, rows: Sequence[MethodResult]) -> None:
    places = [place for place, row in enumerate(rows) if row.entropy]
    means = [statistics.fmean(rows[place].entropy) for place in places]
    axes.scatter(means, places, color=[_colors(rows)[place] for place in places], s=28, zorder=3)
    for place in places:
        maximum = attainable_entropy(rows[place])
        if maximum is not None:
            axes.vlines(maximum, place - 0.36, place + 0.36, color="black", linewidth=1)
    axes.set_xlabel("weight entropy, bits\n(black: attainable)")
    axes.locator_params(axis="x", nbins=3)  # more would overlap
    axes.grid(alpha=0.25)


def attainable_entropy(row: MethodResult) -> float | None:
    """Return the maximum entropy for the filters' numbers of weights; None for methods that prune.

    Pruning leaves each filter fewer weights than the recorded maximum counts.
    """
    name = row.method.partition(":")[0]
    prunes = name in list_quantizers() and "sparsity" in quantizer_settings(name)
    return None if prunes else row.attainable_entropy


def _flips(axes: Axes, rows: Sequence[MethodResult]) -> None:
    for place, row in enumerate(rows):
        if row.entropy:
            axes.barh(place, statistics.fmean(row.to_positive) / 1000, color=_UP, height=0.6)
            axes.barh(place, -statistics.fmean(row.to_negative) / 1000, color=_DOWN, height=0.6)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel("flips between epochs, thousands\n(left: to −1, right: to +1)")
    axes.xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    axes.grid(alpha=0.25, axis="x")


def _bars(axes: Axes, values: Sequence[float | None], rows: Sequence[MethodResult], label: str) -> None:
    bars = axes.barh(range(len(rows)), [value or 0.0 for value in values], color=_colors(rows), height=0.6)
    labels = ["–" if value is None else f"{value:.0f}" if value >= 10 else f"{value:.1f}" for value in values]
    axes.bar_label(bars, labels, padding=2, fontsize=_FONT - 1)
    axes.margins(x=0.24)
    axes.set_xlabel(label)
    axes.grid(alpha=0.25, axis="x")
