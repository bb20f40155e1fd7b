"""The settings an operation can have: what is allowed, and the short form they take in a file.

A setting is kept whole in memory (``(1, 1)``) and short in the file (``1``). Each kind below reads either, and refuses
anything else in one line.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: The largest whole number a setting may be: far above any network, far below any overflow.
LIMIT = 1 << 20
#: The largest real number a setting may be: float32's.
LARGEST = 2.0**128 - 2.0**104

Value = int | float | bool | None | tuple[int, ...]


@dataclass(frozen=True)
class Setting:
    """One setting of an operation: how it is read, and what it is when nothing is said, unless it must be said."""

    read: Callable[[Any], Value]
    default: Value = None
    required: bool = False

    def shorten(self, value: Value) -> Any:
        """The form it takes in a file: one number where it may stand for several.

        >>> Setting(pair).shorten((1, 1)), Setting(counts).shorten((1, 1))
        (1, [1, 1])
        """
        if isinstance(value, tuple):
            return value[0] if self.read in (pair, borders) and len(set(value)) == 1 else list(value)
        return value


def count(value: Any) -> int:
    """A whole number from 1.

    >>> count(3)
    3
    """
    if type(value) is not int or not 1 <= value <= LIMIT:
        raise ValueError(f"is {_short(value)}: it must be a whole number from 1 to {LIMIT}")
    return value


def pair(value: Any) -> tuple[int, ...]:
    """Height and width, from 1; one number stands for both.

    >>> pair(3), pair([1, 7])
    ((3, 3), (1, 7))
    """
    return _several(value, size=2, least=1)


def borders(value: Any) -> tuple[int, ...]:
    """Top, bottom, left and right, from 0; one number stands for all four.

    >>> borders(1), borders([0, 1, 0, 1])
    ((1, 1, 1, 1), (0, 1, 0, 1))
    """
    return _several(value, size=4, least=0)


def counts(value: Any) -> tuple[int, ...]:
    """Whole numbers from 0, as many as the value has axes; a number by itself is one.

    >>> counts([3, 0]), counts(3)
    ((3, 0), (3,))
    """
    return _several([value] if type(value) is int else value, size=None, least=0)


def flag(value: Any) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise ValueError(f"is {_short(value)}: it must be true or false")
    return value


def number(value: Any) -> float:
    """A real number that float32 can hold."""
    if type(value) not in (int, float) or not abs(value) <= LARGEST:
        raise ValueError(f"is {_short(value)}: it must be a finite number, as float32 counts")
    return float(value)


def bound(value: Any) -> float | None:
    """A real number, or none."""
    return None if value is None else number(value)


def share(value: Any) -> float | None:
    """A number from 0 to 1, or none."""
    if value is not None and not 0 <= number(value) <= 1:
        raise ValueError(f"is {_short(value)}: it is a share, and must lie in [0, 1]")
    return bound(value)


def input_bits(value: Any) -> int:
    """How many bits an input keeps: 32, all of them, or 8.

    >>> input_bits(8)
    8
    """
    if type(value) is not int or value not in (8, 32):
        raise ValueError(f"is {_short(value)}: it must be 32, or 8 for an input that is rounded")
    return value


def _several(value: Any, *, size: int | None, least: int) -> tuple[int, ...]:
    if type(value) is int and size is not None:
        value = [value] * size
    if not isinstance(value, list | tuple) or len(value) > 8 or (size is not None and len(value) != size):
        raise ValueError(f"is {_short(value)}: it must be {size or 'up to eight'} whole numbers")
    for item in value:
        if type(item) is not int or not least <= item <= LIMIT:
            raise ValueError(f"is {_short(value)}: each must be a whole number from {least} to {LIMIT}")
    return tuple(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
