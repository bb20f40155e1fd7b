"""Curves over epochs and dots by case: matplotlib SVG images that follow the color scheme of the page."""

import itertools
import math
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Literal, NamedTuple

from equalbits._plotting import METHOD_COLORS, Axes, new_figure

#: Readable on white and on near-black. The second tuple leaves out what resembles a method's color.
_PALETTE = ("#3b78e0", "#e07f1f", "#2a9d6f", "#d04a66", "#8d68d8", "#17a2b8", "#b58a00", "#808793")
_BESIDE_METHODS = ("#2a9d6f", "#d04a66", "#8d68d8", "#17a2b8", "#b58a00")
_DASHES = ("", "6 4", "2 3", "10 3 2 3")
_LONGEST = 48  # letters of a label
_TEXT, _GRID, _NAVY = "#5b6470", "#d8dde4", METHOD_COLORS["bihalf"]
_DARK = (
    "<style>@media (prefers-color-scheme: dark) { text { fill: #9aa4b2 !important }"
    f' [style*="stroke: {_GRID}"] {{ stroke: #343b45 !important }}'
    f' [style*="stroke: {_NAVY}"] {{ stroke: #8fb0f5 !important }} }}</style>'
)


class Curve(NamedTuple):
    """One line of a chart. Curves of a group share a color and a legend entry."""

    group: str
    points: Sequence[tuple[float, float]]


class LineStyle(NamedTuple):
    """Color and SVG dash pattern of a group; the pattern is "" for a solid line."""

    color: str
    dashes: str


class Chart(NamedTuple):
    """A drawn chart: an image as data URI, the text that replaces it, and the legend."""

    title: str
    image: str
    alt: str
    legend: dict[str, LineStyle]


def line_chart(title: str, curves: Sequence[Curve], *, unit: str = "", digits: int = 2) -> Chart | None:
    """Draw curves over epochs; None where no curve has two finite points."""
    finite = [Curve(each.group, [p for p in each.points if all(map(math.isfinite, p))]) for each in curves]
    curves = [curve for curve in finite if curve.points]
    if all(len(curve.points) < 2 for curve in curves):
        return None
    styles = line_styles(list(dict.fromkeys(curve.group for curve in curves)))
    ends = []
    for group in itertools.islice(styles, 12):
        last = [curve.points[-1][1] for curve in curves if curve.group == group]
        ends.append(f"{group} ends at {sum(last) / len(last):,.{digits}f}{unit}")

    def draw(axes: Axes) -> None:
        for curve in curves:
            color, dashes = styles[curve.group]
            line = (0, [float(length) for length in dashes.split()]) if dashes else "-"
            marker = "o" if len(curve.points) == 1 else None
            axes.plot(*zip(*curve.points, strict=True), color=color, linestyle=line, marker=marker)
        axes.set_xlabel("epoch", color=_TEXT)
        axes.locator_params(axis="x", integer=True)
        axes.yaxis.get_major_formatter().set_useOffset(False)

    image = _as_uri(_drawn(draw, height=3.0, grid="y"), "svg")
    return Chart(title, image, f"{title}: {'; '.join(ends)}", styles)


def data_uri(picture: Path) -> str:
    """Return an image file as data URI. As an image, an SVG can neither run scripts nor load anything."""
    if picture.is_symlink() or not picture.is_file():  # a link may lead anywhere, and a pipe would wait for a writer
        raise ValueError(f"{picture.name} is a link or no file: copy the picture there, or remove it")
    return _as_uri(picture.read_bytes(), picture.suffix[1:])


def suits_dark(picture: Path) -> bool:
    """Return whether a picture follows the color scheme of the page; others get a white background."""
    return picture.suffix == ".svg" and b"prefers-color-scheme: dark" in picture.read_bytes()


def _as_uri(content: bytes, kind: str) -> str:
    mime = {"svg": "image/svg+xml", "png": "image/png"}[kind]
    return f"data:{mime};base64,{b64encode(content).decode()}"


def line_styles(groups: Sequence[str]) -> dict[str, LineStyle]:
    """Return a style per group: the method's color where the group names one; a color's second user is dashed.

    >>> [tuple(style) for style in line_styles(["weights/sign", "bihalf", "activations/sign"]).values()]
    [('#8a8a8a', ''), ('#1f3b73', ''), ('#8a8a8a', '6 4')]
    """
    methods = {group: next((part for part in group.split("/") if part in METHOD_COLORS), None) for group in groups}
    free = itertools.cycle(_BESIDE_METHODS if any(methods.values()) else _PALETTE)
    uses, found = Counter[str](), dict[str, LineStyle]()
    for group, method in methods.items():
        color = METHOD_COLORS[method] if method else next(free)
        found[group] = LineStyle(color, _DASHES[uses[color] % len(_DASHES)])
        uses[color] += 1
    return found


def dot_chart(title: str, cases: Mapping[str, Sequence[float]]) -> Chart | None:
    """Draw a row per case, a dot per value and a line at the mean; None for less than two cases."""
    finite = {name: [value for value in values if math.isfinite(value)] for name, values in cases.items()}
    kept = {name: values for name, values in finite.items() if values}
    if len(kept) < 2:
        return None
    styles = line_styles(list(kept))
    shown = {name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…": values for name, values in kept.items()}

    def draw(axes: Axes) -> None:
        for row, (values, style) in enumerate(zip(kept.values(), styles.values(), strict=True)):
            axes.plot(values, [row] * len(values), "o", color=style.color, markersize=5, alpha=0.75)
            axes.plot([sum(values) / len(values)] * 2, [row - 0.3, row + 0.3], color=style.color, linewidth=2)
        axes.set_yticks(range(len(shown)), list(shown))
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.xaxis.get_major_formatter().set_useOffset(False)
        axes.set_xlabel("%", color=_TEXT)

    words = [f"{name} {sum(values) / len(values):.2f} % (n = {len(values)})" for name, values in kept.items()]
    image = _as_uri(_drawn(draw, height=0.9 + 0.3 * len(kept), grid="x"), "svg")
    return Chart(title, image, f"{title}. Means: {'; '.join(words[:12])}", {})


def _drawn(draw: Callable[[Axes], None], *, height: float, grid: Literal["x", "y"]) -> bytes:
    """Return the SVG of one set of axes without a frame, whose colors follow the scheme of the page."""
    from matplotlib import rc_context

    settings = {"svg.fonttype": "none", "svg.hashsalt": "equalbits", "font.size": 9, "text.parse_math": False}
    with rc_context(settings):
        figure = new_figure(5.2, height)
        axes = figure.add_subplot()
        draw(axes)
        axes.tick_params(labelcolor=_TEXT, length=0)
        axes.grid(axis=grid, color=_GRID)
        axes.set_axisbelow(True)
        axes.spines[:].set_visible(False)
        content = BytesIO()
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
    return content.getvalue().replace(b"<defs>", f"{_DARK}<defs>".encode(), 1)
