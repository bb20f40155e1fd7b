"""Number of symbols of each layer that flip during training, by direction."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate
from operator import sub
from typing import Any

import torch
from torch import Tensor, nn

from equalbits.analysis.layer_hooks import binary_layers
from equalbits.analysis.step_table import StepTable
from equalbits.functional import count_flips


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

    def as_dict(self) -> dict[str, Any]:
        """Return the counts, for JSON."""
        return asdict(self)


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
        if every < 1:
            raise ValueError(f"every={every} must be at least 1, which measures every step")
        self.selected, self.every = dict(filters or {}), every
        self._table = StepTable(limit=limit, adds=True)
        self._previous: dict[str, Tensor] = {}
        self._flipped: dict[str, Tensor] = {}

    @torch.no_grad()
    def __call__(self, model: nn.Module, step: int) -> None:
        """Count the flips since the previous call; the first call only stores the symbols."""
        if self._previous and step % self.every:
            return
        now = {name: layer.symbols().to(torch.int8) for name, layer in binary_layers(model).items()}
        if not self._previous:
            self._start(now)
        elif {name: symbols.shape for name, symbols in now.items()} != {n: s.shape for n, s in self._previous.items()}:
            raise ValueError(
                "the binary layers differ from those of the first call: use a separate watcher for each model"
            )
        else:
            for name, symbols in now.items():  # the model may have moved to another device
                self._previous[name] = self._previous[name].to(symbols.device)
                self._flipped[name] = self._flipped[name].to(symbols.device)
            self._table.add(step, self._flips(now))
        self._previous = now

    @property
    def layers(self) -> dict[str, FlipSeries]:
        """Flips of each layer."""
        return self._read(0, {name: symbols.numel() for name, symbols in self._previous.items()})

    @property
    def filters(self) -> dict[str, FlipSeries]:
        """Flips of each selected filter, by the name of its layer."""
        selected = self.selected if self._previous else {}
        return self._read(len(self._previous), {name: self._previous[name][i].numel() for name, i in selected.items()})

    @property
    def silent(self) -> dict[str, int]:
        """Number of symbols of each layer that never flipped."""
        return {name: int((~flipped).sum()) for name, flipped in self._flipped.items()}

    def as_dict(self) -> dict[str, object]:
        """Return all counts, for JSON."""
        series = {"layers": self.layers, "filters": self.filters}
        counts = {kind: {name: each.as_dict() for name, each in found.items()} for kind, found in series.items()}
        return {**counts, "silent": self.silent}

    def _start(self, now: dict[str, Tensor]) -> None:
        for name, index in self.selected.items():
            if name not in now or not 0 <= index < len(now[name]):
                known = ", ".join(f"{layer!r} ({len(symbols)})" for layer, symbols in now.items())
                raise ValueError(f"filters={{{name!r}: {index}}}: no such filter; layers and filter counts: {known}")
        self._flipped = {name: torch.zeros_like(symbols, dtype=torch.bool) for name, symbols in now.items()}

    def _flips(self, now: dict[str, Tensor]) -> Tensor:
        """Return one row: flips to +1 and to −1 of each layer, then of each selected filter."""
        flips = {name: torch.stack(count_flips(self._previous[name], symbols)) for name, symbols in now.items()}
        for name, symbols in now.items():
            # not in place: torch forbids that for tensors created in inference mode
            self._flipped[name] = self._flipped[name] | (symbols * self._previous[name] < 0)
        parts = [counts.sum(dim=1) for counts in flips.values()]
        parts += [flips[name][:, index] for name, index in self.selected.items()]
        return torch.cat([part.to(parts[0].device) for part in parts])

    def _read(self, start: int, symbols: dict[str, int]) -> dict[str, FlipSeries]:
        """Return the pairs of columns from pair ``start`` on, one series for each name in ``symbols``."""
        steps, table = list(self._table.steps), self._table.rows()
        columns = table.T.tolist() if len(table) else [[]] * (2 * (start + len(symbols)))
        to_positive, to_negative = columns[2 * start :: 2], columns[2 * start + 1 :: 2]
        return {
            name: FlipSeries(steps, to_positive[i], to_negative[i], count)
            for i, (name, count) in enumerate(symbols.items())
        }
