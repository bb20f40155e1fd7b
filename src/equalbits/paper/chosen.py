"""The best of several, chosen by the very scores it is then held against: chance must be given more room there."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from equalbits.paper.claims import Claim, above, accuracies, chance, decided, lost

Case = Mapping[str, Any]


def best(cases: Iterable[tuple[float, Case]]) -> float:
    """The place of the best mean on test images; one that diverged wholly comes last."""
    return max(cases, key=lambda placed: statistics.fmean(accuracies(placed[1]) or [-1.0]))[0]


def above_chosen(claim: str, better: Case, worse: Case, *, candidates: int) -> Claim:
    """:func:`~equalbits.paper.claims.above` where one of the two was picked as the best of ``candidates``.

    Whichever of the two leads: where the other does, that is more room than it needs, and never less.
    """
    row = above(claim, better, worse)
    if min(len(better["runs"]), len(worse["runs"])) < 2:
        return replace(row, agrees=None)
    if lost(better) or lost(worse):  # what that decides is said there
        return row
    gap = statistics.fmean(accuracies(better)) - statistics.fmean(accuracies(worse))
    margin = chance(better, worse, candidates=candidates)
    words = f"chance, widened for the best of {candidates}" if candidates > 1 else "chance"
    verdict = decided(gap > 0, by_more=abs(gap) > margin, n=row.n)
    return replace(row, agrees=verdict, within=f"{words}: {margin:.2f} points")
