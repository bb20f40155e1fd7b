"""Figure 6: number of decision boundaries of a tiny net, and how many remain when half of its bits are −1.

The net is ``y = σ(w₂ᵀ σ(W₁ᵀ x + b₁))`` with two inputs, three hidden units and 12 parameters, all ±1: 4096 nets in all.
A net's solution is the label of every point of a grid. Constant labels do not count, and swapping the two labels does
not change the boundary. The sum before the last σ is computed in float64 and compared with 0, because σ saturates.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from equalbits._claim import Claim
from equalbits._plotting import GAP, UP, Axes, Figure, legend, new_figure, panel
from equalbits.paper.claims import counted, undecided
from equalbits.paper.item import Item, Options, Result
from equalbits.paper.published_numbers import TOY, TOY_BOUNDARIES

PARAMETERS = 12
Net = tuple[int, ...]  # W1 row by row (6), b1 (3), w2 (3)
Units = dict[tuple[int, int, int], NDArray[np.float64]]


def grid_points(step: float = 0.04, reach: float = 5.0) -> NDArray[np.float64]:
    """Return the grid on which nets are compared, shape (point, 2), without its upper end."""
    line = np.arange(round(2 * reach / step)) * step - reach
    return np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)


def hidden_units(points: NDArray[np.float64]) -> Units:
    """Return the outputs of the eight possible units, by their two weights and bias."""
    return {
        (a, b, c): 1 / (1 + np.exp(-(a * points[:, 0] + b * points[:, 1] + c)))
        for a, b, c in product((-1, 1), (-1, 1), (-1, 1))
    }


def output(net: Net, points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum before the last σ."""
    return _total(_signed_units(net), hidden_units(points))


def _total(signed: Sequence[tuple[int, int, int, int]], units: Units) -> NDArray[np.float64]:
    first, second, third = (sign * units[a, b, c] for a, b, c, sign in signed)
    return first + second + third


def _signed_units(net: Net) -> list[tuple[int, int, int, int]]:
    """Return the three hidden units with their output signs, sorted: the order of units does not matter.

    >>> _signed_units((1, -1, 1, 1, 1, -1, -1, 1, 1, 1, -1, 1))
    [(-1, 1, 1, -1), (1, -1, 1, 1), (1, 1, -1, 1)]
    """
    return sorted((net[j], net[3 + j], net[6 + j], net[9 + j]) for j in range(3))


def count_boundaries(points: NDArray[np.float64]) -> Result:
    """Evaluate all nets on these points, and count boundaries by the number of parameters that are −1."""
    units = hidden_units(points)
    maps: dict[tuple[tuple[int, ...], ...], tuple[bytes, bytes] | None] = {}
    boundaries: dict[bytes, list[Net]] = {}
    labellings: dict[int, set[bytes]] = {k: set() for k in range(PARAMETERS + 1)}
    nearest = np.inf
    for net in product((-1, 1), repeat=PARAMETERS):
        signed = tuple(_signed_units(net))
        if signed not in maps:  # 4096 nets have 816 different sums
            total = _total(signed, units)
            positive = total > 0
            boundary = positive ^ positive[0]  # the same for the opposite labels
            maps[signed] = None
            if boundary.any():
                maps[signed] = np.packbits(boundary).tobytes(), np.packbits(positive).tobytes()
                nearest = min(nearest, float(np.abs(total).min()))
        if found := maps[signed]:
            boundaries.setdefault(found[0], []).append(net)
            labellings[net.count(-1)].add(found[1])
    return _counted(boundaries, labellings, nearest)


def _counted(boundaries: dict[bytes, list[Net]], labellings: dict[int, set[bytes]], nearest: float) -> Result:
    by_negatives = [Counter(net.count(-1) for net in nets) for nets in boundaries.values()]
    every = range(PARAMETERS + 1)
    nets = Counter(k for counts in by_negatives for k in counts.elements())
    combinations = Counter(net.count(-1) for net in product((-1, 1), repeat=PARAMETERS))

    def reached(*some: int) -> int:
        return sum(any(counts[k] for k in some) for counts in by_negatives)

    hits = [len(found) for found in boundaries.values()]
    return {
        "combinations": [combinations[k] for k in every],
        "nonconstant": [nets[k] for k in every],
        "unique": [reached(k) for k in every],
        "unique_of_all": len(boundaries),
        "unique_of_5_6_7": reached(5, 6, 7),
        "unique_of_6_7": reached(6, 7),
        "labellings": [len(labellings[k]) for k in every],
        "labellings_of_all": len(set().union(*labellings.values())),
        "fewest_nets_a_boundary": min(hits),
        "most_nets_a_boundary": max(hits),
        "least_distance_from_zero": nearest,
        "boundaries": [{"net": list(found[0]), "negatives": sorted({net.count(-1) for net in found})}
                       for found in boundaries.values()],
    }  # fmt: skip


