"""Student's t distribution, for confidence intervals over few seeds."""

import math

#: One-sided tail of a two-sided 95 % interval.
TAIL = 0.025


def student_t(freedom: int, tail: float = TAIL) -> float:
    """Return the value that t exceeds with probability ``tail``; 0 without a degree of freedom.

    >>> round(student_t(2), 2), round(student_t(20), 2), round(student_t(4, 0.0025), 2)
    (4.3, 2.09, 5.6)
    """
    if freedom < 1:
        return 0.0
    low, high = 0.0, math.pi / 2
    for _ in range(60):  # bisection to full float precision
        middle = (low + high) / 2
        low, high = (middle, high) if _probability_within(middle, freedom) < 1 - 2 * tail else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _probability_within(angle: float, freedom: int) -> float:
    """Return P(|t| < √freedom · tan(angle)) as a finite sum (Abramowitz and Stegun, 26.7.3–4)."""
    odd = freedom % 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= (power + 1) / (power + 2) * math.cos(angle) ** 2
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
