"""Table of a comparison of methods, as plain text and as Markdown."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from equalbits._files import write_atomically
from equalbits._statistics import student_t
from equalbits._text import format_table
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


def write_markdown(comparison: Comparison, out: Path) -> None:
    """Write compare.md into a folder."""
    write_atomically(out / "compare.md", markdown(comparison).encode())


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
