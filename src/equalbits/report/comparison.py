"""A comparison's table and picture, drawn from its counts."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equalbits._extras import install_hint
from equalbits._files import write_atomically
from equalbits._text import format_table
from equalbits.nn import list_quantizers, quantizer_settings
from equalbits.paper.claims import student
from equalbits._plotting import save
from equalbits.recipes import HOW, Compared, Comparison, list_methods

#: Navy and grey say whether a share of +1 is promised; flips have colours of their own.
EXACT, OTHER, UP, DOWN = "#1f3b73", "#9aa0a8", "#d98032", "#f0c596"
#: Sizes for a picture that is as wide as a page: it is not made smaller there.
_WIDTH, _FONT = 9.4, 10
#: Behind seconds that do not stand against the others.
_MARK = "†"
HEADER = (
    *("method", "test accuracy", "n", "entropy, bits", "flips to +1", "flips to −1"),
    *("filters exactly half", "seconds", "packed bytes", "lr"),
)


def ranked(comparison: Comparison) -> list[Compared]:
    """The methods, best mean first; those that failed last."""
    return sorted(comparison.rows, key=lambda row: (row.mean is None, -(row.mean or 0), row.method))


def table(comparison: Comparison) -> str:
    """The table as plain text, and below it a line for those that were trained at another speed."""
    usual = usual_speed(comparison)
    lines = [format_table(HEADER, [cells(row, usual=usual) for row in ranked(comparison)])]
    return "\n".join([*lines, *other_speeds(comparison)])


def usual_speed(comparison: Comparison) -> str:
    """The ``speed`` that most methods were trained with."""
    return statistics.mode([row.speed for row in comparison.rows])


def other_speeds(comparison: Comparison) -> list[str]:
    """A line for each other ``speed``: seconds at one do not stand against seconds at another."""
    usual, methods = usual_speed(comparison), dict[str, list[str]]()
    for row in ranked(comparison):
        if row.mean is not None and row.speed != usual:
            methods.setdefault(row.speed, []).append(row.method)
    return [
        f"{_MARK} trained with speed={speed}, the others with speed={usual}: "
        f"seconds of {', '.join(names)} do not stand against theirs."
        for speed, names in methods.items()
    ]


def cells(row: Compared, *, usual: str | None = None) -> list[str]:
    """A method's row as text; its seconds are marked where it was trained at another speed than the usual one."""
    if row.mean is None:
        return [row.method, "failed", "0", *("–",) * 6, _rate(row)]
    lost = f" ({len(row.failed)} failed)" if row.failed else ""
    spread = "" if row.std is None else f" ± {row.std:.2f}"
    bits = ["–"] * 4
    if row.entropy:
        bits = [
            f"{statistics.fmean(row.entropy):.5f}",
            f"{statistics.fmean(row.to_positive):,.0f}",
            f"{statistics.fmean(row.to_negative):,.0f}",
            f"{statistics.fmean(row.exact_filters):,.0f} of {row.filters:,}",
        ]
    seconds = f"{statistics.fmean(row.seconds):.1f}{_MARK if usual not in (None, row.speed) else ''}"
    return [
        row.method,
        f"{row.mean:.2f}{spread} %{lost}",
        str(len(row.correct)),
        *bits,
        seconds,
        f"{row.packed_bytes:,}",
        _rate(row),
    ]


def _rate(row: Compared) -> str:
    return f"{row.lr:g}" if row.gamma is None else f"{row.lr:g}, gamma {row.gamma:g}"


def write_markdown(comparison: Comparison, out: Path) -> None:
    """Write compare.md."""
    write_atomically(out / "compare.md", markdown(comparison).encode())


def markdown(comparison: Comparison) -> str:
    """The table, what made it, and how each number was taken."""
    usual = usual_speed(comparison)
    lines = [
        f"# Methods on {comparison.facts['recipe']}",
        "",
        f"{_made_by(comparison.facts)} The same start and the same batches for every method. {caution(comparison)}",
        "",
        f"| {' | '.join(HEADER)} |",
        f"|---|{'---:|' * (len(HEADER) - 1)}",
        *(f"| {' | '.join(cells(row, usual=usual))} |" for row in ranked(comparison)),
        "",
        *(line for note in remarks(comparison) for line in (note, "")),
        "Entropy, flips, filters and seconds are means over the seeds; each seed's counts are in compare.json.",
        "",
        *(f"- {name.replace('_', ' ')}: {words}." for name, words in HOW.items()),
        *(f"- {row.method}, seed {seed}: {why}" for row in comparison.rows for seed, why in row.failed.items()),
    ]
    return "\n".join(lines) + "\n"


def remarks(comparison: Comparison) -> list[str]:
    """Lines that belong below the table: methods trained at another speed, and those that are not among them."""
    return other_speeds(comparison) + _left_out(comparison)


def _left_out(comparison: Comparison) -> list[str]:
    """The methods that are not in a table of nearly all: it is easily taken for one of all."""
    known, here = list_methods(), {row.method for row in comparison.rows}
    missing = [method for method in known if method not in here]
    if not 0 < len(missing) < len(known) / 4:
        return []
    return [f"{len(known) - len(missing)} of {len(known)} methods; not among them: {', '.join(missing)}."]


def _made_by(facts: dict[str, Any]) -> str:
    model, data, optimizer = (facts["settings"][name] for name in ("model", "data", "optimizer"))
    options = ", ".join(f"{name}={value}" for name, value in model["options"].items())
    versions = "; ".join(", ".join(f"{name} {number}" for name, number in each.items()) for each in facts["versions"])
    return (
        f"{model['name']}{f' ({options})' if options else ''} on {data['name']}, {facts['settings']['epochs']} epochs, "
        f"batch {data['batch_size']}, weight decay {optimizer['weight_decay']:g}; "
        f"seeds {', '.join(map(str, facts['seeds']))} (n = {facts['n']}); {', '.join(facts['device'])}; {versions}."
    )