def measure(out: Path, options: Options) -> Result:
    """Count on the paper's grid: 250 × 250 points. Quick and full are the same."""
    points = grid_points()
    return {"points": len(points), **count_boundaries(points), "notes": _NOTES}


_NOTES = [
    "The input is a real grid; on the four binary inputs of the text there are 6 boundaries only.",
    "The half is counted over all 12 parameters together, not filter by filter.",
    "Two opposite labellings of the plane count as one solution, as in the paper. Counted as two, for a classifier "
    "must tell them apart, the full net has 152 and bi-half still 66: 43.4 %, not 86.8 %.",
]


def claims(result: Result) -> list[Claim]:
    """Compare the table in the figure, its curve, and a count that the paper does not report."""
    half, combinations, unique = PARAMETERS // 2, result["combinations"], result["unique"]
    rows = [
        _exact("full net: combinations", TOY["full"]["combinations"], sum(combinations)),
        _exact("full net: unique boundaries", TOY["full"]["unique"], result["unique_of_all"]),
        _exact("bi-half: combinations", TOY["bihalf"]["combinations"], combinations[half]),
        _exact("bi-half: unique boundaries", TOY["bihalf"]["unique"], unique[half]),
        _exact("unique boundaries with 2…10 negatives", _row(TOY_BOUNDARIES), _row(unique[2:11])),
    ]
    gain = (unique[half] / combinations[half]) / (result["unique_of_all"] / sum(combinations))
    kept, every, nets = result["labellings"][half], result["labellings_of_all"], sum(combinations)
    claim = "boundaries per combination, bi-half over full"
    rows.append(
        replace(counted(claim, "nearly 4", f"{gain:.2f}", 3.5 <= gain <= 4, n=nets), decided_by="its size: 3.5 to 4")
    )
    claim = "boundaries kept, if opposite labellings are two"
    rows.append(undecided(claim, "not reported", f"{kept} of {every} ({kept / every:.1%})", why="–", n=nets))
    return rows


def _exact(claim: str, paper: int | str, ours: int | str) -> Claim:
    gap = float(ours - paper) if isinstance(ours, int) and isinstance(paper, int) else None
    return counted(claim, str(paper), str(ours), ours == paper, n=2**PARAMETERS, difference=gap)


def _row(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts))


def draw(result: Result) -> Figure:
    """Plot all boundaries, those that bi-half keeps and loses, and the counts by number of negatives."""
    figure = new_figure(12.5, 4.7)
    half, found, combinations = PARAMETERS // 2, result["boundaries"], result["combinations"]
    kept = [each for each in found if half in each["negatives"]]
    lost = [each for each in found if half not in each["negatives"]]
    title = f"all {sum(combinations)} nets:\n{len(found)} boundaries"
    axes = panel(figure, (1, 3, 1), x="x₁", y="x₂", title=title)
    _contours(axes, found, GAP, 0.5)
    title = (
        f"the {combinations[half]} nets with {half} of {PARAMETERS} bits −1:\n"
        f"{len(kept)} boundaries kept (red), {len(lost)} lost (black)"
    )
    axes = panel(figure, (1, 3, 2), x="x₁", y="x₂", title=title)
    _contours(axes, kept, GAP, 0.5)
    _contours(axes, lost, "black", 0.9)
    _counts(figure, result)
    return figure


def _counts(figure: Figure, result: Result) -> None:
    """Plot the number of nets and boundaries by the number of −1; labels are outside the bend of the curves."""
    title = "nets and their boundaries\nby the number of bits that are −1"
    axes = panel(figure, (1, 3, 3), x="bits that are −1", y="count", title=title)
    drawn, half = [k for k in range(PARAMETERS + 1) if result["unique"][k]], PARAMETERS // 2
    for name, colour, label in (("combinations", UP, "nets"), ("unique", GAP, "different boundaries")):
        axes.semilogy(drawn, [result[name][k] for k in drawn], color=colour, marker="o", label=label)
        for k in drawn:
            side = (k > half) - (k < half)  # rising before the half, falling after it
            axes.annotate(str(result[name][k]), (k, result[name][k]), textcoords="offset points",
                          xytext=(5 * side, 4 if side else 7), ha=("center", "left", "right")[side], fontsize=9,
                          color=colour)  # fmt: skip
    axes.margins(x=0.13, y=0.12)
    axes.set_xticks(drawn)
    legend(axes, loc="lower center")


def _contours(axes: Axes, boundaries: list[dict[str, list[int]]], colour: str, width: float) -> None:
    points = grid_points(0.125)
    side = round(len(points) ** 0.5)
    first, second = points[:, 0].reshape(side, side), points[:, 1].reshape(side, side)
    for each in boundaries:
        heights = output(tuple(each["net"]), points).reshape(side, side)
        axes.contour(first, second, heights, levels=[0], colors=colour, linewidths=width)


ITEM = Item(
    name="fig6",
    title="Decision boundaries of a toy net with binary weights",
    needs="",
    measure=measure,
    draw=draw,
    claims=claims,
    seeds=0,
)
