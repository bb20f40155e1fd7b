"""Table with one row per watched step: bounded memory, few transfers from the GPU."""

import torch
from torch import Tensor

#: Rows collected on the device before they are copied to the CPU.
_BUFFER = 256


class StepTable:
    """Table with at most ``limit`` complete rows, and one more that is being filled.

    A full table merges each pair of neighbouring rows, and from then on a row covers twice as many steps. With ``adds``
    merged rows are summed, so that no count is lost; otherwise the later row is kept.

    >>> table = StepTable(limit=2, adds=True)
    >>> for step in range(1, 6):
    ...     table.add(step, torch.tensor([step]))
    >>> table.steps, table.rows().tolist(), table.steps_per_row
    ([2, 4, 5], [[3], [7], [5]], 2)
    """

    def __init__(self, *, limit: int, adds: bool) -> None:
        if limit < 2:
            raise ValueError(f"limit={limit} is too small: keep at least 2 rows")
        self.limit, self.adds, self.steps_per_row = limit, adds, 1
        self._rows: Tensor | None = None  # complete rows, on the CPU
        self._buffer: list[Tensor] = []  # complete rows, still on the device
        self._partial: Tensor | None = None  # the row that is being filled
        self._partial_steps = 0  # number of steps in it
        self._steps: list[int] = []  # last step of each complete row
        self._last = 0

    def add(self, step: int, row: Tensor) -> None:
        """Append the numbers of one step."""
        self._partial, self._last = self._merge(self._partial, row), step
        self._partial_steps += 1
        if self._partial_steps == self.steps_per_row:
            self._buffer.append(self._partial)
            self._steps.append(step)
            self._partial, self._partial_steps = None, 0
        if len(self._buffer) >= min(_BUFFER, self.limit):
            self._flush()

    @property
    def steps(self) -> list[int]:
        """Last step of each row."""
        self._flush()
        return [*self._steps, *([self._last] if self._partial_steps else [])]

    def rows(self) -> Tensor:
        """Return all rows, shape (row, column), on the CPU."""
        self._flush()
        parts = [
            *([] if self._rows is None else [self._rows]),
            *([] if self._partial is None else [self._partial[None].cpu()]),
        ]
        return torch.cat(parts) if parts else torch.zeros(0, 0)

    def _flush(self) -> None:
        """Copy buffered rows to the CPU and merge rows until they fit the limit."""
        if self._buffer:
            device = self._buffer[-1].device  # the model may have moved to another device meanwhile
            new = torch.stack([row.to(device) for row in self._buffer]).cpu()
            self._rows = new if self._rows is None else torch.cat([self._rows, new])
            self._buffer = []
        while self._rows is not None and len(self._rows) > self.limit:
            self._rows = self._halve(self._rows)

    def _halve(self, rows: Tensor) -> Tensor:
        if len(rows) % 2:  # the last row has no partner: it becomes the start of the partial row
            odd, rows = rows[-1], rows[:-1]
            self._partial = odd if self._partial is None else self._merge(odd, self._partial)
            self._partial_steps += self.steps_per_row
            self._steps.pop()
        self.steps_per_row *= 2
        self._steps = self._steps[1::2]
        return self._merge(rows[0::2], rows[1::2])

    def _merge(self, earlier: Tensor | None, later: Tensor) -> Tensor:
        # The earlier row may be on the CPU already while new rows are still on the device.
        return later if earlier is None or not self.adds else earlier.to(later.device) + later
