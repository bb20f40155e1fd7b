"""Claims of the paper beside our measurement: a row each, as Markdown and JSON.

A difference is tested by Welch's t over seeds, two-sided, and one from a single published number by a one-sample t. The
p values of one item are corrected together by Holm's procedure. One seed decides nothing. That two means lie within a
tolerance is no test, so the row says so in its claim and gives the equivalence test (TOST) beside it.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from equalbits._claim import Claim, signed
from equalbits._statistics import Difference, Sample, equivalence, holm, one_sample, welch
from equalbits.paper.published_numbers import TABLE_2_SEEDS, TEST_IMAGES, Published

ONE_SEED = "one seed: undecided"
SOME_DIVERGED = "some runs diverged"
SOME_GUESS = "some nets learned nothing: means are not compared"
#: Largest p value, after correction, at which a difference is significant.
LEVEL = 0.05
#: Tolerance in points between two means of five seeds: two standard errors where each deviation is 0.25.
NEAR = 0.3

_Key = TypeVar("_Key")

#: A case as stored in JSON: its ``settings``, and ``runs`` with the ``seed`` and the ``last`` epoch of each, None where
#: it diverged. An epoch has its number and the scores ``train`` and ``test``: correct, correct_top5, total, loss_sum.
CaseCounts = dict[str, Any]


def counted(claim: str, paper: str, ours: str, agrees: bool, *, n: int = 1, difference: float | None = None) -> Claim:
    """Return a row that a count decides."""
    return Claim(claim=claim, paper=paper, ours=ours, agrees=agrees, decided_by="count", n=n, difference=difference)


def undecided(claim: str, paper: str, ours: str, *, why: str = ONE_SEED, n: int = 1) -> Claim:
    """Return a row that is not decided, or not yet."""
    return Claim(claim=claim, paper=paper, ours=ours, agrees=None, decided_by=why, n=n)


def correct(rows: Sequence[Claim]) -> list[Claim]:
    """Correct the p values of one item by Holm's procedure; what is then not significant is undecided."""
    differ, equivalent = (_corrected(ps) for ps in ([r.p for r in rows], [r.p_equivalent for r in rows]))
    found = []
    for row, p, p_equivalent in zip(rows, differ, equivalent, strict=True):
        if p is not None:
            words = f"{row.decided_by}: p = {row.p:.2g}, by Holm {p:.2g}"
            row = replace(row, agrees=row.agrees if p <= LEVEL else None, decided_by=words)
        if p_equivalent is not None:
            shown = "equivalent" if p_equivalent <= LEVEL else "equivalence not shown"
            words = f"{row.decided_by}; TOST: p = {row.p_equivalent:.2g}, by Holm {p_equivalent:.2g}, {shown}"
            row = replace(row, decided_by=words)
        found.append(row)
    return found


