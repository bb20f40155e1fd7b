"""The best of several, chosen by the very scores it is then held against: chance must be given more room there."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import NormalDist
from typing import Any

from equalbits.paper.claims import Claim, above, accuracies, chance, decided, lost

Case = Mapping[str, Any]


def best(cases: Iterable[tuple[float, Case]]) -> float:
    """The place of the best mean on test images; one that diverged wholly comes last."""
    return max(cases, key=lambda placed: statistics.fmean(accuracies(placed[1]) or [-1.0]))[0]


def widened(margin: float, *, candidates: int) -> float:
    """A margin for one gap, made wide enough for the widest of several (Bonferroni, by normal quantiles).

    >>> widened(1.0, candidates=1), round(widened(1.0, candidates=10), 2)
    (1.0, 1.43)
    """
    normal, one_tail = NormalDist(), 0.025
    return margin * normal.inv_cdf(1 - one_tail / candidates) / normal.inv_cdf(1 - one_tail)


def above_chosen(claim: str, better: Case, worse: Case, *, candidates: int) -> Claim:
    """:func:`~equalbits.paper.claims.above` where one of the two was picked as the best of ``candidates``."""
    row = above(claim, better, worse)
    if min(len(better["runs"]), len(worse["runs"])) < 2:
        return replace(row, agrees=None)
    if lost(better) or lost(worse):  # what that decides is said there
        return row
    gap = statistics.fmean(accuracies(better)) - statistics.fmean(accuracies(worse))
    margin = widened(chance(better, worse), candidates=candidates)
    words = f"chance, widened for the best of {candidates}" if candidates > 1 else "chance"
    verdict = decided(gap > 0, by_more=abs(gap) > margin, n=row.n)
    return replace(row, agrees=verdict, within=f"{words}: {margin:.2f} points")
