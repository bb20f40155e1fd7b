"""The table and the plot of a comparison, checked on the committed counts."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from equalbits.recipes import Comparison, list_methods
from equalbits.report import comparison as report
from equalbits.report import describe_precision, draw_comparison, markdown, text_table
from equalbits.report.comparison import comparison_page

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "results" / "fashion-compare.json"


@pytest.fixture
def comparison() -> Comparison:
    return Comparison.from_dict(json.loads(KEPT.read_text()))


@pytest.fixture
def two(comparison: Comparison) -> Comparison:
    """The comparison with sign and bi-half alone."""
    rows = {row.method: row for row in comparison.rows}
    return replace(comparison, rows=[rows["sign"], rows["bihalf"]])


def test_the_committed_page_is_generated_from_the_committed_counts(comparison: Comparison) -> None:
    assert (ROOT / "docs" / "comparison.md").read_text() == comparison_page(KEPT)
    table = json.loads(KEPT.read_text())
    assert comparison.as_dict() == table
    assert table["n"] == 3 and len(table["methods"]) == 22


def test_table_and_plot_name_every_method(two: Comparison, tmp_path: Path) -> None:
    draw_comparison(two, tmp_path)
    page = markdown(two)
    assert "| sign |" in page and "| bihalf |" in page and "n = 3" in page
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (tmp_path / "compare.svg").read_text()


def test_the_deviation_over_seeds_limits_the_precision_even_with_many_test_images(two: Comparison) -> None:
    def precision(*correct: list[int]) -> str:
        seeds = [list(range(len(each))) for each in correct]
        pairs = zip(two.rows * 2, correct, seeds, strict=False)
        rows = [replace(row, correct=each, total=10_000, seeds=some) for row, each, some in pairs]
        return describe_precision(replace(two, rows=rows)).partition(" are not significant.")[0]

    deviation = "10,000 test images, seeds with a deviation of ±"
    wide = [5_000, 6_000]
    assert precision(wide, wide) == f"{deviation} 7.1 points: differences below about 30.4 points"
    # Four methods of the same deviation: t of 4 degrees of freedom instead of 2.
    assert precision(wide, wide, wide, wide) == f"{deviation} 7.1 points: differences below about 19.6 points"
    # A method of three seeds has two degrees of freedom: √((2 · 10² + 7.07²) / 3) points, t of 3.
    assert precision([4_000, 5_000, 6_000], wide) == f"{deviation} 9.1 points: differences below about 29.1 points"
    assert precision([5_000, 5_001], [5_000, 5_001]) == "10,000 test images: differences below about 1.4 points"
    assert precision([5_000], [5_000]) == "10,000 test images: differences below about 1.4 points"


def test_seconds_at_another_speed_are_marked_and_explained(two: Comparison) -> None:
    sign, half = two.rows
    same = replace(two, rows=[sign, half, replace(half, method="xnor")])
    assert "†" not in markdown(same) + text_table(same)
    mixed = replace(two, rows=[sign, half, replace(half, method="xnor", speed="other")])
    for page in (markdown(mixed), text_table(mixed)):
        marked = [line for line in page.splitlines() if "†" in line]
        assert len(marked) == 2 and "xnor" in marked[0]
        assert marked[1].startswith(
            f"† trained with speed=other, the others with speed={sign.speed}: the seconds of xn"
        )


def test_a_table_of_nearly_all_methods_names_the_missing_ones(two: Comparison) -> None:
    every = [replace(two.rows[0], method=method) for method in list_methods()]
    assert "not among them" not in markdown(replace(two, rows=every)) + markdown(two)
    page, count = markdown(replace(two, rows=every[1:])), len(every)
    assert f"\n{count - 1} of {count} methods; not among them: {every[0].method}.\n" in page


def test_no_method_exceeds_the_entropy_that_is_drawn_as_attainable(comparison: Comparison) -> None:
    rows = {row.method: row for row in comparison.rows if row.entropy}
    limits = {method: report.attainable_entropy(row) for method, row in rows.items()}
    assert all(max(rows[method].entropy) <= limit + 1e-6 for method, limit in limits.items() if limit is not None)
    assert {method for method, limit in limits.items() if limit is None} == {"pruned-bihalf", "pruned-sign", "mpt"}


def test_a_net_without_filters_has_a_dash_instead_of_a_share(comparison: Comparison) -> None:
    rows, axes = comparison.rows, Figure().add_subplot()
    shares = [100 * row.exact_filters[0] / row.filters if row.filters else None for row in rows]
    report._bars(axes, shares, rows, "filters exactly half, %")
    shown = dict(zip((row.method for row in rows), (text.get_text() for text in axes.texts), strict=True))
    assert shown["real"] == "–" and shown["bihalf"] == "100"


def test_every_seed_is_visible_beside_its_mean(comparison: Comparison) -> None:
    figure = Figure(figsize=(4, 12))
    axes = figure.add_subplot()
    report._accuracy(axes, comparison.rows)
    FigureCanvasAgg(figure).draw()
    means = [line for line in axes.get_lines() if line.get_marker() == "o" and len(line.get_xdata()) == 1]
    rings = [line for line in axes.get_lines() if line.get_markerfacecolor() == "none"]
    assert sum(len(line.get_xdata()) for line in rings) == sum(len(row.correct) for row in comparison.rows)
    assert not {line.get_ydata()[0] for line in rings} & {line.get_ydata()[0] for line in means}


def test_the_ticks_of_the_entropy_do_not_overlap(two: Comparison) -> None:
    axes = Figure().subplots()
    values = zip(two.rows, ([0.9901], [0.9971]), strict=True)
    report._entropy(axes, [replace(row, entropy=each, attainable_entropy=0.9971) for row, each in values])
    assert 2 <= len([tick for tick in axes.get_xticks() if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]]) <= 4
