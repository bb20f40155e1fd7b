"""What the paper says beside what was measured: a row per claim, as Markdown and JSON."""

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from equalbits._files import write_atomically
from equalbits._statistics import TAIL, student_t
from equalbits.paper.published import TEST_IMAGES
from equalbits.paper.trained import cost, made_with

_WORDS = {True: "yes", False: "no", None: "not decided"}
ONE_SEED = "one seed each decides nothing"
SOME_LOST = "runs that are left over decide nothing"

#: Points between two means of five seeds that chance explains: two standard errors where each has a ± of 0.25.
NEAR = 0.3


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim. ``agrees`` is None where the numbers cannot tell; ``n`` says how many runs or nets stand behind ours.

    ``paper`` is the paper's value in its own words, ``difference`` is ours less the paper's where both are numbers.
    """

    claim: str
    paper: str
    ours: str
    agrees: bool | None
    within: str
    n: int
    difference: float | None = None

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        gap = "–" if self.difference is None else signed(self.difference)
        return (self.claim, self.paper, self.ours, gap, _WORDS[self.agrees], self.within, str(self.n))


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign; what rounds to 0 is not below it.

    >>> signed(-1.5), signed(0.25), signed(-0.001)
    ('−1.50', '+0.25', '+0.00')
    """
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")


HEADER = ("claim", "paper", "ours", "difference", "agrees", "within", "n")
NO_CLAIM = "The paper claims nothing that these numbers could be held against."


def write_claims(claims: Sequence[Claim], result: Mapping[str, Any], out: Path, *, setting: str = "") -> None:
    """Write claims.json and claims.md, which says what the numbers were made with, and how far that is the paper's."""
    rows = [asdict(claim) for claim in claims]
    write_atomically(out / "claims.json", (json.dumps(rows, indent=1, ensure_ascii=False) + "\n").encode())
    lines = [f"# {result['item']}: {result['title']}", ""]
    lines += [setting, ""] if setting else []
    lines += [f"| {' | '.join(HEADER)} |", "|---" * len(HEADER) + "|"] if claims else [NO_CLAIM]
    lines += [f"| {' | '.join(cell.replace('|', '∣') for cell in claim.cells())} |" for claim in claims]
    seeds = f"; seeds {', '.join(map(str, result['seeds']))}" if result.get("seeds") else ""
    lines += ["", f"{cost(result)}; {made_with(result)}{seeds}."]
    lines += ["", *(f"- {note}" for note in result.get("notes", []))]
    write_atomically(out / "claims.md", ("\n".join(lines).rstrip() + "\n").encode())


def accuracies(case: Mapping[str, Any], split: str = "test") -> list[float]:
    """Per cent right of each finished run of a case, after its last epoch."""
    runs = [run for run in case["runs"] if run["last"] is not None]
    return [100 * run["last"][split]["correct"] / run["last"][split]["total"] for run in runs]


def as_score(values: Sequence[float], *, lost: int = 0) -> str:
    """Mean ± sample deviation, in per cent, and how many runs diverged."""
    if not values:
        return "diverged"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread} %" + (f" ({lost} of {lost + len(values)} diverged)" if lost else "")


def lost(case: Mapping[str, Any]) -> int:
    """How many runs of a case diverged."""
    return len(case["runs"]) - len(accuracies(case))


def score_of(case: Mapping[str, Any]) -> str:
    """A case's score in words."""
    return as_score(accuracies(case), lost=lost(case))


def near(claim: str, case: Mapping[str, Any], mean: float, spread: float) -> Claim:
    """Ours against a mean of table 2: agrees when they differ by no more than :data:`NEAR`, to the printed digits."""
    return _against(claim, case, mean, spread, lambda gap: abs(gap) <= NEAR, f"{NEAR} points")


def beyond(claim: str, case: Mapping[str, Any], mean: float, spread: float, *, by: float) -> Claim:
    """Ours above a mean of table 2 by so many points or more."""
    words = f"{by:g} point{'' if by == 1 else 's'} above, or more"
    return _against(claim, case, mean, spread, lambda gap: gap >= by, words)


