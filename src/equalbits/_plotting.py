"""The style all pictures share: colours by method, figures without a screen, PNG and SVG side by side."""

import textwrap
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from equalbits._extras import install_hint
from equalbits._files import write_atomically

#: Letters of a title to an inch.
_LETTERS = 11
UP, DOWN, GAP = "#1f3b73", "#29a7c9", "#d1495b"
METHODS = {
    "sign": "Sign",
    "irnet-stable": "IR-Net (stable)",
    "irnet-identity": "IR-Net (identity)",
    "irnet-through": "IR-Net (through)",
    "irnet": "IR-Net",
    "bihalf": "Bi-half",
    "bits": "Bop",
    "pruned-sign": "Sign, smallest weights cut",
    "pruned-sign-slow": "Sign, smallest weights cut, a tenth of the rate",
    "pruned-bihalf": "Bi-half, middle ranks cut",
    "pruned-bihalf-score": "Bi-half on learned masks",
    "mpt": "MPT, frozen signs",
}
COLOURS = {
    "sign": "#8a8a8a",
    "irnet-stable": "#e08e2b",
    "irnet-identity": "#a4501e",
    "irnet-through": "#c2b04a",
    "irnet": "#e08e2b",
    "bihalf": "#1f3b73",
    "bits": "#5b8c5a",
    "pruned-sign": "#8a8a8a",
    "pruned-sign-slow": "#d8a24a",
    "pruned-bihalf": "#1f3b73",
    "pruned-bihalf-score": "#29a7c9",
    "mpt": "#d1495b",
}
_SHADES = ("#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08519c", "#08306b")


def name_of(method: str) -> str:
    """A method's name in a table or under a bar; one without a name of its own keeps the quantizer's.

    >>> name_of("bihalf"), name_of("bihalf:p_pos=0.4")
    ('Bi-half', 'bihalf:p_pos=0.4')
    """
    return METHODS.get(method, method)


def colour_of(method: str) -> str:
    """A method's colour, the same in every picture; one without is green."""
    return COLOURS.get(method, COLOURS["bits"])


def shades(count: int) -> list[Any]:
    """A blue for each step of a grid, darker from few to many."""
    if count <= len(_SHADES):
        return [_SHADES[-1 - number * (len(_SHADES) - 1) // max(count - 1, 1)] for number in reversed(range(count))]
    from matplotlib import colormaps

    return [colormaps["Blues"](0.35 + 0.65 * number / (count - 1)) for number in range(count)]


def heading(result: Mapping[str, Any], title: str = "") -> str:
    """A picture's title; a quick one says that it is not the paper's setting."""
    return f"{title or result['title']}{' (quick: small nets, Fashion-MNIST)' if result['quick'] else ''}"


def new_figure(width: float, height: float, *, title: str = "") -> Any:
    """An empty figure, in inches, its title in as many lines as it needs; matplotlib is asked for only here."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError(f"plotting needs matplotlib: {install_hint('plot')}; the numbers are kept") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    if title:
        figure.suptitle(textwrap.fill(title, int(_LETTERS * width), break_on_hyphens=False))
    return figure


def panel(figure: Any, place: Any, *, x: str, y: str, title: str = "", **settings: Any) -> Any:
    """Axes at a place of a grid (``(rows, columns, number)`` or a cell), named and with a faint grid."""
    axes = figure.add_subplot(*place, **settings) if isinstance(place, tuple) else figure.add_subplot(place, **settings)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title)
    axes.grid(alpha=0.25)
    return axes


def legend(axes: Any, **settings: Any) -> None:
    """A legend without a frame, where something was drawn under a name."""
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, **settings)


def mean_and_range(axes: Any, x: Sequence[float], values: Sequence[Sequence[float]], **settings: Any) -> None:
    """A line through the means, and a band from the least to the most; places without values are left out."""
    kept = [(at, some) for at, some in zip(x, values, strict=True) if some]
    if not kept:
        return
    places = [at for at, _ in kept]
    (line,) = axes.plot(places, [sum(some) / len(some) for _, some in kept], marker="o", markersize=3.5, **settings)
    least, most = [min(some) for _, some in kept], [max(some) for _, some in kept]
    axes.fill_between(places, least, most, color=line.get_color(), alpha=0.15, linewidth=0)


def save(figure: Any, out: Path, name: str, *, dpi: int = 110) -> None:
    """Write the figure as PNG and SVG, each whole or not at all; the same numbers give the same SVG."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": name}):
        for kind, settings in (("png", {"dpi": dpi}), ("svg", {"metadata": {"Date": None}})):
            drawn = BytesIO()
            figure.savefig(drawn, format=kind, **settings)
            write_atomically(out / f"{name}.{kind}", drawn.getvalue())
