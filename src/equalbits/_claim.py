"""A claim of the paper beside our measurement: one row of claims.json, as text for tables."""

from dataclasses import dataclass

HEADER = ("claim", "paper", "ours", "difference", "agrees", "decided by", "n")
_VERDICTS = {True: "yes", False: "no", None: "not decided"}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim. ``agrees`` is None where the numbers do not decide it; ``n`` counts our runs or nets.

    ``paper`` is the paper's value in its words; ``difference`` is ours minus the paper's where both are numbers. ``p``
    is of the test that decides the row, and ``p_equivalent`` of the equivalence test beside it, before correction.
    ``n_other`` counts the runs of the second case of a comparison.
    """

    claim: str
    paper: str
    ours: str
    agrees: bool | None
    decided_by: str
    n: int
    n_other: int | None = None
    difference: float | None = None
    p: float | None = None
    p_equivalent: float | None = None

    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        gap = "–" if self.difference is None else signed(self.difference)
        n = str(self.n) if self.n_other in (None, self.n) else f"{self.n} and {self.n_other}"
        return self.claim, self.paper, self.ours, gap, _VERDICTS[self.agrees], self.decided_by, n


def signed(value: float, digits: int = 2) -> str:
    """Format a number with its sign; a value that rounds to 0 is positive.

    >>> signed(-1.5), signed(0.25), signed(-0.001)
    ('−1.50', '+0.25', '+0.00')
    """
    return f"{value:+z.{digits}f}".replace("-", "−")
