"""Plots are legible: labels, ticks, titles and legends do not collide."""

import itertools
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from equalbits._plotting import heading, new_figure
from equalbits.paper import get_item
from equalbits.paper.items import fig1_entropy, fig4_repetitions, fig6_toy_boundaries, fig8_pruning


def drawn(figure: Figure) -> Any:
    """The figure after layout, and a function that measures its parts in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas.get_renderer()


def test_labels_of_figure_6_overlap_neither_lines_nor_each_other() -> None:
    figure = Figure(figsize=(12.5, 4.7), layout="constrained")
    fig6_toy_boundaries._counts(figure, fig6_toy_boundaries.count_boundaries(fig6_toy_boundaries.grid_points(0.2)))
    renderer, (axes,) = drawn(figure), figure.axes
    boxes = [text.get_window_extent(renderer) for text in axes.texts]
    assert not [pair for pair in itertools.combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    assert all(axes.get_window_extent().contains(*corner) for box in boxes for corner in (box.p0, box.p1))
    for line in axes.get_lines():
        corners = axes.transData.transform(np.column_stack(line.get_data()))
        steps = np.linspace(0, 1, 200)[:, None]
        path = np.concatenate([a + steps * (b - a) for a, b in itertools.pairwise(corners)])
        assert not [box for box in boxes if any(box.contains(*point) for point in path)]


def test_figure_1_has_whole_epochs_and_legends_outside_its_axes() -> None:
    network = {"steps": [0, 1, 2], "network": [0.9, 0.8, 0.7], "shapes": {"conv1": [4, 9]}}
    layers = {str(layer): {"positive": [1, 50, 60], "total": 100} for layer in range(3)}
    figure = Figure(figsize=(12, 5), layout="constrained")
    grid = figure.add_gridspec(1, 2)
    fig1_entropy._draw_weights(figure, grid[0], {"weights": dict.fromkeys(fig1_entropy.WEIGHTS, network)})
    found = {method: {"layers": layers} for method in fig1_entropy.ACTIVATIONS}
    fig1_entropy._draw_activations(figure, grid[1], {"activations": found})
    renderer = drawn(figure)
    assert all(tick == int(tick) for tick in figure.axes[0].get_xticks())
    for axes in figure.axes:
        assert not axes.get_legend().get_window_extent(renderer).overlaps(axes.get_window_extent())


def test_a_title_fits_the_width_of_its_plot() -> None:
    for name in ("tab2-irnet", "tab2-kaiming", "tab2-tuned"):
        title = heading({"title": get_item(name).title, "quick": True})
        for width in (4.2, 7.4, 11):
            figure = new_figure(width, 4.2, title=title)
            box = figure._suptitle.get_window_extent(drawn(figure))
            assert box.x0 >= 0 and box.x1 <= figure.bbox.width
            assert figure.get_suptitle().replace("\n", " ") == title


def test_histograms_of_runs_have_whole_ticks() -> None:
    score = {"correct": 70, "total": 100, "loss_sum": 90.0}
    case = {"runs": [{"last": {"train": score, "test": score}}]}
    methods = dict.fromkeys(fig4_repetitions.COMPARED, case)
    figure = fig4_repetitions.draw({"quick": True, "title": "", "seeds": [0], "methods": methods})
    drawn(figure)
    assert all(tick == int(tick) for axes in figure.axes[:4] for tick in axes.get_yticks())


def test_figure_8_marks_nets_that_did_not_learn_and_leaves_them_out_of_the_curve() -> None:
    def case(*correct: int) -> dict[str, Any]:
        test = [{"test": {"correct": count, "total": 100}, "epoch": 1} for count in correct]
        return {"runs": [{"seed": seed, "last": last, "best": last} for seed, last in enumerate(test)]}

    figure = new_figure(4, 4)
    axes = figure.add_subplot()
    cases = [case(80, 82), case(81, 10), case(10, 11)]
    fig8_pruning._draw_rule(axes, [0, 50, 90], cases, name="pruned-sign", classes=10, place=2)
    curve, crosses = axes.get_lines()
    assert (list(curve.get_xdata()), list(curve.get_ydata())) == ([0, 50], [81, 81])
    assert (list(crosses.get_xdata()), list(crosses.get_ydata())) == ([50, 90], [0, 0])
    drawn(figure)
    assert axes.get_position().width > 0.5  # crosses on the axis leave the layout alone
