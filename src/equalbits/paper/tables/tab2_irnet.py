"""Table 2 with the two other readings of IR-Net, whose rule for nets without batch norm the paper does not give.

Table 2 itself treats IR-Net's statistics as constants in the gradient. Here the gradient passes unchanged
(``irnet-identity``), or through the statistics (``irnet-through``). The latter's steps are larger by one over a
filter's deviation, and some nets collapse at the table's learning rate: it has a tenth of it.
"""

from dataclasses import replace
from pathlib import Path

from equalbits.paper.claims import CaseCounts
from equalbits.paper.item import Item, Options, Result
from equalbits.paper.runs import item_cases, run_cases
from equalbits.paper.tables.tab2_convnets import NETS, SEEDS, claims, draw, nets, recipe_of, seeds

#: The learning rate of each reading.
READINGS = {"irnet-identity": 0.1, "irnet-through": 0.01}


def measure(out: Path, options: Options) -> Result:
    """Train every net by each reading with every seed."""
    readings = options.grid.get("model.weight_quantizer", READINGS)
    for reading in readings:
        if reading not in READINGS:
            raise ValueError(f"model.weight_quantizer={reading}: tab2-irnet trains {' and '.join(READINGS)}")
    whole = replace(options, grid={})
    groups = {
        (net, reading): item_cases(
            recipe_of(net, options).with_settings({"optimizer.lr": READINGS[reading]}),
            {"model.weight_quantizer": [reading]},
            whole,
            within=f"{net}/{reading}",
        )
        for net in nets(options)
        for reading in readings
    }
    found: dict[str, list[CaseCounts]] = {net: [] for net in nets(options)}
    for (net, _), cases in run_cases(out / "runs", groups, options, seeds=seeds(options)).items():
        found[net] += cases
    return {"seeds": seeds(options), "nets": found}


ITEM = Item(
    name="tab2-irnet",
    title="Shallow binary nets, IR-Net by its two other readings",
    needs="cifar10",
    measure=measure,
    draw=draw,
    claims=claims,
    grid={"nets": NETS, "model.weight_quantizer": tuple(READINGS)},
    seeds=SEEDS,
    decides=("optimizer.lr",),
)
