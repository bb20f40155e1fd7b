"""Claims of the paper beside our measurement: a row each, as Markdown and JSON."""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from equalbits._files import write_atomically
from equalbits._statistics import TAIL, student_t
from equalbits._text import markdown_table
from equalbits.paper.cost import cost, made_with
from equalbits.paper.published import TEST_IMAGES, Published

HEADER = ("claim", "paper", "ours", "difference", "agrees", "within", "n")
NO_CLAIM = "The paper makes no claim that these numbers could be compared with."
ONE_SEED = "one seed is not enough"
SOME_DIVERGED = "some runs diverged"
#: Tolerance in points between two means of five seeds: two standard errors where each deviation is 0.25.
NEAR = 0.3

_VERDICTS = {True: "yes", False: "no", None: "not decided"}
_Key = TypeVar("_Key")


class ScoreCounts(TypedDict):
    """Counts of one evaluation, as stored in JSON."""

    correct: int
    correct_top5: int
    total: int
    loss_sum: float


class EpochCounts(TypedDict):
    """Counts of one epoch, as stored in JSON."""

    epoch: int
    train: ScoreCounts
    test: ScoreCounts


class RunCounts(TypedDict):
    """Last epoch of one seed, as stored in JSON; None where it diverged."""

    seed: int
    last: EpochCounts | None


class CaseCounts(TypedDict):
    """Settings, and the runs of all seeds, as stored in JSON."""

    settings: dict[str, Any]
    runs: list[RunCounts]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim. ``agrees`` is None where the numbers do not decide it; ``n`` counts our runs or nets.

    ``paper`` is the paper's value in its words; ``difference`` is ours minus the paper's where both are numbers.
    """

    claim: str
    paper: str
    ours: str
    agrees: bool | None
    within: str
    n: int
    difference: float | None = None

    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        gap = "–" if self.difference is None else signed(self.difference)
        return self.claim, self.paper, self.ours, gap, _VERDICTS[self.agrees], self.within, str(self.n)


def signed(value: float, digits: int = 2) -> str:
    """Format a number with its sign; a value that rounds to 0 is positive.

    >>> signed(-1.5), signed(0.25), signed(-0.001)
    ('−1.50', '+0.25', '+0.00')
    """
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")


def write_claims(claims: Sequence[Claim], result: Mapping[str, Any], out: Path, *, setting: str = "") -> None:
    """Write claims.json, and claims.md with devices, versions, and how the ``setting`` differs from the paper's."""
    rows = [asdict(claim) for claim in claims]
    write_atomically(out / "claims.json", (json.dumps(rows, indent=1, ensure_ascii=False) + "\n").encode())
    seeds = f"; seeds {', '.join(map(str, result['seeds']))}" if result.get("seeds") else ""
    paragraphs = [
        f"# {result['item']}: {result['title']}",
        setting,
        markdown_table(HEADER, [claim.cells() for claim in claims]) if claims else NO_CLAIM,
        f"{cost(result)}; {made_with(result)}{seeds}.",
        "\n".join(f"- {note}" for note in result.get("notes", [])),
    ]
    write_atomically(out / "claims.md", ("\n\n".join(filter(None, paragraphs)) + "\n").encode())


def accuracies(case: CaseCounts) -> list[float]:
    """Return the test accuracy in per cent of each run that finished, after its last epoch."""
    scores = [run["last"]["test"] for run in case["runs"] if run["last"] is not None]
    return [100 * score["correct"] / score["total"] for score in scores]


def as_score(values: Sequence[float], *, diverged: int = 0) -> str:
    """Format mean ± sample deviation in per cent, and how many runs diverged."""
    if not values:
        return "diverged"
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    gone = f" ({diverged} of {diverged + len(values)} diverged)" if diverged else ""
    return f"{statistics.fmean(values):.2f}{deviation} %{gone}"


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
    return _against(claim, case, published, lambda gap: abs(gap) <= NEAR, f"{NEAR} points")


def beyond(claim: str, case: CaseCounts, published: Published, *, by: float) -> Claim:
    """Compare with a mean of table 2: agrees where ours is higher by ``by`` points or more."""
    within = f"{by:g} point{'' if by == 1 else 's'} above, or more"
    return _against(claim, case, published, lambda gap: gap >= by, within)


