"""Rows of numbers, one per look at a model, that never grow beyond a limit and seldom make a GPU wait."""

import torch
from torch import Tensor

#: How many rows gather on the device before they are fetched.
_GATHER = 256


class Record:
    """A table with a row for each look, at most ``limit`` rows long, and one more for looks that fill no row yet.

    When it is full each pair of neighbouring rows becomes one, and from then on a row covers twice as many looks:
    counts are added up (``adds``), so that none is lost; other values are those of the last look in the row.

    >>> record = Record(limit=2, adds=True)
    >>> for step in range(1, 6):
    ...     record.add(step, torch.tensor([step]))
    >>> record.steps, record.table().tolist(), record.looks_per_row
    ([2, 4, 5], [[3], [7], [5]], 2)
    """

    def __init__(self, *, limit: int, adds: bool) -> None:
        if limit < 2:
            raise ValueError(f"limit={limit} leaves no room: a record needs 2 rows at least")
        self.limit, self.adds, self.looks_per_row = limit, adds, 1
        self._rows: Tensor | None = None  # on the CPU, each of ``looks_per_row`` looks
        self._fresh: list[Tensor] = []  # rows not fetched yet
        self._open: Tensor | None = None  # the row that is being filled
        self._looks = 0  # how many it has
        self._steps: list[int] = []  # where each row ends, fetched or fresh
        self._last = 0

    def add(self, step: int, row: Tensor) -> None:
        """Put one look's numbers at the end."""
        self._open, self._last = self._join(self._open, row), step
        self._looks += 1
        if self._looks == self.looks_per_row:
            self._fresh.append(self._open)
            self._steps.append(step)
            self._open, self._looks = None, 0
        if len(self._fresh) >= min(_GATHER, self.limit):
            self._fetch()

    @property
    def steps(self) -> list[int]:
        """The step at which each row ends."""
        self._fetch()
        return [*self._steps, *([self._last] if self._looks else [])]

    def table(self) -> Tensor:
        """All rows, shape (row, column), on the CPU."""
        self._fetch()
        parts = [
            *([] if self._rows is None else [self._rows]),
            *([] if self._open is None else [self._open[None].cpu()]),
        ]
        return torch.cat(parts) if parts else torch.zeros(0, 0)

    def _fetch(self) -> None:
        if self._fresh:
            device = self._fresh[-1].device  # the model may have moved since the first
            fresh = torch.stack([row.to(device) for row in self._fresh]).cpu()
            self._rows = fresh if self._rows is None else torch.cat([self._rows, fresh])
            self._fresh = []
        while self._rows is not None and len(self._rows) > self.limit:
            self._rows = self._halve(self._rows)

    def _halve(self, rows: Tensor) -> Tensor:
        if len(rows) % 2:  # the odd row out begins the next one
            odd, rows = rows[-1], rows[:-1]
            self._open = odd if self._open is None else self._join(odd, self._open)
            self._looks += self.looks_per_row
            self._steps.pop()
        self.looks_per_row *= 2
        self._steps = self._steps[1::2]
        return self._join(rows[0::2], rows[1::2])

    def _join(self, earlier: Tensor | None, later: Tensor) -> Tensor:
        # what was fetched already goes back to where the looks are
        return later if earlier is None or not self.adds else earlier.to(later.device) + later
