"""Compare a few seeds per method: Welch's and one-sample t, Holm's correction, equivalence (TOST), and Kendall's τ.

Two methods rarely have the same variance, and five seeds are few: Welch's t assumes neither equal variances nor equal
counts. A table makes many comparisons at once, so its p values are corrected together by Holm's procedure. A
difference that is not significant is no proof of equality; that is what the equivalence test is for.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


def student_t(freedom: float) -> float:
    """Return the bound that |t| exceeds with probability 5 %, as of a 95 % interval; 0 without a degree of freedom.

    >>> round(student_t(2), 2), round(student_t(20), 2)
    (4.3, 2.09)
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975)) if freedom > 0 else 0.0


@dataclass(frozen=True)
class Sample:
    """Mean, sample standard deviation (n − 1) and count of some scores; published ones are given as such."""

    mean: float
    std: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Sample":
        """Summarise scores; the deviation of a single one is 0, and :func:`welch` then tests nothing."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, len(values))


@dataclass(frozen=True)
class Difference:
    """Difference of two means with its 95 % confidence interval and two-sided p value."""

    mean: float
    low: float
    high: float
    p: float


def welch(first: Sample, second: Sample) -> Difference | None:
    """Test whether two means differ, by Welch's t; None where a sample has fewer than two values.

    >>> found = welch(Sample(79.34, 0.17, 5), Sample(77.75, 0.27, 5))
    >>> f"{found.mean:.2f} [{found.low:.2f}, {found.high:.2f}], p = {found.p:.0e}"
    '1.59 [1.25, 1.93], p = 1e-05'
    """
    if min(first.n, second.n) < 2:
        return None
    return _t_test(first.mean - second.mean, *_error_and_freedom(first, second))


def one_sample(sample: Sample, value: float) -> Difference | None:
    """Test whether a mean differs from an exact value, by Student's t; None where there are fewer than two values.

    >>> found = one_sample(Sample(79.34, 0.17, 5), 79.0)
    >>> f"{found.mean:.2f} [{found.low:.2f}, {found.high:.2f}], p = {found.p:.2g}"
    '0.34 [0.13, 0.55], p = 0.011'
    """
    if sample.n < 2:
        return None
    return _t_test(sample.mean - value, math.sqrt(sample.std**2 / sample.n), sample.n - 1)


def equivalence(first: Sample, second: Sample, margin: float) -> float | None:
    """Return the p value of two one-sided tests (TOST) that two means differ by less than ``margin``.

    A small p says that they are equivalent within the margin; None where a sample has fewer than two values.

    >>> round(equivalence(Sample(87.70, 0.23, 5), Sample(87.20, 0.26, 5), 0.3), 3)
    0.883
    """
    if min(first.n, second.n) < 2:
        return None
    gap, (error, freedom) = abs(first.mean - second.mean), _error_and_freedom(first, second)
    if error == 0:
        return 0.0 if gap < margin else 1.0
    return _t_tail((margin - gap) / error, freedom)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p values of one table by Holm's step-down procedure, in the order given.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, running = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = running
    return adjusted


def kendall(values: Sequence[float]) -> tuple[float, float]:
    """Return Kendall's τ of a series with time, −1 where it only falls, and its two-sided p value.

    >>> kendall([4.0, 3.0, 2.0, 1.0])[0]
    -1.0
    """
    from scipy.stats import kendalltau

    found = kendalltau(range(len(values)), values)
    return float(found.statistic), float(found.pvalue)


def _t_test(gap: float, error: float, freedom: float) -> Difference:
    """Return a difference with the interval and p value of Student's t; exact without a standard error."""
    if error == 0:
        return Difference(gap, gap, gap, 1.0 if gap == 0 else 0.0)
    margin = error * student_t(freedom)
    return Difference(gap, gap - margin, gap + margin, 2 * _t_tail(abs(gap) / error, freedom))


def _error_and_freedom(first: Sample, second: Sample) -> tuple[float, float]:
    """Return the standard error of the difference, and Welch–Satterthwaite's degrees of freedom, or 0 for both."""
    squares = [sample.std**2 / sample.n for sample in (first, second)]
    if not any(squares):
        return 0.0, 0.0
    parts = (square**2 / (sample.n - 1) for square, sample in zip(squares, (first, second), strict=True))
    return math.sqrt(sum(squares)), sum(squares) ** 2 / sum(parts)


def _t_tail(t: float, freedom: float) -> float:
    """Probability that Student's t exceeds ``t``."""
    from scipy.special import stdtr

    return float(stdtr(freedom, -t))
