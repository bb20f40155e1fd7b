"""Plain text tables, with counts before shares."""

from collections.abc import Iterable, Sequence

from torch import Tensor


def as_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, left: Iterable[int] = (0,)) -> str:
    """Columns under their headings, figures to the right; the columns in ``left`` hold words and stand to the left.

    >>> print(as_table(("layer", "weights"), [("conv1", "27"), ("fc", "1,000")]))
    layer  weights
    conv1       27
    fc       1,000
    """
    lines = [tuple(header), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    to_the_left = set(left)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place in to_the_left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def span(counts: Tensor) -> str:
    """One number where all are the same, else the least and the most.

    >>> import torch
    >>> span(torch.tensor([4, 4])), span(torch.tensor([3, 9, 5]))
    ('4', '3…9')
    """
    if counts.numel() == 0:
        return "–"
    low, high = int(counts.min()), int(counts.max())
    return f"{low:,}" if low == high else f"{low:,}…{high:,}"
