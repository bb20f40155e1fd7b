"""Table 2 once more, each method with settings of its own: a fair comparison tunes all, not only one's own.

Learning rate and weight decay of every net and method are picked on training images held back, with one seed; then
the picked setting trains on all training images with every seed and is scored on the test images, once.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from equalbits.paper.claims import Claim, accuracies, near
from equalbits.paper.drawing import name_of
from equalbits.paper.item import Item, Options, Result
from equalbits.paper.published import TABLE_2
from equalbits.paper.runs import swept
from equalbits.paper.tab2_convnets import COMPARED, NETS, SEEDS, ahead, by_method, draw, nets, recipe_of, seeds

LR, DECAY = "optimizer.lr", "optimizer.weight_decay"
RATES, DECAYS = (0.05, 0.1, 0.2), (1e-4, 2e-4, 5e-4, 1e-3)


def _grid(options: Options) -> dict[str, list[float]]:
    rates, decays = ((0.1,), (1e-4, 1e-3)) if options.quick else (RATES, DECAYS)
    return {LR: list(options.grid.get(LR, rates)), DECAY: list(options.grid.get(DECAY, decays))}


def measure(out: Path, options: Options) -> Result:
    """Tune, then train what was picked."""
    hold_out = 1000 if options.quick else 5000
    found: dict[str, Any] = {"seeds": seeds(options), "tuning": {}, "nets": {}, "notes": []}
    for net in options.grid.get("nets", ("conv2",)) if options.quick else nets(options):
        recipe = recipe_of(net, options)
        found["tuning"][net], found["nets"][net] = {}, []
        for method in options.grid.get("model.weight_quantizer", COMPARED):
            plain = recipe.with_settings({"model.weight_quantizer": method})
            held = plain.with_settings({"data.hold_out": hold_out})
            tried = swept(held, out / "tuning" / net / method, options, vary=_grid(options), seeds=seeds(options)[:1])
            best = pick(tried)
            found["tuning"][net][method] = {"tried": tried, "picked": best}
            vary = {name: [value] for name, value in best.items()}
            one = replace(options, grid={})
            (case,) = swept(plain, out / "runs" / net / method, one, vary=vary, seeds=seeds(options))
            case["settings"]["model.weight_quantizer"] = method
            found["nets"][net].append(case)
            words = ", ".join(f"{name.rpartition('.')[2]} {value:g}" for name, value in best.items())
            found["notes"].append(
                f"{net.capitalize()}, {name_of(method)}: {words}, picked on {hold_out} images held out"
            )
    return found


def pick(tried: list[dict[str, Any]]) -> dict[str, float]:
    """The setting that scored best on what was held out; the first of equals, and never one that diverged."""
    trained = [case for case in tried if accuracies(case)]
    if not trained:
        raise ValueError(f"all of {len(tried)} settings diverged: lower optimizer.lr in the grid")
    best = max(trained, key=lambda case: sum(accuracies(case)))
    return {name: best["settings"][name] for name in (LR, DECAY)}


def claims(result: Result) -> list[Claim]:
    """Bi-half above the others with everyone tuned; and how far a tuned recipe goes beyond the paper's table."""
    rows = []
    for net, cases in result["nets"].items():
        methods = by_method(cases)
        for method, case in methods.items():
            if (net, method) in TABLE_2 and not result["quick"]:
                rows.append(near(f"{net.capitalize()}, {name_of(method)}, tuned", case, *TABLE_2[net, method]))
        rows += ahead(net, methods, quick=True)  # the paper's gaps are those of one shared recipe
    return rows


ITEM = Item(
    name="tab2-tuned",
    title="Shallow binary nets, every method tuned on held-out images",
    needs="cifar10",
    measure=measure,
    draw=draw,
    claims=claims,
    grid={"nets": NETS, "model.weight_quantizer": COMPARED, LR: RATES, DECAY: DECAYS},
    seeds=SEEDS,
    decides=("data.hold_out",),
)
