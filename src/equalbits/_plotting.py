"""Matplotlib figures in one style: a color and a name per method, saved as PNG and SVG without a display."""

import sys
import textwrap
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equalbits._extras import install_hint
from equalbits._files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
    from matplotlib.gridspec import SubplotSpec as SubplotSpec
else:  # matplotlib is optional, and slow to import
    Axes = Figure = SubplotSpec = Any

_LETTERS_PER_INCH = 11
#: Makes an SVG readable on dark pages too: text, axes and the darkest color become light.
_DARK = """<style>@media (prefers-color-scheme: dark) {
 [id^="text_"] { fill: #c9d1d9 !important }
 [style*="stroke: #000000"] { stroke: #9aa4b2 !important }
 [style*="fill: #000000"] { fill: #c9d1d9 !important }
 [style*="stroke: #1f3b73"] { stroke: #8fb0f5 !important }
 [style*="fill: #1f3b73"] { fill: #8fb0f5 !important }
}</style>"""
UP, DOWN, GAP = "#1f3b73", "#29a7c9", "#d1495b"  # flips to +1, flips to −1, and their difference
_METHODS = {  # display name and color
    "sign": ("Sign", "#8a8a8a"),
    "irnet-stable": ("IR-Net (stable)", "#e08e2b"),
    "irnet-identity": ("IR-Net (identity)", "#a4501e"),
    "irnet-through": ("IR-Net (through)", "#c2b04a"),
    "irnet": ("IR-Net", "#e08e2b"),
    "bihalf": ("Bi-half", "#1f3b73"),
    "bits": ("Bop", "#5b8c5a"),
    "pruned-sign": ("Sign, smallest weights cut", "#8a8a8a"),
    "pruned-sign-slow": ("Sign, smallest weights cut, a tenth of the rate", "#d8a24a"),
    "pruned-bihalf": ("Bi-half, middle ranks cut", "#1f3b73"),
    "pruned-bihalf-score": ("Bi-half on learned masks", "#29a7c9"),
    "mpt": ("MPT, frozen signs", "#d1495b"),
    "zero-mean": ("Zero mean", "#7d5ba6"),
}
METHOD_NAMES = {method: name for method, (name, _) in _METHODS.items()}
METHOD_COLORS = {method: color for method, (_, color) in _METHODS.items()}


def method_name(method: str) -> str:
    """Return a method's display name, or the quantizer's own name where it has none.

    >>> method_name("bihalf"), method_name("bihalf:p_pos=0.4")
    ('Bi-half', 'bihalf:p_pos=0.4')
    """
    return METHOD_NAMES.get(method, method)


def method_color(method: str) -> str:
    """Return a method's color, the same in every plot; methods without one are green."""
    return METHOD_COLORS.get(method, METHOD_COLORS["bits"])


def new_figure(width: float, height: float, *, title: str = "") -> Figure:
    """Return an empty figure of a size in inches, its title wrapped to its width."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError(f"plotting needs matplotlib: {install_hint('plot')}; the numbers are kept") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    if title:
        figure.suptitle(textwrap.fill(title, int(_LETTERS_PER_INCH * width), break_on_hyphens=False))
    return figure


def shown_in_notebooks(figure: Figure) -> Figure:
    """Return the figure; in IPython, first register the display of figures."""
    if "IPython" in sys.modules:
        from matplotlib import pyplot

        pyplot.close(pyplot.figure())  # loads the notebook's backend, which registers the display of figures
    return figure


def save_figure(figure: Figure, out: Path, name: str, *, kinds: Sequence[str] = ("png", "svg"), dpi: int = 110) -> None:
    """Write ``name``.png and ``name``.svg atomically; the same numbers give the same SVG."""
    from matplotlib import rc_context

    how: dict[str, dict[str, Any]] = {"png": {"dpi": dpi}, "svg": {"metadata": {"Date": None}, "transparent": True}}
    with rc_context({"svg.hashsalt": name}):
        for kind in kinds:
            content = BytesIO()
            figure.savefig(content, format=kind, **how[kind])
            plot = content.getvalue()
            if kind == "svg":
                plot = plot.replace(b"<defs>", f"{_DARK}<defs>".encode(), 1)
            write_atomically(out / f"{name}.{kind}", plot)


def heading(result: Mapping[str, object], title: str = "") -> str:
    """Return a plot's title, marked where the measurement is a quick one and not the paper's setting."""
    return f"{title or result['title']}{' (quick: small nets, Fashion-MNIST)' if result['quick'] else ''}"


def panel(
    figure: Figure,
    place: tuple[int, int, int] | SubplotSpec,
    *,
    x: str,
    y: str,
    title: str = "",
    **settings: object,
) -> Axes:
    """Add axes with labels and a faint grid at ``(rows, columns, number)`` or at a cell of a grid."""
    axes = figure.add_subplot(*(place if isinstance(place, tuple) else (place,)), **settings)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title)
    axes.grid(alpha=0.25)
    return axes


def panels(figure: Figure, titles: Sequence[str], *, x: str, y: str, rows: int = 1) -> list[Axes]:
    """Add axes, one per title, in one row or in several."""
    columns = -(-len(titles) // rows)
    return [panel(figure, (rows, columns, place), x=x, y=y, title=title) for place, title in enumerate(titles, start=1)]


def legend(axes: Axes, **settings: object) -> None:
    """Add a legend without a frame, if anything in the axes has a label."""
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, **settings)


def mean_and_range(axes: Axes, x: Sequence[float], values: Sequence[Sequence[float]], **settings: object) -> None:
    """Plot means as a line, minimum to maximum as a band; places without values are left out."""
    kept = [(at, some) for at, some in zip(x, values, strict=True) if some]
    if not kept:
        return
    places = [at for at, _ in kept]
    (line,) = axes.plot(places, [sum(some) / len(some) for _, some in kept], marker="o", markersize=3.5, **settings)
    lows, highs = [min(some) for _, some in kept], [max(some) for _, some in kept]
    axes.fill_between(places, lows, highs, color=line.get_color(), alpha=0.15, linewidth=0)


def shades(count: int) -> list[tuple[float, ...]]:
    """Return ``count`` blues from light to dark."""
    from matplotlib import colormaps

    return [colormaps["Blues"](1 - 0.65 * number / max(count - 1, 1)) for number in reversed(range(count))]