def _against(
    claim: str, case: Mapping[str, Any], mean: float, spread: float, holds: Callable[[float], bool], within: str
) -> Claim:
    """A row with a published mean.

    One seed decides nothing, nor do those that are left when others diverged, nor other images than the paper's.
    """
    ours, gone, others = accuracies(case), lost(case), other_images(case, "tab2")
    gap = statistics.fmean(ours) - mean if ours else None
    undecided = bool(ours) and (gone > 0 or len(ours) == 1 or bool(others))
    return Claim(
        claim=claim,
        paper=f"{mean:.2f} ± {spread:.2f} %",
        ours=score_of(case),
        difference=gap,
        agrees=None if undecided else gap is not None and holds(round(gap, 2)),
        within=within if not undecided else others or (SOME_LOST if gone else ONE_SEED),
        n=len(ours),
    )


def other_images(case: Mapping[str, Any], table: str) -> str:
    """Where a case was scored on fewer or more test images than the paper's table was, this in words; else nothing."""
    counts = {run["last"]["test"]["total"] for run in case["runs"] if run["last"] is not None}
    if counts <= {TEST_IMAGES[table]}:
        return ""
    return (
        f"scored on {' and '.join(f'{n:,}' for n in sorted(counts))} test images, the paper's on {TEST_IMAGES[table]:,}"
    )


def above(claim: str, better: Mapping[str, Any], worse: Mapping[str, Any], *, paper: str = "yes") -> Claim:
    """Whether one case scores above another by more than chance."""
    first, second = accuracies(better), accuracies(worse)
    gone = lost(better), lost(worse)
    shown = f"{score_of(better)} against {score_of(worse)}"
    n = min(len(first), len(second))
    if not n:
        whole = bool(first) != bool(second) and 0 in gone  # all of the one trained, and none of the other
        verdict = bool(first) if whole else None
        return Claim(claim=claim, paper=paper, ours=shown, agrees=verdict, within="whether it trains at all", n=n)
    gap, margin = statistics.fmean(first) - statistics.fmean(second), chance(better, worse)
    return Claim(
        claim=claim,
        paper=paper,
        ours=f"{signed(gap)} points ({shown})",
        agrees=None if any(gone) else decided(gap > 0, by_more=abs(gap) > margin, n=n),
        within=SOME_LOST if any(gone) else chance_in_words(margin, n),
        n=n,
    )


def decided(verdict: bool, *, by_more: bool, n: int) -> bool | None:
    """A verdict, where the gap is wider than chance and more than one seed says so."""
    return verdict if by_more and n > 1 else None


def chance_in_words(margin: float, n: int) -> str:
    """What a gap was held against."""
    return f"chance (95 %, by the seeds): {margin:.2f} points" if n > 1 else ONE_SEED


def chance(one: Mapping[str, Any], other: Mapping[str, Any], *, candidates: int = 1) -> float:
    """The gap between two cases' means that chance explains, in points: 95 % by Student's t from the seeds' scatter.

    Both are scored on the same test images, which are therefore no chance between them but for this: a gap of so many
    images is never surer than as many images that fell one way. So seeds that happen to agree do not make a small
    test set large. Where one of the two is the best of several ``candidates``, each of those has its share of the 5 %.
    """
    first, second = accuracies(one), accuracies(other)
    freedom, tail = len(first) + len(second) - 2, TAIL / candidates
    seeds = math.sqrt(squared_error(first) + squared_error(second))
    images: int = min(run["last"]["test"]["total"] for case in (one, other) for run in case["runs"] if run["last"])
    gap = abs(statistics.fmean(first) - statistics.fmean(second)) / 100
    fallen = 100 * statistics.NormalDist().inv_cdf(1 - tail) * math.sqrt(gap * (1 - gap) / images)
    return max(student_t(freedom, tail) * seeds, fallen)


def squared_error(values: Sequence[float]) -> float:
    """The square of the mean's standard error; 0 for one value."""
    return statistics.variance(values) / len(values) if len(values) > 1 else 0.0
