"""Curves over epochs as inline SVG: ink that follows the page's light or dark, a title on whatever is pointed at."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from equalbits._plotting import COLOURS
from equalbits.report.html import Html, join, tag

#: Seen well on white and on near-black.
PALETTE = ("#3b78e0", "#e07f1f", "#2a9d6f", "#d04a66", "#8d68d8", "#17a2b8", "#b58a00", "#808793")
#: What of it is like no method's colour.
_BESIDE_METHODS = ("#2a9d6f", "#d04a66", "#8d68d8", "#17a2b8", "#b58a00")
#: Hardly seen on near-black: the page lightens what has this class.
_NAVY = {"#1f3b73": "navy"}
_DASHES = (None, "6 4", "2 3", "10 3 2 3")
_WIDTH, _HEIGHT = 500.0, 290.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 12.0, 12.0, 44.0
_MOST_DOTS = 1500


@dataclass(frozen=True)
class Curve:
    """A line: its group gives it its colour and its place in the legend, its name is told when it is pointed at."""

    group: str
    name: str
    points: Sequence[tuple[float, float]]


def chart(title: str, curves: Sequence[Curve], *, unit: str, x: str = "epoch", digits: int = 2) -> Html:
    """The curves in one frame, with a legend; empty where none has two points to join."""
    curves = [Curve(c.group, c.name, [p for p in c.points if all(map(math.isfinite, p))]) for c in curves]
    curves = [curve for curve in curves if curve.points]
    if all(len(curve.points) < 2 for curve in curves):
        return Html("")
    groups = list(dict.fromkeys(curve.group for curve in curves))
    frame = _Frame.around([point for curve in curves for point in curve.points])
    dots, inks = sum(len(curve.points) for curve in curves) <= _MOST_DOTS, inks_of(groups)
    drawn = [_drawn(curve, frame, inks[curve.group], unit, x, digits, dots) for curve in curves]
    lasts = "; ".join(_last(group, curves, unit, digits) for group in groups[:12])
    label = f"{title}: {lasts}"
    svg = tag(
        "svg", *_axes(frame, x), *drawn,
        class_="chart", viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}", role="img", aria_label=label,
    )  # fmt: skip
    legend = tag("ul", *(_key(group, inks[group]) for group in groups), class_="legend")
    return tag("figure", tag("figcaption", title), svg, legend if len(groups) > 1 else "")


@dataclass(frozen=True)
class Ink:
    """How a group's lines are drawn."""

    colour: str
    dashes: str | None

    @property
    def shade(self) -> str | None:
        """The class by which the page changes the colour where it is dark."""
        return _NAVY.get(self.colour)


def inks_of(groups: Sequence[str]) -> dict[str, Ink]:
    """A colour for each group: that of its method in every picture, where one is named; a second of a colour is dashed.

    >>> [(ink.colour, ink.dashes) for ink in inks_of(["weights/sign", "bihalf", "activations/sign"]).values()]
    [('#8a8a8a', None), ('#1f3b73', None), ('#8a8a8a', '6 4')]
    """
    methods = {group: next((part for part in group.split("/") if part in COLOURS), None) for group in groups}
    others = _BESIDE_METHODS if any(methods.values()) else PALETTE
    found: dict[str, Ink] = {}
    met, free = Counter[str](), itertools.cycle(others)
    for group, method in methods.items():
        colour = COLOURS[method] if method else next(free)
        found[group] = Ink(colour, _DASHES[met[colour] % len(_DASHES)])
        met[colour] += 1
    return found


@dataclass(frozen=True)
class _Frame:
    """What is seen: the ends of both axes."""

    left: float
    right: float
    bottom: float
    top: float

    @classmethod
    def around(cls, points: Sequence[tuple[float, float]]) -> "_Frame":
        across, up = [at for at, _ in points], [value for _, value in points]
        margin = 0.06 * (max(up) - min(up)) or 0.5 * abs(up[0]) or 1.0
        wide = 0.0 if max(across) > min(across) else 0.5
        return cls(min(across) - wide, max(across) + wide, min(up) - margin, max(up) + margin)

    def place(self, at: float, value: float) -> tuple[float, float]:
        across = _LEFT + (at - self.left) / (self.right - self.left) * (_WIDTH - _LEFT - _RIGHT)
        down = _HEIGHT - _BOTTOM - (value - self.bottom) / (self.top - self.bottom) * (_HEIGHT - _TOP - _BOTTOM)
        return across, down


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between two ends.

    >>> ticks(0.13, 0.87)
    [0.2, 0.4, 0.6, 0.8]
    >>> ticks(1, 10)
    [2.0, 4.0, 6.0, 8.0, 10.0]
    """
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((power * some for some in (1, 2, 5) if power * some >= rough), power * 10)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _axes(frame: _Frame, x: str) -> list[Html]:
    found = []
    heights = ticks(frame.bottom, frame.top)
    decimals = max(len(f"{value:.6f}".rstrip("0").partition(".")[2]) for value in heights)
    for value in heights:
        _, down = frame.place(frame.left, value)
        found.append(_line(_LEFT, down, _WIDTH - _RIGHT, down))
        found.append(tag("text", f"{value:,.{decimals}f}", x=f"{_LEFT - 8:g}", y=f"{down + 5:.1f}", text_anchor="end"))
    for at in ticks(frame.left, frame.right):
        if at == int(at):  # there is no half an epoch
            across, _ = frame.place(at, frame.bottom)
            found.append(tag("text", f"{at:g}", x=f"{across:.1f}", y=f"{_HEIGHT - 24:g}", text_anchor="middle"))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    found.append(tag("text", x, x=f"{middle:g}", y=f"{_HEIGHT - 4:g}", text_anchor="middle"))
    return found


def _line(x1: float, y1: float, x2: float, y2: float) -> Html:
    return tag("line", class_="grid", x1=f"{x1:g}", y1=f"{y1:.1f}", x2=f"{x2:g}", y2=f"{y2:.1f}")


def _drawn(curve: Curve, frame: _Frame, ink: Ink, unit: str, x: str, digits: int, dots: bool) -> Html:
    places = [frame.place(*point) for point in curve.points]
    path = " ".join(f"{across:.1f},{down:.1f}" for across, down in places)
    named = tag("title", curve.name)
    parts = [tag("polyline", named, points=path, stroke=ink.colour, stroke_dasharray=ink.dashes, class_=ink.shade)]
    if dots or len(places) == 1:
        seen = "1" if len(places) == 1 else None  # a lone point is no line
        parts += [
            tag(
                "circle", tag("title", f"{curve.name}, {x} {at:g}: {value:,.{digits}f}{unit}"),
                class_=f"dot {ink.shade or ''}".rstrip(), cx=f"{across:.1f}", cy=f"{down:.1f}", r="5", fill=ink.colour,
                style=seen and "fill-opacity:1",
            )
            for (at, value), (across, down) in zip(curve.points, places, strict=True)
        ]  # fmt: skip
    return join(parts)


def _last(group: str, curves: Sequence[Curve], unit: str, digits: int) -> str:
    ends = [curve.points[-1][1] for curve in curves if curve.group == group]
    return f"{group} ends at {sum(ends) / len(ends):,.{digits}f}{unit}"


def _key(group: str, ink: Ink) -> Html:
    line = tag(
        "line", x1="0", y1="5", x2="26", y2="5",
        stroke=ink.colour, stroke_width="3", stroke_dasharray=ink.dashes, class_=ink.shade,
    )  # fmt: skip
    return tag("li", tag("svg", line, viewBox="0 0 26 10", aria_hidden="true"), group)
