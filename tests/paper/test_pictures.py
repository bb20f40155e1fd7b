"""What a picture shows can be read: no number on a line, no half epochs, no legend under what is drawn."""

import itertools
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from equalbits.paper import fig1_entropy, fig6_toy


def drawn(figure: Figure) -> Any:
    """The figure laid out; gives what measures its parts in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas.get_renderer()


def test_the_numbers_of_figure_6_stand_clear_of_its_lines_and_of_each_other() -> None:
    figure = Figure(figsize=(12.5, 4.7), layout="constrained")
    fig6_toy._counts(figure, fig6_toy.count_boundaries(fig6_toy.grid_points(0.2)))
    renderer, (axes,) = drawn(figure), figure.axes
    boxes = [text.get_window_extent(renderer) for text in axes.texts]
    assert not [pair for pair in itertools.combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    assert all(axes.get_window_extent().contains(*corner) for box in boxes for corner in (box.p0, box.p1))
    for line in axes.get_lines():
        corners = axes.transData.transform(np.column_stack(line.get_data()))
        steps = np.linspace(0, 1, 200)[:, None]
        path = np.concatenate([a + steps * (b - a) for a, b in itertools.pairwise(corners)])
        assert not [box for box in boxes if any(box.contains(*point) for point in path)]


def test_figure_1_counts_whole_epochs_and_keeps_its_legends_off_what_it_draws() -> None:
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
