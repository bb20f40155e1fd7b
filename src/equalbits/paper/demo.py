"""``equalbits demo``: measure, then draw."""

from collections.abc import Callable
from pathlib import Path

from equalbits._extras import require_matplotlib
from equalbits.paper.demo_measure import METHODS, Measured, demo_recipe, measure
from equalbits.paper.demo_report import draw, write_report
from equalbits.recipes import Recipe, check_kind, pick_device
from equalbits.training import Reporter


def run_demo(
    out: Path,
    *,
    recipe: Recipe | None = None,
    device: str = "cpu",
    reporters_for: Callable[[str], list[Reporter]] = lambda title: [],
) -> list[Measured]:
    """Train the three methods into folders of ``out``, then draw demo.png and demo.svg and write report.html.

    What was measured by an earlier call is not trained again.
    """
    require_matplotlib()
    pick_device(device)  # one that is not there is refused, also where nothing is left to train
    if out.is_file():
        raise ValueError(f"{out} is a file: name a folder, new or of the same demo, with --out")
    check_kind(out, "demo")
    recipe = recipe or demo_recipe()
    measured = []
    for method, title in METHODS.items():
        of_method = recipe.with_settings({"model.weight_quantizer": method})
        measured.append(measure(of_method, out / method, device=device, reporters=reporters_for(title)))
    draw(measured, out)
    write_report(measured, out)
    return measured
