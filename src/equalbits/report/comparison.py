"""A comparison of methods as a table, in plain text and Markdown, and as a plot."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from equalbits._plotting import Axes, new_figure, save_figure
from equalbits._statistics import student_t
from equalbits._text import format_table
from equalbits.nn import list_quantizers, quantizer_settings
from equalbits.recipes import HOW, Comparison, MethodResult, list_methods
from equalbits.report.find_outputs import Facts

_OTHER_SPEED_MARK = "†"
ALT_TEXT = "accuracy, entropy, flips, exact filters, seconds and packed size of every method"
HEADER = (
    *("method", "test accuracy", "n", "entropy, bits", "flips to +1", "flips to −1"),
    *("filters exactly half", "seconds", "packed bytes", "lr"),
)


def ranked(comparison: Comparison) -> list[MethodResult]:
    """Return the methods, best mean accuracy first, failed ones last."""
    return sorted(comparison.rows, key=lambda row: (row.mean is None, -(row.mean or 0), row.method))


def text_table(comparison: Comparison) -> str:
    """Return the table as plain text, with a line for methods trained at another speed."""
    return "\n".join([format_table(HEADER, table_rows(comparison)), *_other_speeds(comparison)])


def _other_speeds(comparison: Comparison) -> list[str]:
    """Return a line for each other ``speed`` setting: its seconds are not comparable."""
    usual, methods = _usual_speed(comparison), dict[str, list[str]]()
    for row in ranked(comparison):
        if row.mean is not None and row.speed != usual:
            methods.setdefault(row.speed, []).append(row.method)
    return [
        f"{_OTHER_SPEED_MARK} trained with speed={speed}, the others with speed={usual}: "
        f"the seconds of {', '.join(names)} are not comparable."
        for speed, names in methods.items()
    ]


def _usual_speed(comparison: Comparison) -> str:
    """Return the ``speed`` setting of most methods."""
    return statistics.mode([row.speed for row in comparison.rows])


def table_rows(comparison: Comparison) -> list[list[str]]:
    """Return a row of text for each method; seconds are marked where its speed is not the usual one."""
    usual = _usual_speed(comparison)
    return [_cells(row, _OTHER_SPEED_MARK if row.speed != usual else "") for row in ranked(comparison)]


def _cells(row: MethodResult, mark: str) -> list[str]:
    rate = f"{row.lr:g}" if row.gamma is None else f"{row.lr:g}, gamma {row.gamma:g}"
    if row.mean is None:
        return [row.method, "failed", "0", *("–",) * 6, rate]
    failed = f" ({len(row.failed)} failed)" if row.failed else ""
    deviation = "" if row.std is None else f" ± {row.std:.2f}"
    bits = ["–"] * 4
    if row.entropy:
        bits = [
            f"{statistics.fmean(row.entropy):.5f}",
            f"{statistics.fmean(row.to_positive):,.0f}",
            f"{statistics.fmean(row.to_negative):,.0f}",
            f"{statistics.fmean(row.exact_filters):,.0f} of {row.filters:,}",
        ]
    accuracy, seconds = f"{row.mean:.2f}{deviation} %{failed}", f"{statistics.fmean(row.seconds):.1f}{mark}"
    return [row.method, accuracy, str(len(row.correct)), *bits, seconds, f"{row.packed_bytes:,}", rate]


def markdown(comparison: Comparison) -> str:
    """Return the table, the settings behind it, and the definition of each number."""
    lines = [
        f"# Methods on {comparison.facts['recipe']}",
        "",
        f"{_setup(comparison.facts)} Every method has the same initial weights and batches. "
        f"{describe_precision(comparison)}",
        "",
        f"| {' | '.join(HEADER)} |",
        f"|---|{'---:|' * (len(HEADER) - 1)}",
        *(f"| {' | '.join(row)} |" for row in table_rows(comparison)),
        "",
        *(line for note in remarks(comparison) for line in (note, "")),
        "Entropy, flips, filters and seconds are means over the seeds; compare.json holds the counts of each seed.",
        "",
        *(f"- {name.replace('_', ' ')}: {words}." for name, words in HOW.items()),
        *(f"- {line}" for line in failures(comparison)),
    ]
    return "\n".join(lines) + "\n"


def comparison_page(path: Path) -> str:
    """Return docs/comparison.md, made from a kept compare.json such as results/fashion-compare.json."""
    comparison = Comparison.from_dict(json.loads(path.read_text()))
    title, _, rest = markdown(comparison).partition("\n")
    seeds = ",".join(map(str, comparison.facts["seeds"]))
    command = f"equalbits compare {comparison.facts['recipe']} --seeds {seeds}"
    origin = f"Measured by `{command}` with the methods below; generated from `results/{path.name}`."
    return f"{title}\n\n{origin}\n{rest}\n![{ALT_TEXT}](comparison.png)\n"


def failures(comparison: Comparison) -> list[str]:
    """Return a line for each seed that failed."""
    return [f"{row.method}, seed {seed}: {why}" for row in comparison.rows for seed, why in row.failed.items()]


def remarks(comparison: Comparison) -> list[str]:
    """Return the lines below the table: methods at another speed, and missing methods where nearly all are there."""
    known, here = list_methods(), {row.method for row in comparison.rows}
    missing = [method for method in known if method not in here]
    line = f"{len(known) - len(missing)} of {len(known)} methods; not among them: {', '.join(missing)}."
    return _other_speeds(comparison) + ([line] if 0 < len(missing) < len(known) / 4 else [])


def _setup(facts: Facts) -> str:
    model, data, optimizer = (facts["settings"][name] for name in ("model", "data", "optimizer"))
    options = ", ".join(f"{name}={value}" for name, value in model["options"].items())
    versions = "; ".join(", ".join(f"{name} {number}" for name, number in each.items()) for each in facts["versions"])
    return (
        f"{model['name']}{f' ({options})' if options else ''} on {data['name']}, {facts['settings']['epochs']} epochs, "
        f"batch {data['batch_size']}, weight decay {optimizer['weight_decay']:g}; "
        f"seeds {', '.join(map(str, facts['seeds']))} (n = {facts['n']}); {', '.join(facts['device'])}; {versions}."
    )


def describe_precision(comparison: Comparison) -> str:
    """Return which differences in accuracy are significant, and what was tuned."""
    scored = [row for row in ranked(comparison) if row.mean is not None]
    rates = comparison.facts["tuned_over"]
    flipping = " and ".join(row.method for row in comparison.rows if row.gamma is not None)
    gammas = f"{flipping} had gamma scaled by the same factors instead; " if flipping else ""
    tuned = (
        f"Each method has the learning rate, of {', '.join(f'{rate:g}' for rate in rates)}, with the best accuracy on "
        f"a held-out fifth of the training images; {gammas}nothing else was tuned."
        if rates
        else "No method was tuned for this net: the ranking holds for these settings, not for each method at its best."
    )
    if not scored:
        return tuned
    share, total = (scored[0].mean or 0) / 100, scored[0].total
    points = 200 * (2 * share * (1 - share) / total) ** 0.5  # two standard errors of the difference of two such scores
    deviation, freedom, n = _pooled_deviation(scored)
    chance = student_t(freedom) * deviation * (2 / n) ** 0.5
    seeds = f", seeds with a deviation of ± {deviation:.1f} points" if chance > points else ""
    limit = f"differences below about {max(points, chance):.1f} points are not significant."
    return f"{total:,} test images{seeds}: {limit} {tuned}"


def _pooled_deviation(rows: Sequence[MethodResult]) -> tuple[float, int, int]:
    """Return the pooled sample deviation over seeds, its degrees of freedom, and the fewest seeds of a method.

    The deviation is 0 where each method has one seed.
    """
    several = [row for row in rows if row.std is not None]
    freedom = sum(len(row.correct) - 1 for row in several)
    squares = sum((row.std or 0) ** 2 * (len(row.correct) - 1) for row in several)
    return (squares / max(freedom, 1)) ** 0.5, freedom, min((len(row.correct) for row in several), default=1)


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
            "blue: the method promises every filter its share of +1; grey: it does not"
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
    axes.set_xlabel("weight entropy, bits\n(line: attainable)")
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
