"""What the paper says beside what was measured: a row per claim, as Markdown and JSON."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from equalbits.training.checkpoint import write_atomically

_WORDS = {True: "yes", False: "no", None: "not decided"}
_ONE_SEED = "one seed each decides nothing"

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
        gap = "–" if self.difference is None else f"{self.difference:+.2f}".replace("-", "−")
        return (self.claim, self.paper, self.ours, gap, _WORDS[self.agrees], self.within, str(self.n))


HEADER = ("claim", "paper", "ours", "difference", "agrees", "within", "n")


def write_claims(claims: Sequence[Claim], result: Mapping[str, Any], out: Path) -> None:
    """Write claims.json and claims.md, which says what the numbers were made with."""
    rows = [asdict(claim) for claim in claims]
    write_atomically(out / "claims.json", (json.dumps(rows, indent=1, ensure_ascii=False) + "\n").encode())
    lines = [f"# {result['item']}: {result['title']}", ""]
    if result["quick"]:
        lines += ["A quick measurement: small nets on the embedded Fashion-MNIST, not the paper's setting.", ""]
    lines += [f"| {' | '.join(HEADER)} |", "|---" * len(HEADER) + "|"]
    lines += [f"| {' | '.join(cell.replace('|', '∣') for cell in claim.cells())} |" for claim in claims]
    versions = " · ".join(f"{name} {version}" for name, version in result["versions"].items())
    seeds = f"; seeds {', '.join(map(str, result['seeds']))}" if result.get("seeds") else ""
    lines += ["", f"{result['device']}; {versions}{seeds}; {result['seconds']:.0f} s."]
    lines += ["", *(f"- {note}" for note in result.get("notes", []))]
    write_atomically(out / "claims.md", ("\n".join(lines).rstrip() + "\n").encode())


def accuracies(case: Mapping[str, Any], split: str = "test") -> list[float]:
    """Per cent right of each finished run of a case, after its last epoch."""
    runs = [run for run in case["runs"] if run["last"] is not None]
    return [100 * run["last"][split]["correct"] / run["last"][split]["total"] for run in runs]


def as_score(values: Sequence[float]) -> str:
    """Mean ± sample deviation, in per cent."""
    if not values:
        return "diverged"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread} %"


def near(claim: str, case: Mapping[str, Any], mean: float, spread: float) -> Claim:
    """Ours against a published mean: agrees when they differ by no more than :data:`NEAR`, to the printed digits."""
    ours = accuracies(case)
    gap = statistics.fmean(ours) - mean if ours else None
    return Claim(
        claim=claim,
        paper=f"{mean:.2f} ± {spread:.2f} %",
        ours=as_score(ours),
        difference=gap,
        agrees=gap is not None and round(abs(gap), 2) <= NEAR,
        within=f"{NEAR} points",
        n=len(ours),
    )


def beyond(claim: str, case: Mapping[str, Any], mean: float, spread: float, *, by: float) -> Claim:
    """Ours above a published mean by so many points or more; with one seed that decides nothing."""
    ours = accuracies(case)
    gap = statistics.fmean(ours) - mean if ours else None
    return Claim(
        claim=claim,
        paper=f"{mean:.2f} ± {spread:.2f} %",
        ours=as_score(ours),
        difference=gap,
        agrees=None if len(ours) == 1 else gap is not None and round(gap, 2) >= by,
        within=f"{by:g} point{'' if by == 1 else 's'} above, or more" if len(ours) != 1 else _ONE_SEED,
        n=len(ours),
    )


def above(claim: str, better: Mapping[str, Any], worse: Mapping[str, Any], *, paper: str = "yes") -> Claim:
    """Whether one case scores above another by more than chance: two standard errors, with two seeds or more."""
    first, second = accuracies(better), accuracies(worse)
    n = min(len(first), len(second))
    if not n:
        ours = f"{as_score(first)} against {as_score(second)}"
        verdict = bool(first) if first or second else None
        return Claim(claim=claim, paper=paper, ours=ours, agrees=verdict, within="whether it trains at all", n=n)
    gap, margin = statistics.fmean(first) - statistics.fmean(second), two_errors(better, worse)
    return Claim(
        claim=claim,
        paper=paper,
        ours=f"{gap:+.2f} points ({as_score(first)} against {as_score(second)})",
        agrees=decided(gap > 0, by_more=abs(gap) > margin, n=n),
        within=two_errors_in_words(margin, n),
        n=n,
    )


def decided(verdict: bool, *, by_more: bool, n: int) -> bool | None:
    """A verdict, where the gap is wider than chance and more than one seed says so."""
    return verdict if by_more and n > 1 else None


def two_errors_in_words(margin: float, n: int) -> str:
    """What a gap was held against."""
    return f"two standard errors, {margin:.2f} points" if n > 1 else _ONE_SEED


def two_errors(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Two standard errors of the difference of two cases' means, in points.

    From the scatter of the seeds, and never less than the scatter of the test images allows: seeds that happen to
    agree do not make a small test set large.
    """
    return 2 * math.sqrt(_squared_error(one) + _squared_error(other))


def _squared_error(case: Mapping[str, Any]) -> float:
    values = accuracies(case)
    share = statistics.fmean(values) / 100
    images: int = next(run["last"]["test"]["total"] for run in case["runs"] if run["last"] is not None)
    of_images = 1e4 * share * (1 - share) / images
    return max(statistics.variance(values) / len(values) if len(values) > 1 else 0.0, of_images)
