"""Student's t, for confidence intervals over few seeds."""

#: One-sided tail of a two-sided 95 % interval.
TAIL = 0.025


def student_t(freedom: float, tail: float = TAIL) -> float:
    """Return the value that t exceeds with probability ``tail``; 0 without a degree of freedom.

    >>> round(student_t(2), 2), round(student_t(20), 2), round(student_t(4, 0.0025), 2)
    (4.3, 2.09, 5.6)
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1 - tail)) if freedom > 0 else 0.0
