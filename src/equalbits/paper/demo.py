"""``equalbits demo``: measure, then draw."""

from collections.abc import Callable
from pathlib import Path

from equalbits.paper.demo_measure import METHODS, Measured, measure
from equalbits.paper.demo_report import draw, write_report
from equalbits.training import Reporter


def run_demo(
    out: Path,
    *,
    epochs: int = 4,
    device: str = "cpu",
    reporters_for: Callable[[str], list[Reporter]] = lambda title: [],
) -> list[Measured]:
    """Train the three methods into folders of ``out``, then draw demo.png and demo.svg and write report.html.

    What was measured by an earlier call is not trained again.
    """
    measured = [
        measure(method, out / method, epochs=epochs, device=device, reporters=reporters_for(title))
        for method, title in METHODS.items()
    ]
    draw(measured, out)
    write_report(measured, out)
    return measured
