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
        self.steps: list[int] = []  # last step of each row
        self._rows: list[Tensor] = []  # complete, except perhaps the last one
        self._steps_in_last = 0  # number of steps that the last row covers
        self._copied = 0  # number of rows that are on the CPU already

    def add(self, step: int, row: Tensor) -> None:
        """Append the numbers of one step."""
        if self._rows and self._steps_in_last < self.steps_per_row:
            self._rows[-1], self.steps[-1] = self._merge(self._rows[-1], row), step
            self._copied = min(self._copied, len(self._rows) - 1)
            self._steps_in_last += 1
        else:
            self._rows.append(row)
            self.steps.append(step)
            self._steps_in_last = 1
        if len(self._rows) - self._copied >= _BUFFER:
            self._copy()
        if len(self._rows) > self.limit and self._steps_in_last == self.steps_per_row:
            self._halve()

    def rows(self) -> Tensor:
        """Return all rows, shape (row, column), on the CPU."""
        self._copy()
        return torch.stack(self._rows) if self._rows else torch.zeros(0, 0)

    def _copy(self) -> None:
        """Copy the rows that are still on the device to the CPU, in one transfer."""
        if new := self._rows[self._copied :]:
            device = new[-1].device  # the model may have moved to another device meanwhile
            self._rows[self._copied :] = torch.stack([row.to(device) for row in new]).cpu().unbind()
        self._copied = len(self._rows)

    def _halve(self) -> None:
        """Merge each pair of neighbouring rows; a last row without a partner stays, to be filled."""
        self._copy()
        even = len(self._rows) // 2 * 2
        merged = [self._merge(*pair) for pair in zip(self._rows[:even:2], self._rows[1:even:2], strict=True)]
        self._rows, self.steps = merged + self._rows[even:], self.steps[1:even:2] + self.steps[even:]
        self._steps_in_last = self.steps_per_row * (1 if even < self._copied else 2)
        self.steps_per_row *= 2
        self._copied = len(self._rows)

    def _merge(self, earlier: Tensor, later: Tensor) -> Tensor:
        # The earlier row may be on the CPU already while new rows are still on the device.
        return earlier.to(later.device) + later if self.adds else later
