"""Parts of the paper's plots: panels, legends, bands and titles."""

from collections.abc import Mapping, Sequence

from equalbits._plotting import Axes, Figure, SubplotSpec


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
