"""What a setting may be, said where it is declared: checked at birth, and told to whoever asks.

A rule stands in the field's type, ``lr: Annotated[float, Within(above=0)] = 0.1``, so that the check and the page of
settings read the same words. A plain text in its place is told and not checked: others hold the names it speaks of.
"""

import math
from typing import Any, get_type_hints


class OneOf:
    """One of a few words.

    >>> OneOf("epoch", "step").check("schedule.per", "day")
    Traceback (most recent call last):
    ValueError: schedule.per='day' is not known: choose one of epoch, step
    """

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def check(self, name: str, value: str) -> None:
        """Refuse a word that is not among them."""
        if value not in self.choices:
            raise ValueError(f"{name}={value!r} is not known: choose one of {self}")

    def __str__(self) -> str:
        return ", ".join(self.choices)


class Within:
    """A finite number within its bounds: ``above``, ``at_least``, ``below``, ``at_most``.

    >>> Within(at_least=0, below=1).check("optimizer.momentum", 1.5)
    Traceback (most recent call last):
    ValueError: optimizer.momentum=1.5 must be at least 0 and below 1
    """

    def __init__(self, **bounds: float) -> None:
        self.bounds = bounds

    def check(self, name: str, value: float) -> None:
        """Refuse a number outside."""
        holds: dict[str, Any] = {
            "above": lambda bound: value > bound,
            "at_least": lambda bound: value >= bound,
            "below": lambda bound: value < bound,
            "at_most": lambda bound: value <= bound,
        }
        finite = isinstance(value, int) or math.isfinite(value)  # a whole number may be too long for a float
        if not (finite and all(holds[rule](bound) for rule, bound in self.bounds.items())):
            raise ValueError(f"{name}={value} must be {'' if finite else 'a finite number, '}{self}")

    def __str__(self) -> str:
        return " and ".join(f"{rule.replace('_', ' ')} {_shown(bound)}" for rule, bound in self.bounds.items())


def _shown(bound: float) -> str:
    """A bound, short: 2**63 as such."""
    power = int(bound).bit_length() - 1
    return f"2**{power}" if power >= 16 and bound == 2**power else f"{bound:g}"


def rules_of(kind: type) -> dict[str, OneOf | Within | str]:
    """The rule of each field that has one."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}


def check_settings(settings: Any, group: str = "") -> None:
    """Refuse settings of which one breaks its rule; of a list each part is held to it. ``group`` goes before names."""
    for name, rule in rules_of(type(settings)).items():
        value = getattr(settings, name)
        for part in value if isinstance(value, tuple) else (value,):
            if not isinstance(rule, str):
                rule.check(group + name, part)
