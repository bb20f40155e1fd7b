"""A plot that does not fit on the disk leaves the old one whole, and the error names its file."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from equalbits._plotting import save_figure
from equalbits.paper.demo import METHODS, DemoCounts, draw_demo
from equalbits.recipes import Comparison, MethodResult
from equalbits.report import draw_comparison

ROW = {
    "method": "sign", "p_pos": None, "seeds": [0], "failed": {}, "correct": [5], "total": 10, "entropy": [0.9],
    "attainable_entropy": 1.0, "to_positive": [1], "to_negative": [1], "symbols": 9, "filters": 1, "exact_filters": [1],
    "seconds": [1.0], "packed_bytes": 9, "float32_bytes": 36, "lr": 0.1, "speed": "plain", "stacked_with": 1,
}  # fmt: skip
COUNTS = {
    "correct": 5, "total": 10, "to_positive": 1, "to_negative": 1, "filters": 1, "exact_filters": 1, "entropy": 0.9,
    "attainable": 1.0, "steps": [0, 1], "entropies": [0.9, 0.9], "filter_to_positive": [1], "filter_to_negative": [1],
    "seconds": 1.0,
}  # fmt: skip
DRAWN = {
    "fig2": lambda out: save_figure(Figure(), out, "fig2"),
    "compare": lambda out: draw_comparison(Comparison([MethodResult(**ROW)], {"recipe": "own", "n": 1}), out),
    "demo": lambda out: draw_demo([DemoCounts(method=name, **COUNTS) for name in METHODS], out),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_plot_that_does_not_fit_on_the_disk_is_named_and_the_old_one_stays(
    name: str, tmp_path: Path, room_for
) -> None:
    DRAWN[name](tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(before) == [f"{name}.png", f"{name}.svg"]
    with pytest.raises(OSError, match=rf"{name}\.png"), room_for(600):
        DRAWN[name](tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