def _against(claim: str, case: CaseCounts, published: Published, holds: Callable[[float], bool], within: str) -> Claim:
    """Compare with a published mean. One seed, diverged runs or other test images leave it undecided."""
    ours, diverged, others = accuracies(case), count_diverged(case), other_images(case, "tab2")
    gap = statistics.fmean(ours) - published.mean if ours else None
    undecided = bool(ours) and (diverged > 0 or len(ours) == 1 or bool(others))
    return Claim(
        claim=claim,
        paper=f"{published.mean:.2f} ± {published.spread:.2f} %",
        ours=score_of(case),
        difference=gap,
        agrees=None if undecided else gap is not None and holds(round(gap, 2)),
        within=within if not undecided else others or (SOME_DIVERGED if diverged else ONE_SEED),
        n=len(ours),
    )


def other_images(case: CaseCounts, table: str) -> str:
    """Describe a number of test images that is not the one of the paper's table; else return ""."""
    counts = {run["last"]["test"]["total"] for run in case["runs"] if run["last"] is not None}
    if counts <= {TEST_IMAGES[table]}:
        return ""
    ours = " and ".join(f"{count:,}" for count in sorted(counts))
    return f"scored on {ours} test images, the paper's on {TEST_IMAGES[table]:,}"


def above(
    claim: str, better: CaseCounts, worse: CaseCounts, *, paper: str = "yes", best_of: int | None = None
) -> Claim:
    """Test whether one case is significantly more accurate than another.

    ``best_of`` is given where one of the two was selected as the best of so many by the same scores: the confidence
    interval is then widened to account for the selection.
    """
    first, second = accuracies(better), accuracies(worse)
    diverged = [count_diverged(better), count_diverged(worse)]
    scores, n = f"{score_of(better)} against {score_of(worse)}", min(len(first), len(second))
    if not n:
        decided = bool(first) != bool(second) and 0 in diverged  # all of one trained, and none of the other
        decided = decided and (best_of is None or min(len(better["runs"]), len(worse["runs"])) > 1)
        agrees = bool(first) if decided else None
        return Claim(claim=claim, paper=paper, ours=scores, agrees=agrees, within="whether it trains at all", n=n)
    gap, margin = statistics.fmean(first) - statistics.fmean(second), margin_of_error(better, worse, best_of or 1)
    significant = n > 1 and not any(diverged) and abs(gap) > margin
    return Claim(
        claim=claim,
        paper=paper,
        ours=f"{signed(gap)} points ({scores})",
        agrees=gap > 0 if significant else None,
        within=SOME_DIVERGED if any(diverged) else interval(f"{margin:.2f} points", n, best_of or 1),
        n=n,
    )


def interval(margin: str, n: int, best_of: int = 1) -> str:
    """Describe the confidence interval that a difference was tested with."""
    if n < 2:
        return ONE_SEED
    name = "95 % interval over seeds" if best_of == 1 else f"interval over seeds, widened for the best of {best_of}"
    return f"{name}: {margin}"


def margin_of_error(one: CaseCounts, other: CaseCounts, best_of: int = 1) -> float:
    """Return half the 95 % confidence interval of the difference of two means in points, by Student's t over seeds.

    Both cases are scored on the same test images. A difference of k images is never more certain than k images that all
    fell one way, so seeds that happen to agree do not make up for a small test set. Where one case is the best of
    several, each of them has an equal share of the 5 %.
    """
    first, second = accuracies(one), accuracies(other)
    tail = TAIL / best_of
    error = math.sqrt(squared_error(first) + squared_error(second))
    images = min(run["last"]["test"]["total"] for case in (one, other) for run in case["runs"] if run["last"])
    gap = abs(statistics.fmean(first) - statistics.fmean(second)) / 100
    of_images = 100 * statistics.NormalDist().inv_cdf(1 - tail) * math.sqrt(gap * (1 - gap) / images)
    return max(student_t(len(first) + len(second) - 2, tail) * error, of_images)


def squared_error(values: Sequence[float]) -> float:
    """Return the square of the mean's standard error; 0 for one value."""
    return statistics.variance(values) / len(values) if len(values) > 1 else 0.0
