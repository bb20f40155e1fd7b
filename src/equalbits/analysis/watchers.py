"""Watchers, called at every step of any loop: the bits that flip, by direction, and the entropy of filters."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate
from operator import sub

import torch
from torch import Tensor, nn

from equalbits.analysis.layer_hooks import binary_layers
from equalbits.functional import count_flips, filter_entropy

_BUFFER = 256  # rows collected on the device before they are copied to the CPU
_OTHER_MODEL = "the binary layers differ from those of the first call: use a separate watcher for each model"


@dataclass(frozen=True)
class FlipSeries:
    """Flips over time: one count per entry of ``steps``, the last step that the count covers."""

    steps: list[int]
    to_positive: list[int]
    to_negative: list[int]
    symbols: int

    @property
    def cumulative(self) -> tuple[list[int], list[int]]:
        """Cumulative flips to +1 and to −1."""
        return list(accumulate(self.to_positive)), list(accumulate(self.to_negative))

    @property
    def difference(self) -> list[int]:
        """Cumulative flips to +1 minus those to −1: always 0 where the share of +1 is exact."""
        return list(map(sub, *self.cumulative))


class FlipWatcher:
    """Count flips between calls; call it as ``watcher(model, step)`` before training and after each step.

    ``filters`` selects single filters to count besides whole layers, as in ``{"conv2": 0}``. ``every=n`` measures every
    n-th step; a symbol that flipped and flipped back in between is not counted. Memory is bounded: two bytes per
    weight, and at most ``limit`` rows of counts. When the table is full, neighbouring rows are summed, so that no flip
    is lost.

    >>> from equalbits.nn import BiHalf, BinaryLinear
    >>> layer = BinaryLinear(4, 1, weight_quantizer=BiHalf())
    >>> layer.weight.data = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    >>> watcher = FlipWatcher()
    >>> watcher(nn.Sequential(layer), 0)
    >>> layer.weight.data[0, 0] = 9.0
    >>> watcher(nn.Sequential(layer), 1)
    >>> watcher.layers["0"]
    FlipSeries(steps=[1], to_positive=[1], to_negative=[1], symbols=4)
    """

    def __init__(self, *, filters: Mapping[str, int] | None = None, every: int = 1, limit: int = 50_000) -> None:
        self.selected = dict(filters or {})
        self._table = StepTable(every=every, limit=limit, adds=True)
        self._previous: dict[str, Tensor] = {}
        self._flipped: dict[str, Tensor] = {}

    @torch.no_grad()
    def __call__(self, model: nn.Module, step: int) -> None:
        """Count the flips since the previous call; the first call only stores the symbols."""
        if self._previous and step % self._table.every:
            return
        now = {name: layer.symbols().to(torch.int8) for name, layer in binary_layers(model).items()}
        if not self._previous:
            self._check_filters(now)
            self._flipped = {name: torch.zeros_like(symbols, dtype=torch.bool) for name, symbols in now.items()}
        elif {name: symbols.shape for name, symbols in now.items()} != {n: s.shape for n, s in self._previous.items()}:
            raise ValueError(_OTHER_MODEL)
        else:
            self._table.add(step, self._count(now))
        self._previous = now

    @property
    def layers(self) -> dict[str, FlipSeries]:
        """Flips of each layer."""
        rows, layers = self._table.rows(), enumerate(self._previous.items())
        return {name: self._series(rows, place, symbols.numel()) for place, (name, symbols) in layers}

    @property
    def filters(self) -> dict[str, FlipSeries]:
        """Flips of each selected filter, by the name of its layer."""
        rows, previous = self._table.rows(), self._previous
        filters = enumerate(self.selected.items(), start=len(previous)) if previous else ()
        return {name: self._series(rows, place, previous[name][index].numel()) for place, (name, index) in filters}

    @property
    def silent(self) -> dict[str, int]:
        """Number of symbols of each layer that never flipped."""
        return {name: int((~flipped).sum()) for name, flipped in self._flipped.items()}

    def as_dict(self) -> dict[str, object]:
        """Return all counts, for JSON."""
        series = {"layers": self.layers, "filters": self.filters}
        counts = {kind: {name: asdict(each) for name, each in found.items()} for kind, found in series.items()}
        return {**counts, "silent": self.silent}

    def _check_filters(self, now: dict[str, Tensor]) -> None:
        for name, index in self.selected.items():
            if name not in now or not 0 <= index < len(now[name]):
                known = ", ".join(f"{layer!r} ({len(symbols)})" for layer, symbols in now.items())
                raise ValueError(f"filters={{{name!r}: {index}}}: no such filter; layers and filter counts: {known}")

    def _count(self, now: dict[str, Tensor]) -> Tensor:
        """Return the flips to +1 and to −1 of each layer, then of each selected filter: shape (series, 2)."""
        flips: dict[str, Tensor] = {}
        for name, symbols in now.items():
            # The model may have moved to another device.
            before, flipped = self._previous[name].to(symbols.device), self._flipped[name].to(symbols.device)
            flips[name] = torch.stack(count_flips(before, symbols), dim=1)  # (filter, 2)
            # Not in place: torch forbids that for tensors created in inference mode.
            self._flipped[name] = flipped | (symbols * before < 0)
        series = [counts.sum(dim=0) for counts in flips.values()]
        series += [flips[name][index] for name, index in self.selected.items()]
        return torch.stack([counts.to(series[0].device) for counts in series])

    def _series(self, rows: Tensor, place: int, symbols: int) -> FlipSeries:
        up, down = rows[:, place].T.tolist() if len(rows) else ([], [])
        return FlipSeries(list(self._table.steps), up, down, symbols)


class EntropyWatcher:
    """Record the mean entropy of filters, in bits; call it as ``watcher(model, step)`` in any loop.

    Entropy is computed per filter and then averaged: pooling a layer's weights would hide filters that are biased in
    opposite directions (Fig. 1 of the paper). ``every=n`` measures every n-th step. At most ``limit`` rows are kept;
    when the table is full, every second row is dropped.

    >>> from equalbits.nn import BiHalf, BinaryLinear
    >>> watcher = EntropyWatcher()
    >>> watcher(nn.Sequential(BinaryLinear(8, 3, weight_quantizer=BiHalf())), 0)
    >>> watcher.steps, watcher.layers, watcher.network
    ([0], {'0': [1.0]}, [1.0])
    """

    def __init__(self, *, every: int = 1, limit: int = 50_000) -> None:
        self._table = StepTable(every=every, limit=limit, adds=False)
        self._names: list[str] = []

    @torch.no_grad()
    def __call__(self, model: nn.Module, step: int) -> None:
        """Measure the model at this step."""
        if self._names and step % self._table.every:
            return
        filters = {name: filter_entropy(layer.symbols()) for name, layer in binary_layers(model).items()}
        if self._names and self._names != list(filters):
            raise ValueError(_OTHER_MODEL)
        self._names = list(filters)
        device = next(iter(filters.values())).device
        all_filters = torch.cat([entropies.to(device) for entropies in filters.values()])
        means = [entropies.nanmean().to(device) for entropies in (*filters.values(), all_filters)]
        self._table.add(step, torch.stack(means))

    @property
    def steps(self) -> list[int]:
        """Steps that were measured."""
        return list(self._table.steps)

    @property
    def layers(self) -> dict[str, list[float]]:
        """Mean over the filters of each layer, one value per entry of ``steps``."""
        return dict(zip(self._names, self._columns(), strict=False))

    @property
    def network(self) -> list[float]:
        """Mean over all filters of all layers."""
        return self._columns()[-1] if self._names else []

    def as_dict(self) -> dict[str, object]:
        """Return all values, for JSON; None where every symbol is pruned."""
        layers = {name: _with_none(values) for name, values in self.layers.items()}
        return {"steps": self.steps, "layers": layers, "network": _with_none(self.network)}

    def _columns(self) -> list[list[float]]:
        return [column.tolist() for column in self._table.rows().T]


def _with_none(values: list[float]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values]


class StepTable:
    """Table with a row per watched step: at most ``limit`` complete rows, and one more that is being filled.

    A full table merges each pair of neighbouring rows, and from then on a row covers twice as many steps. With ``adds``
    merged rows are summed, so that no count is lost; otherwise the later row is kept.

    >>> table = StepTable(limit=2, adds=True)
    >>> for step in range(1, 6):
    ...     table.add(step, torch.tensor([step]))
    >>> table.steps, table.rows().tolist(), table.steps_per_row
    ([2, 4, 5], [[3], [7], [5]], 2)
    """

    def __init__(self, *, every: int = 1, limit: int, adds: bool) -> None:
        if every < 1:
            raise ValueError(f"every={every} must be at least 1, which measures every step")
        if limit < 2:
            raise ValueError(f"limit={limit} is too small: keep at least 2 rows")
        self.every, self.limit, self.adds, self.steps_per_row = every, limit, adds, 1
        self.steps: list[int] = []  # last step of each row
        self._copied: list[Tensor] = []  # complete rows on the CPU
        self._new: list[Tensor] = []  # complete rows that are still on the device
        self._last: Tensor | None = None  # the row that is being filled
        self._steps_in_last = 0

    def add(self, step: int, row: Tensor) -> None:
        """Append the numbers of one step."""
        if self._last is None:
            self.steps.append(step)
            self._last = row
        else:
            self.steps[-1], self._last = step, self._merge(self._last, row)
        self._steps_in_last += 1
        if self._steps_in_last < self.steps_per_row:
            return
        self._new.append(self._last)
        self._last, self._steps_in_last = None, 0
        if len(self._new) >= _BUFFER:
            self._copy()
        if len(self.steps) > self.limit:
            self._halve()

    def rows(self) -> Tensor:
        """Return all rows, stacked along the first axis, on the CPU."""
        self._copy()
        rows = self._copied if self._last is None else [*self._copied, self._last.cpu()]
        return torch.stack(rows) if rows else torch.zeros(0, 0)

    def _copy(self) -> None:
        """Copy the new rows to the CPU, in one transfer."""
        if self._new:
            device = self._new[-1].device  # the model may have moved to another device meanwhile
            self._copied += torch.stack([row.to(device) for row in self._new]).cpu().unbind()
            self._new = []

    def _halve(self) -> None:
        """Merge each pair of neighbouring rows; a last row without a partner is filled further."""
        self._copy()
        if len(self._copied) % 2:
            self._last, self._steps_in_last = self._copied.pop(), self.steps_per_row
        even = len(self._copied)
        self._copied = [self._merge(*pair) for pair in zip(self._copied[::2], self._copied[1::2], strict=True)]
        self.steps = self.steps[1:even:2] + self.steps[even:]
        self.steps_per_row *= 2

    def _merge(self, earlier: Tensor, later: Tensor) -> Tensor:
        # The earlier row may be on the CPU already while new rows are still on the device.
        return earlier.to(later.device) + later if self.adds else later