def caution(comparison: Comparison) -> str:
    """How far the numbers carry."""
    scored = [row for row in ranked(comparison) if row.mean is not None]
    rates = comparison.facts["tuned_over"]
    tuned = (
        f"Each method has the learning rate, of {', '.join(f'{rate:g}' for rate in rates)}, that did best on a fifth "
        f"of the training images held out; {_instead(comparison.rows)}nothing else was tuned."
        if rates
        else "No method was tuned for this net: the order is that of these settings, not of the methods at their best."
    )
    if not scored:
        return tuned
    share, total = (scored[0].mean or 0) / 100, scored[0].total
    points = 200 * (2 * share * (1 - share) / total) ** 0.5  # two standard errors of the difference of two such scores
    scatter, freedom, n = _scatter(scored)
    chance = student(freedom) * scatter * (2 / n) ** 0.5
    seeds = f", seeds that differ by ± {scatter:.1f} points" if chance > points else ""
    words = f"{total:,} test images{seeds}: differences below about {max(points, chance):.1f} points say little."
    return f"{words} {tuned}"


def _scatter(rows: Sequence[Compared]) -> tuple[float, int, int]:
    """The sample deviation that the seeds of all methods share, its degrees of freedom, and the fewest of a method.

    The deviation is 0 where each has one seed.
    """
    several = [row for row in rows if row.std is not None]
    freedom = sum(len(row.correct) - 1 for row in several)
    squares = sum((row.std or 0) ** 2 * (len(row.correct) - 1) for row in several)
    return (squares / max(freedom, 1)) ** 0.5, freedom, min((len(row.correct) for row in several), default=1)


def _instead(rows: Sequence[Compared]) -> str:
    """What was tuned of methods that flip bits, where there are any."""
    flipping = [row.method for row in rows if row.gamma is not None]
    return f"{' and '.join(flipping)} a gamma moved as far in its place; " if flipping else ""


def draw(comparison: Comparison, out: Path) -> None:
    """Draw accuracy, entropy, flips, exact filters, time and size of every method as compare.png and compare.svg."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError(f"plotting needs matplotlib: {install_hint('plot')}; the numbers are kept") from None
    rows = [row for row in reversed(ranked(comparison)) if row.mean is not None]
    if not rows:
        return
    with rc_context({"font.size": _FONT}):
        figure = Figure(figsize=(_WIDTH, 3.2 + 0.52 * len(rows)), layout="constrained")
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
        save(figure, out, "compare", dpi=140)


def _colours(rows: Sequence[Compared]) -> list[str]:
    return [OTHER if row.p_pos is None else EXACT for row in rows]


def _accuracy(axes: Any, rows: Sequence[Compared]) -> None:
    for place, (row, colour) in enumerate(zip(rows, _colours(rows), strict=True)):
        axes.errorbar(row.mean, place + 0.12, xerr=row.std, fmt="o", color=colour, capsize=3, markersize=5)
        below = [place - 0.22] * len(row.correct)  # on the bar they would not be seen
        axes.plot(row.accuracies, below, "o", color="black", markerfacecolor="none", markersize=4, markeredgewidth=0.8)
    axes.set_xlabel("test accuracy, % (last epoch:\nmean ± std, a ring for each seed)")
    axes.grid(alpha=0.25)


def _entropy(axes: Any, rows: Sequence[Compared]) -> None:
    places = [place for place, row in enumerate(rows) if row.entropy]
    found = [statistics.fmean(rows[place].entropy) for place in places]
    axes.scatter(found, places, color=[_colours(rows)[place] for place in places], s=28, zorder=3)
    for place in places:
        most = attainable(rows[place])
        if most is not None:
            axes.vlines(most, place - 0.36, place + 0.36, color="black", linewidth=1)
    axes.set_xlabel("weight entropy, bits\n(black: attainable)")
    axes.locator_params(axis="x", nbins=3)  # their many digits would run together
    axes.grid(alpha=0.25)


def attainable(row: Compared) -> float | None:
    """The greatest entropy that whole numbers of weights allow; None where it is not known.

    A method that cuts weights leaves each filter fewer to halve, so the number counted over all of them is not its own.
    """
    name = row.method.partition(":")[0]
    cuts = name in list_quantizers() and "sparsity" in quantizer_settings(name)
    return None if cuts else row.attainable_entropy


def _flips(axes: Any, rows: Sequence[Compared]) -> None:
    for place, row in enumerate(rows):
        if row.entropy:
            axes.barh(place, statistics.fmean(row.to_positive) / 1000, color=UP, height=0.6)
            axes.barh(place, -statistics.fmean(row.to_negative) / 1000, color=DOWN, height=0.6)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel("flips between epochs, thousands\n(left: to −1, right: to +1)")
    axes.xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    axes.grid(alpha=0.25, axis="x")


def _bars(axes: Any, values: Sequence[float | None], rows: Sequence[Compared], label: str) -> None:
    bars = axes.barh(range(len(rows)), [value or 0.0 for value in values], color=_colours(rows), height=0.6)
    axes.bar_label(bars, [_figure(value) for value in values], padding=2, fontsize=_FONT - 1)
    axes.margins(x=0.24)
    axes.set_xlabel(label)
    axes.grid(alpha=0.25, axis="x")


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}" if value >= 10 else f"{value:.1f}"