def _corrected(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct the p values that are given."""
    corrected = iter(holm([p for p in p_values if p is not None]))
    return [None if p is None else next(corrected) for p in p_values]


def accuracies(case: CaseCounts) -> list[float]:
    """Return the test accuracy in per cent of each run that finished, after its last epoch."""
    return [accuracy(run["last"]["test"]) for run in case["runs"] if run["last"] is not None]


def accuracy(score: Mapping[str, Any]) -> float:
    """Return the accuracy of a stored score in per cent."""
    return float(100 * score["correct"] / score["total"])


def last_accuracy(run: Mapping[str, Any]) -> float:
    """Return the test accuracy in per cent after the last of a run's ``epochs``."""
    return accuracy(run["epochs"][-1]["test"])


def as_score(values: Sequence[float], *, diverged: int = 0) -> str:
    """Format mean ± sample deviation in per cent, and how many runs diverged."""
    if not values:
        return "diverged"
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    share_diverged = f" ({diverged} of {diverged + len(values)} diverged)" if diverged else ""
    return f"{statistics.fmean(values):.2f}{deviation} %{share_diverged}"


def guesses(case: CaseCounts, classes: int) -> list[bool]:
    """Return for each finished run whether it learned nothing: below twice the accuracy of guessing."""
    return [score < 2 * 100 / classes for score in accuracies(case)]


def count_diverged(case: CaseCounts) -> int:
    """Return how many runs of a case diverged."""
    return sum(run["last"] is None for run in case["runs"])


def score_of(case: CaseCounts) -> str:
    """Format the accuracy of a case."""
    return as_score(accuracies(case), diverged=count_diverged(case))


def best_key(cases: Iterable[tuple[_Key, CaseCounts]]) -> _Key:
    """Return the key of the case with the best mean accuracy; one that diverged in all runs comes last."""
    return max(cases, key=lambda pair: statistics.fmean(accuracies(pair[1]) or [-1.0]))[0]


def near(claim: str, case: CaseCounts, published: Published) -> Claim:
    """Compare with a mean of table 2: agrees within :data:`NEAR` points, to the printed digits."""
    row = _beside_table_2(f"{claim}: within {NEAR} points of the paper's", case, published)
    if row.decided_by:
        return row
    p = equivalence(Sample.of(accuracies(case)), _sample(published), NEAR)
    is_near = abs(round(row.difference or 0.0, 2)) <= NEAR
    return replace(row, agrees=is_near, decided_by="the two means", p_equivalent=p)


def above_published(claim: str, case: CaseCounts, published: Published) -> Claim:
    """Test whether a case is more accurate than a mean of table 2."""
    row = _beside_table_2(f"{claim}: above the paper's", case, published)
    if row.decided_by:
        return row
    return decide_by_welch(row, Sample.of(accuracies(case)), _sample(published))


def _sample(published: Published) -> Sample:
    """Take the paper's ± as the population deviation, the reading with the larger sample deviation."""
    return Sample(published.mean, published.spread * math.sqrt(TABLE_2_SEEDS / (TABLE_2_SEEDS - 1)), TABLE_2_SEEDS)


def _beside_table_2(claim: str, case: CaseCounts, published: Published) -> Claim:
    """Return a row with both means; ``decided_by`` is empty unless something keeps them from being compared."""
    ours, paper = accuracies(case), f"{published.mean:.2f} ± {published.spread:.2f} %"
    row = undecided(claim, paper, score_of(case), why=why_undecided(case, "tab2"), n=len(ours))
    if not ours and len(case["runs"]) > 1:  # none of several trained: that is an answer
        return replace(row, agrees=False, decided_by="no run trained")
    return replace(row, difference=statistics.fmean(ours) - published.mean if ours else None)


def why_undecided(case: CaseCounts, table: str) -> str:
    """Describe what keeps a case from being compared with the paper's table; else return ""."""
    counts = {run["last"]["test"]["total"] for run in case["runs"] if run["last"] is not None}
    if counts - {TEST_IMAGES[table]}:
        ours = " and ".join(f"{count:,}" for count in sorted(counts))
        return f"scored on {ours} test images, the paper's on {TEST_IMAGES[table]:,}"
    if len(case["runs"]) < 2:
        return ONE_SEED
    return SOME_DIVERGED if count_diverged(case) else ""


def above(
    claim: str, better: CaseCounts, worse: CaseCounts, *, paper: str = "yes", best_of: int = 1, classes: int = 10
) -> Claim:
    """Test whether one case is more accurate than another.

    ``best_of`` counts the cases that one of the two was selected from by the same scores: the p value is multiplied by
    it. Where all runs of one case trained and none of the other did, Fisher's exact test decides. Where some nets of a
    case only guess among the ``classes`` and some learned, its mean is that of two kinds of nets and not tested.
    """
    first, second = accuracies(better), accuracies(worse)
    guess = [sum(guesses(case, classes)) for case in (better, worse)]
    runs = [len(case["runs"]) for case in (better, worse)]
    mixed = [0 < count < of for count, of in zip(guess, map(len, (first, second)), strict=True)]
    scores = " against ".join(
        score_of(case) + (f", {count} of {of} learned nothing" if is_mixed else "")
        for case, count, of, is_mixed in zip((better, worse), guess, runs, mixed, strict=True)
    )
    row = replace(undecided(claim, paper, scores, why=SOME_DIVERGED, n=len(first)), n_other=len(second))
    if first and second:
        row = replace(row, ours=f"{signed(statistics.fmean(first) - statistics.fmean(second))} points ({scores})")
    if min(runs) < 2:
        return replace(row, decided_by=ONE_SEED)
    if (len(first), len(second)) in ((runs[0], 0), (0, runs[1])):
        p = min(1.0, best_of * 2 / math.comb(sum(runs), runs[0]))
        return replace(row, agrees=bool(first), decided_by="Fisher's exact test of which runs diverged", p=p)
    if count_diverged(better) or count_diverged(worse):
        return row
    if any(mixed):
        return replace(row, decided_by=SOME_GUESS)
    row = decide_by_welch(row, Sample.of(first), Sample.of(second), best_of=best_of)
    images = min(run["last"]["test"]["total"] for case in (better, worse) for run in case["runs"] if run["last"])
    least = best_of * _least_p(statistics.fmean(first) - statistics.fmean(second), images)
    return replace(row, p=min(1.0, max(row.p or 0.0, least)))


def decide_by_welch(row: Claim, first: Sample, second: Sample, *, less: bool = False, best_of: int = 1) -> Claim:
    """Let Welch's t decide whether the first mean is above the second, or below it with ``less``."""
    return _decide(row, welch(first, second), "Welch's t", max(first.mean, second.mean), less=less, best_of=best_of)


def decide_by_one_sample(row: Claim, sample: Sample, value: float) -> Claim:
    """Let a one-sample t decide whether a mean is above an exact value."""
    return _decide(row, one_sample(sample, value), "one-sample t", max(sample.mean, value))


def _decide(
    row: Claim, found: Difference | None, test: str, largest: float, *, less: bool = False, best_of: int = 1
) -> Claim:
    if found is None:
        return replace(row, decided_by=ONE_SEED)
    digits = 2 if largest > 1 else 3  # points, or losses
    words = f"{test}, 95 % interval {signed(found.low, digits)} to {signed(found.high, digits)}"
    if best_of > 1:
        words = f"{test}, p times {best_of} for the best of {best_of}"
    return replace(row, agrees=(found.mean < 0) == less, decided_by=words, p=min(1.0, best_of * found.p))


def _least_p(gap: float, images: int) -> float:
    """Return the least p value of a gap in points: McNemar's exact test if all images that differ fell one way.

    So a few seeds that happen to agree do not make up for a small test set.
    """
    return min(1.0, 2 * 0.5 ** round(abs(gap) * images / 100))
